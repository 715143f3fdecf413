"""A real RTSP server for the tests, run by the system's Python (which has GStreamer's bindings), not by ours.

    /usr/bin/python3 rtsp_server.py --port 8554 [--file CLIP.mp4] [--size WxH] [--fps N] [--transport tcp|udp]
        [--auth basic|digest] [--certificate PEM] [--began T] [--damage N]              user:password on stdin

Serves rtsp://127.0.0.1:PORT/cam (rtsps:// with a certificate) over one transport: CLIP (H.264 in MP4) in a loop, or a
moving test pattern. Whoever connects sees CLIP from its beginning; with --began (seconds of the monotonic clock) from
where it would be had it been playing since then, as a scene goes on before a camera that is off. With --damage every
Nth frame loses its second half. Prints READY once it accepts connections.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import gi  # pyright: ignore[reportMissingImports]

for library in ("Gst", "GstRtsp", "GstRtspServer"):
    gi.require_version(library, "1.0")
from gi.repository import Gio, GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402 # pyright: ignore

PAY = "rtph264pay name=pay0 pt=96 config-interval=-1"
ENCODE = "x264enc tune=zerolatency speed-preset=ultrafast threads=1 key-int-max=10"
H264 = "video/x-h264,stream-format=byte-stream,alignment=au"


class ClipFactory(GstRtspServer.RTSPMediaFactory):
    """Serves the clip's own access units, over and over, with times that keep growing."""

    def __init__(self, path: str, began: float | None, damage: int) -> None:
        super().__init__()
        self._began = began
        self._damage = damage
        self._units, self._caps = read_units(path)
        self._length = max(unit.pts + unit.duration for unit in self._units)
        self.set_launch(f"( appsrc name=clip format=time ! h264parse ! {PAY} )")

    def do_configure(self, media: Any) -> None:
        source = media.get_element().get_by_name("clip")
        source.set_caps(self._caps)
        first = self._first()
        start = self._units[first].pts if first else 0
        source.connect("need-data", self._feed, {"next": first, "start": start})

    def _first(self) -> int:
        """The key frame that the scene has come to by now."""
        if self._began is None:
            return 0
        now = int((time.monotonic() - self._began) * Gst.SECOND) % self._length
        keys = (i for i, unit in enumerate(self._units) if not unit.has_flags(Gst.BufferFlags.DELTA_UNIT))
        return next((i for i in keys if self._units[i].pts >= now), 0)

    def _feed(self, source: Any, _wanted: int, position: dict[str, int]) -> None:
        num_loops, index = divmod(position["next"], len(self._units))
        position["next"] += 1
        unit = self._units[index].copy_deep()
        unit.pts += num_loops * self._length - position["start"]
        unit.dts += num_loops * self._length - position["start"]
        if self._damage and position["next"] % self._damage == 0:
            unit.resize(0, unit.get_size() // 2)
        source.emit("push-buffer", unit)


def read_units(path: str) -> tuple[list[Any], Any]:
    """All access units of an H.264 file, with their times, and their caps."""
    pipeline = Gst.parse_launch(
        f"filesrc name=file ! qtdemux ! h264parse config-interval=-1 ! {H264} ! appsink name=units sync=false"
    )
    pipeline.get_by_name("file").set_property("location", path)
    sink = pipeline.get_by_name("units")
    pipeline.set_state(Gst.State.PLAYING)
    units, caps = [], None
    while (sample := sink.emit("try-pull-sample", 10 * Gst.SECOND)) is not None:
        units.append(sample.get_buffer().copy_deep())
        caps = sample.get_caps()
    pipeline.set_state(Gst.State.NULL)
    if not units:
        raise SystemExit(f"no H.264 in {path}")
    return units, caps


def pattern_factory(size: str, fps: int) -> Any:
    """A bouncing ball, encoded live."""
    width, height = size.split("x")
    factory = GstRtspServer.RTSPMediaFactory()
    caps = f"video/x-raw,width={width},height={height},framerate={fps}/1"
    factory.set_launch(f"( videotestsrc is-live=true pattern=ball ! {caps} ! {ENCODE} ! {PAY} )")
    return factory


def protect(server: Any, factory: Any, credentials: str, method: str, certificate: str | None) -> None:
    """Let only `credentials` (user:password; empty for everybody) in; encrypt if there is a `certificate`."""
    auth = GstRtspServer.RTSPAuth()
    if certificate:
        auth.set_tls_certificate(Gio.TlsCertificate.new_from_file(certificate))
    if credentials:
        user, password = credentials.split(":", 1)
        role = Gst.Structure.new_from_string("viewer,media.factory.access=true,media.factory.construct=true")
        factory.add_role_from_structure(role)
        token = GstRtspServer.RTSPToken()
        token.set_string("media.factory.role", "viewer")
        if method == "digest":
            auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
            auth.add_digest(user, password, token)
        else:
            auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    if credentials or certificate:
        server.set_auth(auth)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file")
    parser.add_argument("--size", default="320x240")
    parser.add_argument("--fps", type=int, default=10)
    parser.add_argument("--transport", choices=("tcp", "udp"), default="tcp")
    parser.add_argument("--auth", choices=("basic", "digest"), default="basic")
    parser.add_argument("--certificate")
    parser.add_argument("--began", type=float)
    parser.add_argument("--damage", type=int, default=0)
    options = parser.parse_args()
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(str(options.port))
    factory = (
        ClipFactory(options.file, options.began, options.damage)
        if options.file
        else pattern_factory(options.size, options.fps)
    )
    factory.set_shared(True)
    factory.set_protocols(getattr(GstRtsp.RTSPLowerTrans, options.transport.upper()))
    protect(server, factory, sys.stdin.readline().rstrip("\n"), options.auth, options.certificate)
    server.get_mount_points().add_factory("/cam", factory)
    if server.attach(None) == 0:
        return 1
    print("READY", flush=True)
    GLib.MainLoop().run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
