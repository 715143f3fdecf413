"""`watchword serve`: the engine alone, in this process."""

from __future__ import annotations

import os
from typing import Any

from ui.commands.checks import check_engine
from ui.commands.engine_flags import to_argv, to_env, with_engine_flags


@with_engine_flags()
def serve(*, engine: dict[str, Any]) -> int:
    """Serve a model over the OpenAI API."""
    check_engine(engine, None)  # what is wrong is refused before torch is loaded
    from backend.server.__main__ import main

    os.environ.update(to_env(engine))
    return main(to_argv(engine))
