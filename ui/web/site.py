"""Puts the page on an address: our routes and NiceGUI's page in one application, served inside the app's event loop."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles
from nicegui import ui
from openai import AsyncOpenAI

from ui.conversation import Conversation
from ui.web.board import Board
from ui.web.chat import ChatBox
from ui.web.engine_link import EngineLink
from ui.web.event_page import build_event_page
from ui.web.guard import Guard
from ui.web.login import build_login
from ui.web.page import build_page
from ui.web.routes import build_routes
from ui.web.shares import ShareMeter
from ui.web.socket import build_socket
from ui.web.uploads import Uploads, build_uploads

if TYPE_CHECKING:
    from pipeline.store import EventStore

STATIC = Path(__file__).parent / "static"
CHAT_MAX_TOKENS = 256


def build_site(
    board: Board,
    store: EventStore | None,
    engine: EngineLink,
    client: AsyncOpenAI,
    model: str | None,
    *,
    meter: ShareMeter | None = None,
    password_hash: str | None = None,
    routes: Sequence[APIRouter] = (),
) -> Guard:
    """The page, all it fetches, and `routes`, behind its guard.

    NiceGUI keeps one site per process, so call this once.
    """
    # NiceGUI looks for its server among all living objects, which wakes other libraries' deprecation notices.
    warnings.filterwarnings("ignore", module=r"nicegui\.ui_run_with")
    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    site.include_router(build_routes(board, store, engine, meter or ShareMeter()))
    site.include_router(build_socket(board))
    for router in routes:
        site.include_router(router)
    site.include_router(build_event_page(board, store))
    uploads = Uploads()
    site.include_router(build_uploads(uploads))
    guard = Guard(site, password_hash)
    site.include_router(build_login(guard))
    site.mount("/static", StaticFiles(directory=STATIC))

    @ui.page("/")
    def page() -> None:
        conversation = Conversation(client, model=model, max_tokens=CHAT_MAX_TOKENS)
        chat = partial(ChatBox, conversation, is_own=engine.is_own, store=store, uploads=uploads)
        build_page(chat, has_password=guard.has_password)

    ui.run_with(
        site,
        title="Watchword",
        favicon=STATIC / "favicon.svg",
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=10.0,
        message_history_length=200,
    )
    return guard


def build_server(site: Guard, host: str, port: int) -> uvicorn.Server:
    """A server that says nothing unless something is wrong. `await server.serve()` runs it until SIGINT or SIGTERM."""
    return uvicorn.Server(
        uvicorn.Config(
            site,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
    )
