"""Who may ask for what: the same for pages, pictures, the API and WebSockets."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, WebSocket
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from ui.web.addresses import is_loopback
from ui.web.guard import COOKIE, Guard
from ui.web.login import build_login
from ui.web.password import Attempts, Sessions, hash_password

PASSWORD = "correct horse"
HASH = hash_password(PASSWORD)
OWN = "http://cameras.example"
BROWSER = {"accept": "text/html"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def guarded(password_hash: str | None, sessions: Sessions | None = None) -> Guard:
    site = FastAPI()
    guard = Guard(site, password_hash, sessions)
    site.include_router(build_login(guard))

    @site.get("/")
    async def page() -> str:
        return "cameras"

    @site.get("/events/e1.jpg")
    async def picture() -> str:
        return "a picture"

    @site.get("/healthz")
    async def healthz() -> str:
        return "ok"

    @site.patch("/live/settings")
    async def settings() -> str:
        return "changed"

    @site.websocket("/live/socket")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("pictures")

    return guard


def client_of(guard: Guard, base: str = OWN) -> TestClient:
    return TestClient(guard, base_url=base, follow_redirects=False)


@pytest.fixture
def client(clock: Clock) -> TestClient:
    return client_of(guarded(HASH, Sessions(clock)))


@pytest.fixture
def inside(client: TestClient) -> TestClient:
    assert client.post("/login", data={"password": PASSWORD}, headers={"origin": OWN}).status_code == 303
    return client


def hears(client: TestClient, **headers: str) -> bool:
    try:
        with client.websocket_connect(
            str(client.base_url.copy_with(scheme="ws")) + "/live/socket", headers=headers
        ) as socket:
            return socket.receive_text() == "pictures"
    except (WebSocketDisconnect, WebSocketDenialResponse):
        return False


@pytest.mark.parametrize("path", ["/", "/events/e1.jpg", "/live/settings", "/_nicegui/x.js", "/nowhere"])
def test_nothing_is_served_without_a_session(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 401
    assert "Log in" in answer.json()["detail"]


def test_a_person_is_sent_to_the_login_page_and_back(client: TestClient) -> None:
    answer = client.get("/events/e1.jpg", headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/events/e1.jpg")
    assert client.get("/healthz").status_code == 200  # the supervisor's question
    page = client.get(answer.headers["location"])
    assert 'value="/events/e1.jpg"' in page.text
    wrong = client.post("/login", data={"password": "guess", "next": "/"}, headers={"origin": OWN})
    assert (wrong.status_code, COOKIE in wrong.cookies) == (401, False)
    assert "not the password" in wrong.text
    right = client.post("/login", data={"password": PASSWORD, "next": "/events/e1.jpg"}, headers={"origin": OWN})
    assert (right.status_code, right.headers["location"]) == (303, "/events/e1.jpg")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/events/e1.jpg").status_code == 200
    assert hears(client, origin=OWN)


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", '/"><script>'])
def test_the_way_back_leads_nowhere_else(client: TestClient, target: str) -> None:
    assert "<script>" not in client.get("/login", params={"next": target}).text
    answer = client.post("/login", data={"password": PASSWORD, "next": target}, headers={"origin": OWN})
    assert answer.headers["location"].startswith("/")
    assert "evil" not in answer.headers["location"]


def test_logging_out_ends_the_session_itself(inside: TestClient) -> None:
    kept = inside.cookies[COOKIE]
    assert inside.post("/logout", headers={"origin": OWN}).status_code == 303
    assert inside.get("/", headers={"cookie": f"{COOKIE}={kept}"}).status_code == 401


def test_a_session_ends_when_it_was_not_used_for_a_week(inside: TestClient, clock: Clock) -> None:
    clock.now += 6 * 24 * 3600
    assert inside.get("/").status_code == 200
    clock.now += 6 * 24 * 3600
    assert inside.get("/").status_code == 200
    clock.now += 8 * 24 * 3600
    assert inside.get("/").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "http://cameras.example:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_site_s_page_changes_nothing_with_a_person_s_session(
    inside: TestClient, headers: dict[str, str]
) -> None:
    assert inside.patch("/live/settings", headers=headers).status_code == 403
    assert inside.post("/login", data={"password": PASSWORD}, headers=headers).status_code == 403
    assert not hears(inside, **headers)
    for own in ({"origin": OWN}, {"origin": "null", "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert inside.patch("/live/settings", headers=own).status_code == 200


def test_guessing_takes_ever_longer(client: TestClient) -> None:
    statuses = [client.post("/login", data={"password": f"guess {n}"}).status_code for n in range(Attempts.FREE + 2)]
    assert statuses == [401] * Attempts.FREE + [429] * 2
    refused = client.post("/login", data={"password": PASSWORD})
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)


def test_the_wait_doubles_to_a_limit_and_is_forgotten(clock: Clock) -> None:
    attempts = Attempts(clock)
    waits = []
    for _ in range(Attempts.FREE + 12):
        attempts.wrong("a")
        waits.append(attempts.wait_s("a"))
        clock.now += 60
    assert waits[: Attempts.FREE] == [0, 0, 0, 0, 2]
    assert waits[-1] == Attempts.LONGEST_S
    assert attempts.wait_s("b") == 0
    clock.now += Attempts.FORGET_S + Attempts.LONGEST_S
    assert attempts.wait_s("a") == 0


def test_many_addresses_share_one_bound(clock: Clock) -> None:
    attempts = Attempts(clock)
    for n in range(Attempts.ALL_AT_ONCE):
        assert attempts.wait_s(f"address {n}") == 0
        attempts.wrong(f"address {n}")
    assert attempts.wait_s("one more") > 0
    clock.now += 1
    assert attempts.wait_s("one more") == 0


def test_a_program_sends_the_password_as_a_bearer_token(client: TestClient) -> None:
    for _ in range(Attempts.ALL_AT_ONCE + 5):
        assert client.get("/", headers={"authorization": f"Bearer {PASSWORD}"}).status_code == 200
    assert client.get("/", headers={"authorization": "Bearer guess"}).status_code == 401
    assert client.patch("/live/settings", headers={"authorization": f"bearer {PASSWORD}"}).status_code == 200


@pytest.mark.parametrize("base", ["http://127.0.0.1:8080", "http://localhost:8080", "http://[::1]:8080"])
def test_without_a_password_this_machine_s_own_addresses_work(base: str) -> None:
    client = client_of(guarded(None), base)
    assert client.get("/").status_code == 200
    assert hears(client, origin=base)
    assert client.get("/login").headers["location"] == "/"


def test_without_a_password_no_other_name_works() -> None:
    client = client_of(guarded(None), "http://rebound.example")
    answer = client.get("/")
    assert answer.status_code == 421
    assert "rebound.example" in answer.json()["detail"]
    assert not hears(client)


def test_every_answer_says_what_browsers_may_not_do(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/login"), client.get("/healthz")):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "same-origin"
    assert "script" not in client.get("/login").headers["content-security-policy"]


def test_a_login_is_small(client: TestClient) -> None:
    assert client.post("/login", content=b"password=" + b"x" * 100_000).status_code == 413
    assert client.post("/login", content=iter([b"password=x"])).status_code == 413
    assert client.post("/login", data={"password": "x" * 1025}).status_code == 422


@pytest.mark.parametrize(
    ("name", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("app.localhost", True)]
    + [(name, False) for name in ("0.0.0.0", "::", "", "192.168.0.9", "localhost.example", "127.0.0.1.example")],
)
def test_what_is_loopback(name: str, expected: bool) -> None:
    assert is_loopback(name) is expected


def test_the_hash_holds_no_password_and_differs_each_time() -> None:
    assert PASSWORD not in HASH
    assert hash_password(PASSWORD) != HASH
    with pytest.raises(ValueError, match="has 5 characters"):
        hash_password("short")
