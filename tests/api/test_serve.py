"""`watchword serve` as a process: what it prints, how it ends, and the codes it ends with."""

from __future__ import annotations

import dataclasses
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from tests.api.conftest import Live

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Process:
    """A `serve` process whose output is read as it comes."""

    def __init__(self, *flags: str, code: str | None = None) -> None:
        command = [sys.executable, *(["-c", code] if code else ["-m", "backend.server"]), *flags]
        self._popen = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._new: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout
        for line in self._popen.stdout:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line)

    def wait_for(self, words: str, timeout_s: float = 60) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._new.get(timeout=max(0.01, deadline - time.monotonic()))
            if words in line:
                return line

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def end(self, timeout_s: float = 60) -> int:
        code = self._popen.wait(timeout_s)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()


@contextmanager
def process(*flags: str, code: str | None = None) -> Iterator[Process]:
    it = Process(*flags, code=code)
    try:
        yield it
    finally:
        it.kill()


def ends_in_time(server: Process, number: signal.Signals) -> None:
    t_begin = time.monotonic()
    server.send(number)
    code, printed = server.end(), "\n".join(server.lines)
    assert code == 0, printed
    assert time.monotonic() - t_begin < 5, printed
    assert "Traceback" not in printed


def test_it_serves_until_a_signal_and_ends_clean(checkpoint: Callable[[str], Path]) -> None:
    path = str(checkpoint("llama"))
    with process(
        "--model", path, "--port", "0", "--device", "cpu", "--api-key", "open sesame", "--drain-timeout-s", "1"
    ) as server:
        # With every default, so that on a new machine kernels are compiled first.
        url = server.wait_for("Serving llama at ", timeout_s=280).split()[-1]
        printed = "\n".join(server.lines)
        assert "Text model: " in printed
        assert "OMP_NUM_THREADS=1" in printed
        assert "max_num_batched_tokens=64 max_num_seqs=32" in printed
        assert "step_policy=stall-free" in printed
        assert "sesame" not in printed
        client = OpenAI(base_url=url, api_key="open sesame", max_retries=0)
        stream = client.chat.completions.create(
            model="llama",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            max_tokens=1900,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        ends_in_time(server, signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url.removesuffix("/v1") + "/health")


def test_a_signal_while_loading_ends_it_too(checkpoint: Callable[[str], Path]) -> None:
    with process(
        "--model", str(checkpoint("llama")), "--port", "0", "--device", "cpu", "--quantization", "none"
    ) as server:
        server.wait_for("Threads:")
        ends_in_time(server, signal.SIGINT)


def test_two_signals_while_loading_end_it_clean(checkpoint: Callable[[str], Path]) -> None:
    with process(
        "--model", str(checkpoint("llama")), "--port", "0", "--device", "cpu", "--quantization", "none"
    ) as server:
        server.wait_for("Threads:")
        server.send(signal.SIGINT)
        time.sleep(0.01)
        ends_in_time(server, signal.SIGINT)


def test_a_signal_that_python_drops_is_remembered(checkpoint: Callable[[str], Path]) -> None:
    code = """
import os, signal, sys
import backend.server.__main__ as entry
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
def find_model(config, find=entry._find_model):
    Dropped()
    return find(config)
entry._find_model = find_model
sys.exit(entry.main())
"""
    with process(
        "--model", str(checkpoint("llama")), "--port", "0", "--device", "cpu", "--quantization", "none", code=code
    ) as server:
        assert server.end() == 0
    printed = "\n".join(server.lines)
    assert "Exception ignored" in printed
    assert "Serving" not in printed


def test_a_model_that_computes_no_numbers_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(checkpoint("llama"), tmp_path / "broken"))
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with process("--model", str(path), "--port", "0", "--device", "cpu", "--quantization", "none") as server:
        assert server.end() == 2
    assert server.lines[-1].startswith("watchword: the model cannot be used: its first answer failed")
    assert "not finite numbers" in server.lines[-1]
    assert "Traceback" not in "\n".join(server.lines)


def test_a_busy_port_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process("--port", str(port), "--model", "no/such-model") as server:
            assert server.end() == 2
    assert server.lines[-1].startswith(f"watchword: port {port} on 127.0.0.1 is in use")
    assert not any("Loading" in line for line in server.lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "./no-such-directory"), "no-such-directory"),
        (("--prot", "1"), "did you mean --port?"),
        (("--max-num-seqs", "100", "--max-num-batched-tokens", "50"), "--max-num-batched-tokens 50"),
        (("--step-policy", "fifo"), "stall-free, prefill-first"),
        (("--target-itl-ms", "50"), "--step-policy latency-target"),
        (("--step-policy", "latency-target", "--target-itl-ms", "-1"), "--target-itl-ms is -1.0"),
        (
            ("--host", "0.0.0.0"),
            "can be reached from other machines, and no key guards it: set --api-key",
        ),
        (("--host", "::"), "let everybody in with --insecure"),
        (("--allowed-origins", "a.example"), "--allowed-origins holds 'a.example'; each must be an origin such as"),
        (("--allowed-media-domains", "a.example,*"), "--allowed-media-domains holds '*'; each must be a domain"),
        (("--host", "not an address"), "port 0 on not an address cannot be used"),
    ],
)
def test_a_wrong_setting_is_one_line_and_code_2(flags: tuple[str, ...], words: str) -> None:
    with process("--port", "0", *flags) as server:
        assert server.end() == 2
    assert server.lines[-1].startswith("watchword: ")
    assert words in server.lines[-1]
    assert "Traceback" not in "\n".join(server.lines)


def test_a_dead_engine_ends_the_process_with_70(checkpoint: Callable[[str], Path]) -> None:
    code = """
import sys
from backend.runtime.runner import Runner
from backend.server.__main__ import main
warm = Runner.launch
def launch(self, step):
    if any(chunk.request_id.startswith("chatcmpl") for chunk in step.chunks):
        raise RuntimeError("the device is gone")
    return warm(self, step)
Runner.launch = launch
sys.exit(main())
"""
    with process(
        "--model", str(checkpoint("llama")), "--port", "0", "--device", "cpu", "--quantization", "none", code=code
    ) as server:
        url = server.wait_for("Serving llama at ").split()[-1]
        body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(f"{url}/chat/completions", json=body, timeout=30)
        assert reply.status_code == 503
        assert server.end() == 70


def test_a_latency_target_is_measured_at_the_start_and_one_that_cannot_be_met_is_refused(
    checkpoint: Callable[[str], Path],
) -> None:
    flags = (
        "--model",
        str(checkpoint("llama")),
        "--port",
        "0",
        "--device",
        "cpu",
        "--quantization",
        "none",
        "--step-policy",
        "latency-target",
    )
    with process(*flags) as server:
        url = server.wait_for("Serving llama at ").split()[-1]
        printed = "\n".join(server.lines)
        assert "Profile: 8 running at once …" in printed
        assert "ms a token" in printed
        settings = httpx.get(f"{url.removesuffix('/v1')}/engine/config", timeout=30).json()
        assert settings["step_policy"] == "latency-target"
        # Beside other programs no target is set for good: then the policy's own follows its steps.
        is_disturbed = "so serving corrects it" in printed
        assert f"target_itl_ms={None if is_disturbed else settings['target_itl_ms']} " in printed
        assert settings["target_itl_ms"] > 0
    with process(*flags, "--target-itl-ms", "0.1") as server:
        assert server.end() == 2
    assert "--target-itl-ms 0.1 cannot be met: a bare decode step takes" in server.lines[-1]


def test_every_flag_is_explained_with_its_default() -> None:
    with process("--help") as server:
        assert server.end() == 0
    text = " ".join(" ".join(server.lines).split())
    for field in dataclasses.fields(EngineConfig):
        words = f"--{field.name.replace('_', '-')} "
        assert words in text or words.replace("--", "--no-", 1) in text
    assert text.count("(default: ") >= 14


def test_a_real_model_answers_alike_streamed_and_whole(llama: Live) -> None:
    client = llama.openai()
    question: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What do you see?"}],
        "temperature": 0.0,
        "max_tokens": 40,
    }
    whole = client.chat.completions.create(**question, stream=False)
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**question, stream=True)]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(set(pieces)) > 8
    seeded = [
        client.chat.completions.create(**{**question, "temperature": 1.0}, seed=seed).choices[0].message.content
        for seed in (1, 1, 2)
    ]
    assert seeded[0] == seeded[1] != seeded[2]
