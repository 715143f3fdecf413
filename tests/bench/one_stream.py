"""A client of one streamed chat after another, in a process of its own: `python -m tests.bench.one_stream PORT`.

Reads a request's body a line from standard input, sends it over one connection that is kept, reads the reply to its
end, and answers with a line of JSON: when it began and ended, in seconds of the clock that all processes share.
"""

from __future__ import annotations

import json
import socket
import sys
import time

PATH = "/v1/chat/completions"
LAST_CHUNK = b"0\r\n\r\n"


def stream(connection: socket.socket, body: bytes) -> tuple[float, float]:
    """Begin and end of one request; nothing is parsed, so that no time goes to the client."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    begin = time.perf_counter()
    connection.sendall(head.encode() + body)
    tail = b""
    while not tail.endswith(LAST_CHUNK):
        received = connection.recv(65536)
        assert received, "the server closed the connection"
        tail = (tail + received)[-len(LAST_CHUNK) :]
    return begin, time.perf_counter()


def main() -> None:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for line in sys.stdin.buffer:
            print(json.dumps(stream(connection, line.strip())), flush=True)


if __name__ == "__main__":
    main()
