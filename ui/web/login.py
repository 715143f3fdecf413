"""The login page and its two requests. Plain HTML without a script, so that it works wherever a browser does."""

from __future__ import annotations

from html import escape
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ui.web.guard import COOKIE, Guard, address_of
from ui.web.password import LONGEST, SESSION_S

NO_SCRIPT = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def build_login(guard: Guard) -> APIRouter:
    """`/login` (the page, and a guess) and `/logout` over the guard's sessions."""
    router = APIRouter()

    @router.get("/login")
    async def login_page(next: str = "/") -> Response:
        return _page(next) if guard.has_password else RedirectResponse("/", 303)

    @router.post("/login")
    async def login(
        request: Request, password: Annotated[str, Form(max_length=LONGEST)], next: Annotated[str, Form()] = "/"
    ) -> Response:
        wait_s = await guard.guess(address_of(request.scope), password)
        if wait_s is None:
            answer = RedirectResponse(_own_path(next), 303)
            answer.set_cookie(
                COOKIE,
                guard.sessions.begin(),
                max_age=int(SESSION_S),
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
                path="/",
            )
            return answer
        if wait_s > 0:
            wait_s = int(wait_s) + 1
            page = _page(next, f"Too many wrong passwords. Try again in {wait_s} s.", 429)
            page.headers["Retry-After"] = str(wait_s)
            return page
        return _page(next, "That is not the password.", 401)

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        guard.sessions.end(request.cookies.get(COOKIE))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/")
        return answer

    return router


def _own_path(path: str) -> str:
    """`path` if it is one of this site's, else the start."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own else "/"


def _page(next_path: str, error: str = "", status: int = 200) -> Response:
    wrong = f'<p class="wrong" role="alert">{escape(error)}</p>' if error else ""
    return HTMLResponse(_HTML.format(next=escape(_own_path(next_path), quote=True), wrong=wrong), status, NO_SCRIPT)


_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Watchword: log in</title>
<link rel="icon" href="/static/favicon.svg">
<link rel="stylesheet" href="/static/style.css">
<link rel="stylesheet" href="/static/login.css">
</head>
<body class="alone">
<main class="ww login">
  <form method="post" action="/login">
    <div class="ww-brand"><img src="/static/favicon.svg" alt=""><h1>Watchword</h1></div>
    <input type="hidden" name="next" value="{next}">
    <label for="password">Password</label>
    <input id="password" name="password" type="password" autocomplete="current-password" required autofocus>
    {wrong}
    <button type="submit" class="send">Log in</button>
  </form>
</main>
</body>
</html>
"""
