"""`watchword bench` against a scripted server: what it asks, what it reports, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.unit.bench.conftest import Done
from tests.unit.bench.scripted_llm import Asked, ScriptedLLM, num_prompt_tokens

Command = Callable[..., Done]

SMALL = ("--size", "32x32", "--runs", "1")
NUM_WARM_UPS = 2


def interrupt_at(number: int) -> Callable[[Asked], None]:
    """A Ctrl-C when the server is asked for the `number`th time."""
    left = [number]

    def on_ask(_: Asked) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    return on_ask


def phases(report: dict) -> dict[str, dict]:
    return {phase["phase"]: phase for phase in report["phases"]}


def test_chat_under_camera_end_to_end(command: Command, tmp_path: Path) -> None:
    with ScriptedLLM(gap_s=0.01, encode_s=0.03, is_ours=True) as server:
        picture = tmp_path / "gaps.png"
        done = command(
            "bench", "--base-url", server.url, *SMALL, "--tokens", 20, "--cameras", "1,2", "--caption-tokens", 3,
            "--png", picture,
        )  # fmt: skip
    assert done.status == 0, done.err
    report = done.report
    assert (report["scenario"], report["partial"], report["server"]["model"]) == (
        "chat-under-camera",
        False,
        "scripted",
    )
    assert report["server"]["engine"]["max_num_batched_tokens"] == 64
    quiet, one, two = (phases(report)[name] for name in ("quiet", "1 camera", "2 cameras"))
    for phase in (quiet, one, two):
        assert phase["num_gaps"] == 2 * 19
        assert phase["itl_p50_ms"] >= 9.5  # the server never sends faster; how much slower depends on the machine
        assert phase["num_failed"] == 0
    assert quiet["num_captions"] is None
    assert one["num_captions"] >= 1
    assert one["caption_ttft_p50_ms"] >= 29
    assert one["stall_max"] == pytest.approx(one["itl_max_ms"] / quiet["itl_p50_ms"], rel=1e-3)
    assert one["num_slices"] >= 1
    assert quiet["bare_decode_step_ms"] == 2.0  # as the server says, whatever the clock here
    assert Image.open(picture).width > 1000
    assert "2 cameras" in done.err  # a row each
    assert "p99 /" in done.err


def test_cameras_send_unlike_frames_in_the_background_and_chats_do_not(command: Command) -> None:
    with ScriptedLLM() as server:
        assert command("bench", "camera", "--base-url", server.url, *SMALL, "--duration", 0.3).status == 0
        frames = server.frames
    urls = [asked.content[0]["image_url"]["url"] for asked in frames]
    assert len(urls) > 3
    assert len(set(urls)) == len(urls)
    assert {asked.headers.get("x-request-class") for asked in frames} == {"background"}
    assert {asked.headers.get("x-request-class") for asked in server.chats} == {None}
    assert all(asked.body["ignore_eos"] and asked.body["temperature"] == 0 for asked in frames)
    assert all("X-Request-Class" not in asked.body for asked in frames)


def test_a_seed_repeats_the_load_but_no_prompt(command: Command) -> None:
    asked: list[list[Asked]] = []
    for seed in (7, 7, 8):
        with ScriptedLLM(gap_s=0.0) as server:
            assert (
                command(
                    "bench", "chat", "--base-url", server.url, *SMALL, "--chats", 1, "--tokens", 400, "--seed", seed
                )
            ).status == 0
            asked.append(server.chats[NUM_WARM_UPS:])
    lengths = [[(num_prompt_tokens(a), a.body["max_tokens"]) for a in one] for one in asked]
    assert lengths[0] == lengths[1] != lengths[2]
    assert len(lengths[0]) > 1
    texts = [a.content for one in asked[:2] for a in one]
    assert len({text.split()[0] for text in texts}) == len(texts)  # no common beginning for a prefix cache to find


def test_prompts_have_the_length_that_was_meant(command: Command) -> None:
    """The server counts two tokens a word and ten beside; the bench finds that out."""
    with ScriptedLLM(gap_s=0.0) as server:
        done = command("bench", "prefill", "--base-url", server.url, *SMALL, "--chats", 1)
    assert done.status == 0, done.err
    (phase,) = done.report["phases"]
    assert phase["prompt_tokens"] == pytest.approx(256, abs=3)
    assert phase["prefill_tokens_per_s"] > 0


def test_rag_documents_arrive_without_waiting_for_answers(command: Command) -> None:
    with ScriptedLLM(gap_s=0.005, ttft_s=0.3) as server:
        done = command(
            "bench", "rag", "--base-url", server.url, *SMALL, "--chats", 1, "--duration", 0.8, "--rate", 20,
        )  # fmt: skip
        documents = [asked for asked in server.chats[NUM_WARM_UPS:] if num_prompt_tokens(asked) > 400]
    assert done.status == 0, done.err
    quiet, rag = done.report["phases"]
    assert quiet["num_documents"] is None
    assert rag["num_documents"] >= 6
    # An answer takes at least 0.3 s; at 20 a second several are on their way when the next one arrives.
    assert max(asked.beside for asked in documents) >= 3
    assert all(asked.body["max_tokens"] + num_prompt_tokens(asked) <= 4096 for asked in server.chats)


def test_the_median_of_the_runs(command: Command, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    with ScriptedLLM() as server:
        done = command(
            "bench", "chat", "--base-url", server.url, "--runs", 3, "--tokens", 30, "--chats", "1,2",
            "--json", report_file,
        )  # fmt: skip
    assert done.status == 0
    assert done.out == ""
    one, two = json.loads(report_file.read_text())["phases"]
    assert (one["chats"], two["chats"], one["num_runs"]) == (1, 2, 3)
    assert one["itl_p50_ms"] == pytest.approx(sorted(run["itl_p50_ms"] for run in one["runs"])[1])


def test_ignore_eos_is_dropped_where_it_is_refused_and_that_is_said_once(command: Command) -> None:
    with ScriptedLLM(refuses_ignore_eos=True, eos_after=7) as server:
        done = command("bench", "chat", "--base-url", server.url, *SMALL, "--tokens", 40)
        answered = [asked for asked in server.chats if "ignore_eos" not in asked.body]
        refused = [asked for asked in server.chats if "ignore_eos" in asked.body]
    assert done.status == 0, done.err
    assert done.err.count("refuses ignore_eos") == 1
    assert len(refused) == 1
    assert len(answered) > 2 * (40 // 7)  # answers end early, so the chats ask again until they have their tokens
    (phase,) = done.report["phases"]
    assert done.report["server"]["ignore_eos"] is False
    assert phase["tokens_per_s"] * phase["wall_s"] == pytest.approx(80, abs=0.5)


def test_ratios_beside_an_earlier_report(command: Command, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    with ScriptedLLM() as server:
        load = ("bench", "chat", "--base-url", server.url, *SMALL, "--tokens", 10)
        assert command(*load, "--json", earlier).status == 0
        done = command(*load, "--against", earlier)
    assert done.status == 0
    assert "divided by scripted" in done.err


def test_ctrl_c_keeps_what_was_measured(command: Command, tmp_path: Path) -> None:
    report_file, picture = tmp_path / "report.json", tmp_path / "gaps.png"
    # Asked: 2 warm-ups and a frame, 2 chats of the quiet phase, then the camera and again 2 chats.
    with ScriptedLLM(gap_s=0.005, on_ask=interrupt_at(8)) as server:
        done = command(
            "bench", "--base-url", server.url, *SMALL, "--tokens", 30, "--caption-tokens", 100,
            "--json", report_file, "--png", picture,
        )  # fmt: skip
    assert done.status == 2
    assert done.last_line == (
        f"watchword: interrupted; what was measured until then is in {report_file}, marked partial"
    )
    report = json.loads(report_file.read_text())
    assert report["partial"] is True
    assert phases(report)["quiet"]["num_gaps"] == 2 * 29
    assert phases(report)["1 camera"]["runs"][0]["partial"] is True
    assert picture.exists()


def test_ctrl_c_before_anything_was_measured(command: Command, tmp_path: Path) -> None:
    with ScriptedLLM(gap_s=0.2, on_ask=interrupt_at(1)) as server:
        done = command("bench", "--base-url", server.url, *SMALL, "--json", tmp_path / "r.json")
    assert done.status == 2
    assert done.err == "watchword: interrupted before anything was measured\n"
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_dies_leaves_a_partial_report(command: Command) -> None:
    with ScriptedLLM(gap_s=0.002) as server:
        left = [7]

        def die(_: Asked) -> None:
            left[0] -= 1
            if left[0] == 0:
                server.stop()

        server.on_ask = die
        done = command("bench", "chat", "--base-url", server.url, *SMALL, "--tokens", 2000)
    assert done.status == 2
    assert "requests in a row failed" in done.last_line
    assert "no connection" in done.last_line
    assert "marked partial" in done.last_line
    (phase,) = done.report["phases"]
    assert done.report["partial"] is True
    assert phase["num_gaps"] > 0
    assert phase["num_failed"] >= 5


def one_line(done: Done) -> str:
    assert done.status == 2
    assert done.out == ""
    (line,) = done.err.splitlines()
    return line


def test_nobody_listens(command: Command) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://me:hunter2@127.0.0.1:{free.getsockname()[1]}/v1"
        line = one_line(command("bench", "--base-url", url))
    assert "cannot reach" in line
    assert "--base-url" in line
    assert "hunter2" not in line


def test_a_web_page_is_no_server(command: Command) -> None:
    with ScriptedLLM(html=True) as server:
        assert "does not speak the OpenAI API" in one_line(command("bench", "--base-url", server.url))


def test_a_server_that_loads_its_model_is_named_as_such(command: Command) -> None:
    with ScriptedLLM(is_loading=True) as server:
        line = one_line(command("bench", "--base-url", server.url))
    assert "cannot be measured now: status 503, the model is being loaded; ask again in a moment" in line
    assert "OpenAI" not in line


def test_a_path_without_the_api(command: Command) -> None:
    with ScriptedLLM() as server:
        line = one_line(command("bench", "--base-url", server.url.removesuffix("/v1")))
    assert "answered 404" in line
    assert "/v1" in line


def test_a_key_is_asked_for_and_a_wrong_one_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedLLM(api_key="sesame") as server:
        bench = ("bench", "chat", "--base-url", server.url, *SMALL, "--tokens", 3)
        assert "asks for an API key: name it with --api-key" in one_line(command(*bench))
        line = one_line(command(*bench, "--api-key", "simsalabim"))
        assert "does not take the API key" in line
        assert "simsalabim" not in line
        monkeypatch.setenv("WATCHWORD_API_KEY", "sesame")
        assert command(*bench).status == 0


def test_a_model_without_eyes(command: Command) -> None:
    with ScriptedLLM(refuses=lambda asked: (400, "this model takes no images") if asked.is_camera else None) as server:
        line = one_line(command("bench", "--base-url", server.url, *SMALL))
    assert "does not describe a picture: status 400, this model takes no images" in line


def test_answers_that_break_off_are_failures(command: Command) -> None:
    with ScriptedLLM(breaks=True) as server:
        line = one_line(command("bench", "chat", "--base-url", server.url, *SMALL))
    assert "does not answer a chat: the answer broke off" in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--base-url", "nonsense"], "nonsense is no HTTP address"),
        (["--size", "big"], "--size big"),
        (["--cameras", "1,1"], "--cameras 1,1"),
        (["--cameras", "0"], "--cameras 0"),
        (["--chats", "two"], "--chats two"),
        (["--mix", "novels"], "--mix novels: it is one of chat, rag, openchat, arxiv"),
        (["--image", "nowhere.jpg"], "--image nowhere.jpg: no such file"),
        (["--json", "nowhere/r.json"], "there is no folder"),
        (["--png", "."], "is a folder"),
        (["--against", "nowhere.json"], "--against nowhere.json: no such file"),
        (["--runs", "0"], "--runs"),
        (["dance"], "dance"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(command: Command, argv: list[str], words: str) -> None:
    assert words in one_line(command("bench", *argv))


def test_a_report_that_cannot_be_written_goes_to_standard_output(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "r.json"
    target.parent.mkdir()
    with ScriptedLLM(on_ask=lambda _: target.parent.rmdir() if target.parent.exists() else None) as server:
        done = command("bench", "chat", "--base-url", server.url, *SMALL, "--tokens", 3, "--json", target)
    assert done.status == 2
    assert "went to standard output instead" in done.last_line
    assert done.report["phases"]
