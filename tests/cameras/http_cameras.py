"""HTTP cameras for tests: an MJPEG server that can hang, break off and refuse, and a folder of HLS segments served."""

from __future__ import annotations

import base64
import functools
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cv2
import numpy as np

BOUNDARY = "frame"


def picture(number: int, width: int, height: int) -> bytes:
    """A JPEG with a block that moves with `number`."""
    image = np.full((height, width, 3), 40, np.uint8)
    left = number * 8 % (width - 32)
    image[20:60, left : left + 32] = (0, 160, 255)
    return cv2.imencode(".jpg", image)[1].tobytes()


class MjpegServer:
    """A camera that sends multipart JPEG at `fps` to whoever knows the password.

    While `frozen` is set its connections stay open and nothing comes; `break_off` ends those there are. A context
    manager.
    """

    def __init__(self, *, user: str = "admin", password: str = "secret", fps: float = 20.0) -> None:
        self.size: tuple[int, int] = (320, 240)
        self.frozen = threading.Event()
        self._generation = 0
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._pause_s = 1.0 / fps
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Stream, self))
        self._server.daemon_threads = True
        self.bare_url = f"http://127.0.0.1:{self._server.server_port}/video.mjpg"
        self.url = self.bare_url.replace("://", f"://{user}:{password}@")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.break_off()
        self._server.shutdown()
        self._server.server_close()

    def break_off(self) -> None:
        """End every stream there is; new ones are taken."""
        self._generation += 1

    def stream(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one client until it leaves or is left."""
        if request.headers.get("Authorization") != self._expected:
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="camera"')
            request.end_headers()
            return
        request.send_response(200)
        request.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={BOUNDARY}")
        request.end_headers()
        generation, number = self._generation, 0
        while generation == self._generation:
            if not self.frozen.is_set():
                jpeg = picture(number, *self.size)
                head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                request.wfile.write(head.encode() + jpeg + b"\r\n")
                number += 1
            time.sleep(self._pause_s)


class _Stream(BaseHTTPRequestHandler):
    def __init__(self, camera: MjpegServer, *arguments: Any) -> None:
        self._camera = camera
        super().__init__(*arguments)

    def do_GET(self) -> None:
        try:
            self._camera.stream(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class HlsServer:
    """A live HLS stream: ffmpeg writes segments of a test pattern into `folder`, which is served. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        handler = functools.partial(_Quiet, directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/live.m3u8"

    def __enter__(self) -> Self:
        source = ["-re", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=10"]
        encode = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "10"]
        segments = ["-f", "hls", "-hls_time", "1", "-hls_list_size", "6", str(self._folder / "live.m3u8")]
        command = ["ffmpeg", "-loglevel", "error", *source, *encode, *segments]
        self._ffmpeg = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not (self._folder / "live.m3u8").exists():
            assert time.monotonic() < deadline, "ffmpeg wrote no playlist"
            time.sleep(0.1)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ffmpeg.kill()
        self._ffmpeg.wait()
        self._server.shutdown()
        self._server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass
