"""Figures against hand-made recordings: percentiles, windows, ratios, medians of runs."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from tests.unit.bench.made import measured, recording, unanswered
from ui.bench.engine import EngineStep
from ui.bench.recorder import Kind, Outcome, Recording
from ui.bench.report import figures_of, percentile, phase_reports
from ui.bench.table import ratios


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("size", [1, 2, 3, 100, 1001])
def test_percentiles_are_numpys(share: float, size: int) -> None:
    rng = Random(size)
    values = [rng.expovariate(1.0) for _ in range(size)]
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


def test_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None


def test_a_chunk_without_content_is_no_token() -> None:
    rec = Recording(Kind.CHAT, 0, 1.0)
    for content, now in ((None, 1.1), ("", 1.2), ("a", 1.5), ("", 1.6), ("b", 2.0)):
        rec.take(content, now)
    assert rec.ttft == pytest.approx(0.5)
    assert rec.gaps == pytest.approx([0.5])


def test_figures_of_chats() -> None:
    gaps = [0.010] * 98 + [0.030, 0.200]
    figures = figures_of(
        measured("quiet", [recording(0.0, 0.5, gaps, prompt_tokens=60), recording(1.0, 1.5, [], prompt_tokens=40)])
    )
    assert figures["num_gaps"] == 100
    assert figures["itl_p50_ms"] == pytest.approx(10.0)
    assert figures["itl_p99_ms"] == pytest.approx(30.0 + 0.01 * 170.0)
    assert figures["itl_max_ms"] == pytest.approx(200.0)
    assert figures["ttft_p50_ms"] == pytest.approx(1000.0)
    assert figures["tokens_per_s"] == pytest.approx(102 / 10.0)
    assert figures["prompt_tokens_per_s"] == pytest.approx(10.0)
    assert figures["captions_per_s"] is None


def test_gaps_between_two_answers_do_not_count() -> None:
    figures = figures_of(measured("quiet", [recording(0.0, 0.1, [0.02]), recording(5.0, 0.1, [0.02])]))
    assert figures["num_gaps"] == 2
    assert figures["itl_max_ms"] == pytest.approx(20.0)


def test_a_server_that_sends_several_tokens_per_chunk_is_told_by_its_own_count() -> None:
    figures = figures_of(measured("quiet", [recording(0.0, 0.1, [0.02] * 9, completion_tokens=20)]))
    assert figures["tokens_per_chunk"] == 2.0
    assert figures["tokens_per_s"] == 2.0


def test_captions_count_when_they_end_within_the_window() -> None:
    captions = [
        recording(-2.0, 0.5, [0.1], kind=Kind.CAMERA),  # over before the chats began
        recording(-1.0, 2.0, [1.0], kind=Kind.CAMERA),
        recording(2.0, 3.0, [1.0], kind=Kind.CAMERA),
        recording(6.0, 5.0, [1.0], kind=Kind.CAMERA),  # waited for, but after the end
        unanswered(9.0, kind=Kind.CAMERA),
    ]
    figures = figures_of(measured("camera", captions, cameras=1))
    assert figures["num_captions"] == 2
    assert figures["captions_per_s"] == pytest.approx(0.2)
    assert figures["caption_ttft_p50_ms"] == pytest.approx(2500.0)
    assert figures["caption_e2e_p50_ms"] == pytest.approx(3500.0)


def test_a_document_without_a_word_counts_with_the_time_it_waited() -> None:
    documents = [
        recording(0.0, 1.0, kind=Kind.DOCUMENT),
        unanswered(4.0),
        unanswered(5.0, outcome=Outcome.FAILED),
    ]
    figures = figures_of(measured("rag", documents, rate=1.0))
    assert (figures["num_documents"], figures["num_unanswered"], figures["num_failed"]) == (2, 1, 1)
    assert figures["document_ttft_p50_ms"] == pytest.approx((1000.0 + 6000.0) / 2)


def test_steps_within_the_window_are_told_apart() -> None:
    one = measured("camera", [recording(0.0, 0.1, [0.1])])
    one.steps = [
        EngineStep(-1.0, 500.0, 2, 0, 0),
        EngineStep(1.0, 10.0, 2, 0, 0),
        EngineStep(2.0, 12.0, 2, 0, 0),
        EngineStep(3.0, 40.0, 2, 64, 0),
        EngineStep(4.0, 30.0, 2, 0, 3),
    ]
    figures = figures_of(one)
    assert figures["num_steps"] == 4
    assert figures["bare_decode_step_ms"] == pytest.approx(11.0)
    assert figures["slice_step_p50_ms"] == pytest.approx(30.0)
    assert figures["num_slices"] == 3


def one_run(run: int, quiet_gap: float, camera_gaps: list[float], *, whole: bool = True) -> list:
    quiet = measured("quiet", [recording(0.0, 0.1, [quiet_gap] * 20)], run=run, tokens=21)
    camera = measured(
        "1 camera",
        [recording(0.0, 0.1, camera_gaps), recording(0.0, 1.0, [1.0], kind=Kind.CAMERA)],
        run=run,
        cameras=1,
        end=10.0 if whole else None,
    )
    return [quiet, camera]


def test_ratios_are_to_the_quiet_phase_of_the_same_run_and_medians_of_the_runs() -> None:
    runs = one_run(1, 0.010, [0.02, 0.03]) + one_run(2, 0.020, [0.02, 0.20]) + one_run(3, 0.010, [0.02, 0.05])
    quiet, camera = phase_reports(runs)
    assert [run["stall_max"] for run in camera["runs"]] == pytest.approx([3.0, 10.0, 5.0])
    assert camera["stall_max"] == pytest.approx(5.0)
    assert camera["itl_max_ms"] == pytest.approx(50.0)
    assert camera["tokens_kept"] == pytest.approx(3 / 21, abs=1e-3)
    assert quiet["stall_max"] == pytest.approx(1.0)
    assert (camera["num_runs"], camera["chats"], camera["cameras"]) == (3, 1, 1)
    json.dumps([quiet, camera], allow_nan=False)


def test_phases_of_other_numbers_of_chats_are_not_the_quiet_one() -> None:
    one = measured("1 chat, quiet", [recording(0.0, 0.1, [0.01] * 5)], chats=1)
    two = measured("2 chats, quiet", [recording(0.0, 0.1, [0.02] * 5)], chats=2)
    camera = measured("2 chats, 1 camera", [recording(0.0, 0.1, [0.06] * 5)], chats=2, cameras=1)
    assert phase_reports([one, two, camera])[2]["stall_max"] == pytest.approx(3.0)


def test_an_unfinished_run_is_kept_but_stays_out_of_the_median() -> None:
    runs = one_run(1, 0.010, [0.03]) + one_run(2, 0.010, [0.50], whole=False)
    camera = phase_reports(runs)[1]
    assert camera["num_runs"] == 1
    assert camera["stall_max"] == pytest.approx(3.0)
    assert [run["partial"] for run in camera["runs"]] == [False, True]
    alone = phase_reports(one_run(1, 0.010, [0.50], whole=False))[1]
    assert alone["num_runs"] == 0
    assert alone["itl_max_ms"] == pytest.approx(500.0)  # better than nothing


def test_failures_are_counted_with_the_first_reason() -> None:
    failed = Recording(Kind.CHAT, 0, 1.0)
    failed.end(Outcome.FAILED, 1.5, "status 500, no")
    report = phase_reports([measured("quiet", [failed, recording(2.0, 0.1, [0.1])])])[0]
    assert report["num_failed"] == 1
    assert report["first_error"] == "status 500, no"


def test_a_report_beside_another_one() -> None:
    ours = {"phases": phase_reports(one_run(1, 0.010, [0.03]))}
    theirs = {"phases": phase_reports(one_run(1, 0.040, [3.00]))}
    (_, quiet), (name, camera) = ratios(ours, theirs)
    assert name == "1 camera"
    assert quiet["itl_p50_ms"] == pytest.approx(0.25)
    assert camera["itl_max_ms"] == pytest.approx(0.01)
    assert camera["stall_max"] == pytest.approx(30 / 40)  # against the other's quiet p50
    assert camera["captions_per_s"] == pytest.approx(1.0)
