"""`watchword serve`: from a command line to a running server, and to an exit code that says how it ended.

Exit codes: 0 stopped by a signal, 2 a setting, port or model that cannot be used (one line says which), 70 the engine
died. Settles threads in the environment before torch is loaded, and takes the port before the model is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from backend.config import EngineConfig
from backend.errors import EngineError
from backend.hardware import settle_threads
from backend.server.arguments import parse_args
from backend.server.port import check_exposure, port_refusal, take_port
from backend.server.waiting_room import WaitingRoom
from backend.startup import Phase, Startup

if TYPE_CHECKING:
    from backend.service import Service

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_ENGINE_DEAD = 70

DEMO = "demo"


SWITCH_S = 5e-4
"""How long the engine's thread, back from the model, may have to wait while others run Python; ten times less than
Python's own setting."""


class _Stopped(BaseException):
    """A signal asked this process to end. No Exception: nothing on the way may take it for a failure."""


class _Stop:
    """The handler of the signals that end this process, and their memory.

    The first one raises `_Stopped` wherever the process is; where that is a `__del__` or a callback from C, Python
    drops it, and `check` raises it again. A second one meets a process that is on its way out, and ends it at once.
    """

    def __init__(self) -> None:
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(EXIT_OK)
        self._asked = True
        raise _Stopped

    def check(self) -> None:
        """Raise `_Stopped` if a signal has come."""
        if self._asked:
            raise _Stopped

    def say(self, line: str) -> None:
        """Tell a person what comes next, unless nothing should."""
        self.check()
        _say(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `watchword serve` with these arguments (None: the process's own); returns the exit code."""
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        return _serve(parse_args(argv), stop)
    except EngineError as error:
        sys.stderr.write(f"watchword: {error}\n")
        return EXIT_USAGE
    except _Stopped:
        return EXIT_OK


def _serve(config: EngineConfig, stop: _Stop) -> int:
    """Load the model and serve it until a signal or the engine's death; returns the exit code.

    Raises EngineError for what makes a start impossible, `_Stopped` for a signal before it serves.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _say(f"Threads: {settle_threads()}")
    check_exposure(config.host, api_key=config.api_key, insecure=config.insecure)
    sys.setswitchinterval(SWITCH_S)
    startup = Startup(stop.say)
    listener = take_port(config.host, config.port)
    try:
        _listen(listener)
        with WaitingRoom(listener, startup, _say):
            service = _load(config, startup, stop)
        return _run(service, listener, startup, stop)
    finally:
        listener.close()


def _listen(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(2048)
    except OSError as error:  # another process took the same port between our binding it and now
        raise port_refusal(host, port, error) from None


def _load(config: EngineConfig, startup: Startup, stop: _Stop) -> Service:
    from backend.service import build_service

    stop.check()
    startup.enter(Phase.FILES)
    path, notice = _find_model(config)
    service = build_service(config, path, startup.say, startup.enter)
    _say(f"Settings: {service.config.describe()}")
    if notice:
        _say(notice)
    return service


def _run(service: Service, listener: socket.socket, startup: Startup, stop: _Stop) -> int:
    from backend.server.app import create_app
    from backend.server.serving import Server

    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def tell() -> None:
        _say(f"Ready {startup.progress().elapsed_s:.0f} s after the start")
        _say(f"Serving {service.model_name} at {url}")

    server = Server(
        create_app(service),
        service,
        on_ready=tell,
        drain_s=service.config.drain_timeout_s,
    )
    service.engine.on_dead = server.end
    stop.check()
    # What a model is made of lives as long as the process; a collection that went through it would hold every answer.
    gc.collect()
    gc.freeze()
    service.engine.start()
    with suppress(_Stopped):  # uvicorn sends itself the signal once more when it is done
        asyncio.run(server.serve(sockets=[listener]))
    return EXIT_ENGINE_DEAD if server.has_died else EXIT_OK


def _find_model(config: EngineConfig) -> tuple[str, str | None]:
    """Where the model lies, and what there is to say about it before it is used."""
    if config.model != DEMO:
        from backend.gguf_file import as_directory

        return as_directory(config.model, config.cache_dir, _say), None
    from backend.demo.assemble import ensure_demo_model
    from backend.demo.assets import download_progress

    with download_progress() as progress:
        path = ensure_demo_model(config.cache_dir.expanduser(), progress)
    return str(path), f"The demo model is for research and evaluation; its terms and limits: {path / 'README.md'}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    status = main()
    for ended_by in (signal.SIGTERM, signal.SIGINT):  # Python takes its handlers back before it is gone
        signal.signal(ended_by, signal.SIG_IGN)
    gc.freeze()  # all is closed; looking through a million objects of torch once more would take seconds
    sys.exit(status)
