"""One wheel through the user's own pip: its index, mirror, proxy, certificates and credentials, whatever they are.

Knows nothing of what the wheel is for, nor whether it is the right one: the caller verifies what arrives.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.1
RESUME_RETRIES = 5
UNREACHABLE = re.compile(r"connection broken by (?:.*\[Errno -?\d+\] ([^'\")]+))?")
CREDENTIALS = re.compile(r"//[^/@\s]+@")


def download_wheel(requirement: str, into: Path, on_bytes: Callable[[int], None]) -> str | None:
    """Download `requirement`'s wheel into the directory `into`, without dependencies and without building anything.

    `on_bytes` hears the bytes so far, a few times a second. Returns None, or one sentence with pip's own reason. The
    download is given up (and pip ended) when the caller is interrupted.
    """
    if importlib.util.find_spec("pip") is None:
        return f"this Python has no pip; install it with `{sys.executable} -m ensurepip`."
    command = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(into), "--no-deps"]
    # The cache is off: it would keep a second copy, and hand out a broken one again.
    command += ["--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"]
    # pip unpacks below TMPDIR, which is how its progress is seen. A pip too old for resumption ignores the variable.
    environment = os.environ | {"TMPDIR": str(into), "PIP_RESUME_RETRIES": str(RESUME_RETRIES)}
    log = into / "pip.log"
    with log.open("wb") as sink:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment)
        try:
            while True:
                try:
                    code = pip.wait(timeout=POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(_bytes_below(into))
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    return None if code == 0 else _reason(log.read_text(errors="replace"))


def _bytes_below(directory: Path) -> int:
    """Size of the largest file below `directory`; a sum would count a finished wheel twice while pip moves it."""
    largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue  # pip moved it between the two calls
    return largest


def _reason(output: str) -> str:
    """Why pip failed, as one sentence without credentials. Pip itself calls a dead network a missing package."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if unreachable := UNREACHABLE.findall(output):
        return f"pip cannot connect to the package index: {unreachable[-1] or 'no answer'}."
    reason = (errors or lines or ["pip failed and said nothing"])[-1]
    return CREDENTIALS.sub("//…@", f"pip says: {reason}").rstrip(".") + "."
