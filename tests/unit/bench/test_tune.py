"""`watchword tune`: the sweep, the rule, and that the engine gets its budget back whatever happens."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.unit.bench.conftest import Done
from tests.unit.bench.scripted_llm import Asked, ScriptedLLM, num_prompt_tokens
from ui.bench import plot
from ui.bench.tuning import Choice, Point, check_budgets, choices_of, default_budgets
from ui.errors import UsageError

Command = Callable[..., Done]


def point(budget: int, p99_ms: float, wait_ms: float, *, unanswered: int = 0, partial: bool = False) -> Point:
    figures = {
        "itl_p99_ms": p99_ms,
        "document_ttft_p50_ms": wait_ms,
        "num_documents": 20,
        "num_unanswered": unanswered,
    }
    return Point(budget, figures, partial)


def chosen(*points: Point) -> dict[str, int | None]:
    return {choice.rule: choice.budget for choice in choices_of(points, 10.0)}


def test_the_shortest_wait_within_each_rule_is_recommended() -> None:
    curve = [point(32, 20, 900), point(64, 45, 500), point(128, 60, 300), point(256, 240, 200), point(512, 400, 150)]
    assert chosen(*curve) == {"strict": 64, "relaxed": 256}
    assert [choice.bound_ms for choice in choices_of(curve, 10.0)] == [50.0, 250.0]


def test_of_budgets_that_are_alike_the_smallest() -> None:
    assert chosen(point(32, 20, 520), point(64, 30, 504), point(128, 40, 500)) == {"strict": 32, "relaxed": 32}


def test_a_budget_that_does_not_keep_up_is_not_recommended() -> None:
    assert chosen(point(32, 20, 100, unanswered=6), point(64, 40, 500))["strict"] == 64
    (strict, _) = choices_of([point(32, 20, 100, unanswered=6)], 10.0)
    assert strict.budget is None
    assert "lower --rate" in strict.why


def test_what_nothing_keeps_is_said() -> None:
    strict, relaxed = choices_of([point(32, 80, 100), point(64, 90, 50)], 10.0)
    assert strict == Choice("strict", 50.0, None, "none keeps it; budget 32 comes closest at 80 ms")
    assert relaxed.budget == 64


def test_an_unfinished_point_is_never_recommended() -> None:
    assert chosen(point(32, 20, 900), point(64, 20, 10, partial=True))["strict"] == 32
    assert chosen(point(64, 20, 10, partial=True)) == {"strict": None, "relaxed": None}
    assert choices_of([point(32, 20, 900)], None) == []


def test_budgets_to_try() -> None:
    settings = {"max_num_seqs": 32, "hard_num_batched_tokens": 1024}
    assert default_budgets(settings) == (32, 64, 128, 256, 512, 1024)
    check_budgets((32, 1024), settings)
    with pytest.raises(UsageError, match="16 is less than the engine's --max-num-seqs 32"):
        check_budgets((64, 16), settings)
    with pytest.raises(UsageError, match="2048 is more than the 1024 tokens"):
        check_budgets((64, 2048), settings)


LOAD = ("--chats", 1, "--duration", 0.5, "--rate", 10)


def test_the_sweep_end_to_end(command: Command, tmp_path: Path) -> None:
    report_file, picture = tmp_path / "report.json", tmp_path / "curve.png"
    with ScriptedLLM(is_ours=True, budget=100) as server:
        done = command(
            "tune", "--base-url", server.url, *LOAD, "--budgets", "16,64", "--runs", 2, "--json", report_file,
            "--png", picture,
        )  # fmt: skip
    assert done.status == 0, done.err
    assert server.budgets == [16, 64, 16, 64, 100]
    report = json.loads(report_file.read_text())
    assert [point["max_num_batched_tokens"] for point in report["points"]] == [16, 64]
    assert report["bare_decode_step_ms"] == 2.0  # as the server says
    assert [(choice["rule"], choice["bound_ms"]) for choice in report["choices"]] == [("strict", 10), ("relaxed", 50)]
    for point in report["points"]:
        assert point["num_documents"] >= 1
        assert point["itl_p99_ms"] >= point["itl_p50_ms"] >= 1.9
        assert point["tokens_per_s"] > 0
        assert point["prompt_tokens_per_s"] > 0
    assert "a bare decode step takes 2.0 ms" in done.err
    assert "strict (p99 within 10 ms)" in done.err
    assert Image.open(picture).width > 800


def test_every_budget_gets_the_same_load(command: Command) -> None:
    asked: dict[int, list[tuple[int, int]]] = {}
    with ScriptedLLM(is_ours=True, gap_s=0.001) as server:

        def note(one: Asked) -> None:
            if num_prompt_tokens(one) > 300:  # documents: how many chats fit depends on the machine
                asked.setdefault(server.budget, []).append((num_prompt_tokens(one), one.body["max_tokens"]))

        server.on_ask = note
        assert command("tune", "--base-url", server.url, *LOAD, "--budgets", "16,32").status == 0
    common = min(map(len, asked.values()))
    assert common >= 1
    assert asked[16][:common] == asked[32][:common]


def test_ctrl_c_restores_the_budget_and_keeps_the_points(command: Command) -> None:
    with ScriptedLLM(is_ours=True, budget=100) as server:
        at_second: list[Asked] = []

        def interrupt(one: Asked) -> None:
            if server.budget == 32:
                at_second.append(one)
                if len(at_second) == 2:
                    os.kill(os.getpid(), signal.SIGINT)

        server.on_ask = interrupt
        done = command("tune", "--base-url", server.url, *LOAD, "--budgets", "16,32,64")
    assert done.status == 2
    assert server.budgets == [16, 32, 100]
    assert "interrupted" in done.last_line
    assert done.report["partial"] is True
    assert (done.report["points"][0]["max_num_batched_tokens"], done.report["points"][0]["partial"]) == (16, False)


def test_an_error_restores_the_budget_and_keeps_the_points(command: Command) -> None:
    with ScriptedLLM(is_ours=True, budget=100, refuses_budget=32) as server:
        done = command("tune", "--base-url", server.url, *LOAD, "--budgets", "16,32")
    assert done.status == 2
    assert server.budgets == [16, 100]
    assert "32 is not to my taste" in done.last_line
    assert [p["max_num_batched_tokens"] for p in done.report["points"]] == [16]


def test_a_server_that_dies_is_told_that_its_budget_stayed(command: Command) -> None:
    with ScriptedLLM(is_ours=True, budget=100) as server:
        server.on_ask = lambda _: server.stop() if server.budget == 16 else None
        done = command("tune", "--base-url", server.url, *LOAD, "--budgets", "16,32")
    assert done.status == 2
    assert "could not be set back to 100" in done.err
    assert "requests in a row failed" in done.last_line


def test_another_server_cannot_be_tuned(command: Command) -> None:
    with ScriptedLLM() as server:
        done = command("tune", "--base-url", server.url)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "is another server" in line
    assert "watchword serve" in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--budgets", "4"], "4 is less than the engine's --max-num-seqs 8"),
        (["--budgets", "9999"], "9999 is more than the 512 tokens"),
        (["--budgets", "many"], "--budgets many"),
        (["--mix", "novels"], "--mix novels"),
        (["--duration", "0"], "--duration"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(command: Command, argv: list[str], words: str) -> None:
    with ScriptedLLM(is_ours=True) as server:
        done = command("tune", "--base-url", server.url, *argv)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert words in line
    assert server.budgets in ([], [64])


def test_the_curve_is_of_whole_budgets_and_its_numbers_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "_save", lambda figure, path: figures.append(figure))
    names = ("itl_p99_ms", "itl_p50_ms", "document_ttft_p50_ms", "ttft_p50_ms", "prompt_tokens_per_s")
    points = [Point(budget, dict.fromkeys(names, 6.0 * budget), partial=budget == 64) for budget in (16, 32, 64)]
    plot.draw_curve(points, [], Path("curve.png"), "some model")
    (figure,) = figures
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["16", "32"]
    for axes in figure.axes:
        labels = [label.get_text() for minor in (False, True) for label in axes.get_yticklabels(minor=minor)]
        assert {"100", "200"} <= set(labels)
        assert all(label.isdigit() for label in labels if label)
    plot.draw_curve(points[2:], [], Path("curve.png"), "nothing whole: better that than an empty picture")
    assert [label.get_text() for label in figures[1].axes[-1].get_xticklabels()] == ["64"]
