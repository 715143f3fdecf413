"""The two processes behind a page, as data for the supervisor: the backend and the app."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from pipeline.child import Child
from ui.commands.app_settings import AppSettings
from ui.commands.engine_flags import to_argv, to_env
from ui.commands.machine import physical_cores, reachable

PRIVATE = ("SOURCE", "MODEL", "DETECTOR", "WATCHWORD_API_KEY", "WATCHWORD_UI_PASSWORD")
"""Not handed on in the environment: sources and keys travel over pipes, the rest as flags."""
APP_NICENESS = 10
DRAIN_S = 1.0
"""How long the engine's answers may go on when everything is stopped; less than the supervisor waits."""


def backend_child(engine: Mapping[str, Any], host: str, port: int, private: Collection[str] = ()) -> Child:
    """The engine's server with the given flags, on all physical cores; how its threads wait is its own to say.

    It does not get the environment variables named in `private`: cameras' passwords, which are the app's alone.
    """
    threads = {"OMP_NUM_THREADS": str(physical_cores())}
    return Child(
        name="backend",
        argv=_python("backend.server", *to_argv({"drain_timeout_s": DRAIN_S, **engine, "host": host, "port": port})),
        env=_environment(private) | threads | to_env(engine),
        ready_url=f"http://{reachable(host)}:{port}/health",
    )


def app_child(settings: AppSettings, needed: Collection[str] = ()) -> Child:
    """Cameras, pipeline and page: one thread for the detector, and after the engine in the queue for a core.

    It gets the environment variables named in `needed` whatever they are called: the file of settings, which it reads
    anew at every start and edit, keeps its secrets there.
    """
    return Child(
        name="app",
        argv=_python("ui.cli", "app"),
        env=_environment(needed=needed) | {"OMP_NUM_THREADS": "1"},
        ready_url=f"http://{reachable(settings.ui_host)}:{settings.ui_port}/healthz",
        stdin=settings.to_json().encode(),
        niceness=APP_NICENESS,
    )


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    # -P: a directory called `backend` or `ui` where the user happens to stand must not be taken for ours.
    return (sys.executable, "-P", "-m", module, *arguments)


def _environment(private: Collection[str] = (), needed: Collection[str] = ()) -> dict[str, str]:
    withheld = {*PRIVATE, *private} - {*needed}
    return {name: value for name, value in os.environ.items() if name not in withheld} | {"PYTHONUNBUFFERED": "1"}
