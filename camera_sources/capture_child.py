"""The process that reads one live camera: `python -m camera_sources.capture_child`. It may hang; it may be killed.

It decodes at full rate, so that nothing old ever waits in a buffer. The first frame, and after each wish the next one,
become pictures in shared memory; of the others it tells no more than that there were some, since converting and copying
a picture costs about as much as decoding it. A damaged frame (`damage.py`) never becomes one. It never outlives its
parent. Reconnecting, judging and telling anybody are the parent's business (`live.py`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from camera_sources.base import SourceError
from camera_sources.capture_protocol import Ended, Ending, Order, Passed, Picture, to_line
from camera_sources.cv import FFMPEG_INFO, import_cv2
from camera_sources.damage import Damage, DecoderLog
from camera_sources.shared_frames import FrameWriter

MAX_BAD_READS = 5  # in a row; on a live stream they are a lost connection, not damage
BAD_READ_PAUSE_S = 0.05
LEAVE_S = 0.5  # to say goodbye to the camera (some allow few sessions) when told to go
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Take the order from stdin, capture until told to leave or out of pictures."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    # Unbuffered: a thread waiting inside a buffered stdin would break the interpreter's exit.
    orders = os.fdopen(0, "rb", buffering=0, closefd=False)
    order = Order.from_line(orders.readline())
    _die_with_parent(order.parent_pid)
    leave, wished = threading.Event(), threading.Event()
    wished.set()
    threading.Thread(target=_watch_parent, args=(leave, wished), daemon=True).start()
    # Whatever a library prints must not end up between our lines.
    notices = os.fdopen(os.dup(1), "wb", buffering=0)
    log = DecoderLog()
    try:
        ended = _capture(order, notices, leave, wished, log)
        log.take()  # the cause before the effect
        notices.write(to_line(ended))
    except BrokenPipeError:
        return 1
    finally:
        log.close()
    return 0


def _capture(
    order: Order, notices: BinaryIO, leave: threading.Event, wished: threading.Event, log: DecoderLog
) -> Ended:
    try:
        cv2 = import_cv2(FFMPEG_INFO)
    except SourceError as error:
        return Ended(Ending.NO_OPENCV, str(error))
    cv2.setNumThreads(1)
    capture = _open(cv2, order)
    try:
        if not capture.isOpened():
            return Ended(Ending.NOT_OPENED)
        _drain(cv2, capture, FrameWriter(order.memory_fd), notices, leave, wished, log)
        return Ended(Ending.BROKE_OFF)
    finally:
        capture.release()


def _open(cv2: Any, order: Order) -> Any:
    if isinstance(order.target, int):
        capture = cv2.VideoCapture(order.target)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        return capture
    # Both timeouts are 30 s unless given. One thread, because ffmpeg holds back as many frames as it has threads.
    parameters = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(order.open_timeout_s * 1000)]
    parameters += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, int(order.read_timeout_s * 1000), cv2.CAP_PROP_N_THREADS, 1]
    return cv2.VideoCapture(order.target, cv2.CAP_FFMPEG, parameters)


def _drain(
    cv2: Any,
    capture: Any,
    writer: FrameWriter,
    notices: BinaryIO,
    leave: threading.Event,
    wished: threading.Event,
    log: DecoderLog,
) -> None:
    """Decode until told to leave or until reads keep failing; one Picture or Passed per frame."""
    number = num_bad = 0
    damage = Damage()
    height = width = 0
    shape: tuple[int, int, int] | None = None
    while not leave.is_set() and num_bad < MAX_BAD_READS:
        if not capture.grab():
            num_bad += 1
            leave.wait(BAD_READ_PAUSE_S)
            continue
        t_mono, t_wall = time.monotonic(), time.time()
        raw_pts_s = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000.0
        is_key = chr(max(0, int(capture.get(cv2.CAP_PROP_FRAME_TYPE)))) not in "PB"  # as if it were, where unknown
        if damage.hits(log.take(), is_key, t_mono) or not wished.is_set():
            num_bad = 0
            notices.write(to_line(Passed(number, t_mono, raw_pts_s)))
            number += 1
            continue
        target = None if shape is None else writer.begin(shape)
        ok, image = capture.retrieve(target)
        if not ok or image is None or image.ndim != 3:
            num_bad += 1
            continue
        num_bad = 0
        wished.clear()
        if image is not target:  # the first picture, or one of another size, lies in memory of OpenCV's own
            height, width = image.shape[:2]
            shape = (height, width, 3)
            writer.begin(shape)[:] = image
        offset, stamp = writer.commit()
        notices.write(to_line(Picture(number, t_mono, t_wall, raw_pts_s, offset, stamp, height, width)))
        number += 1


def _watch_parent(leave: threading.Event, wished: threading.Event) -> None:
    """Take wishes. Leave when the parent closes our stdin or is gone; at once if the camera keeps us waiting."""
    while os.read(0, 4096):
        wished.set()
    leave.set()
    time.sleep(LEAVE_S)
    os._exit(1)


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill us with our parent: the watching thread may be stuck behind a library that hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
