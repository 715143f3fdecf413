"""How requests follow one another, the lengths they have, and the frames they bring."""

from __future__ import annotations

import asyncio
import base64
import io
import statistics
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from ui.bench.endpoint import AskError
from ui.bench.frames import MARK_SIDE, FrameSource, check_image, default_image, parse_size
from ui.bench.lengths import MIXES, Lengths, Spread, Wording
from ui.bench.load import MAX_FAILURES, EndpointLost, closed_loop, open_loop, poisson
from ui.bench.recorder import Kind, Recording
from ui.bench.scenario import Load, Scenario, phases_of
from ui.errors import UsageError


def answered() -> Recording:
    return Recording(Kind.CHAT, 0, 0.0)


def test_arrivals_have_exponential_gaps_and_follow_the_seed() -> None:
    times = list(islice(poisson(4.0, Random(1)), 4000))
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.1)  # as the mean: exponential, not regular
    assert times == list(islice(poisson(4.0, Random(1)), 4000))
    assert times != list(islice(poisson(4.0, Random(2)), 4000))


async def test_open_loop_does_not_wait_for_answers_and_cuts_them_at_the_end() -> None:
    begun: list[int] = []
    cut: list[int] = []

    async def ask(number: int) -> Recording:
        begun.append(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append(number)
            raise
        return answered()

    loading = asyncio.create_task(open_loop(ask, iter([0.0, 0.01, 0.02, 0.03, 3600.0])))
    async with asyncio.timeout(10):
        while len(begun) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert cut == []
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert sorted(cut) == [0, 1, 2, 3]


async def test_open_loop_goes_on_after_a_refusal() -> None:
    begun: list[int] = []

    async def ask(number: int) -> Recording:
        begun.append(number)
        raise AskError("no")

    loading = asyncio.create_task(open_loop(ask, iter([0.0, 0.0, 0.01, 3600.0])))
    async with asyncio.timeout(10):
        while len(begun) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert not loading.done()
    loading.cancel()


async def test_closed_loop_asks_again_only_when_answered() -> None:
    running = most = 0

    async def ask(_: int) -> Recording:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return answered()

    turns = iter([True] * 5 + [False])
    await closed_loop(ask, lambda: next(turns))
    assert most == 1


async def test_closed_loop_gives_up_after_failures_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.bench.load.PAUSE_S", 0.0)
    asked: list[int] = []

    async def ask(number: int) -> Recording:
        asked.append(number)
        if number == 2:
            return answered()
        raise AskError("status 500, out of order")

    with pytest.raises(EndpointLost, match=r"5 requests in a row failed; the last one: status 500, out of order"):
        await closed_loop(ask, lambda: True)
    assert len(asked) == 3 + MAX_FAILURES


@pytest.mark.parametrize("name", sorted(MIXES))
def test_mixes_have_their_median_and_p90(name: str) -> None:
    for spread in (MIXES[name].prompt, MIXES[name].answer):
        rng = Random(3)
        drawn = sorted(spread.draw(rng) for _ in range(4000))
        assert drawn[2000] == pytest.approx(spread.median, rel=0.08)
        assert drawn[3600] == pytest.approx(spread.p90, rel=0.1)
        assert spread.least <= drawn[0] <= drawn[-1] <= 4 * spread.p90


def test_lengths_follow_the_seed() -> None:
    def drawn(seed: int) -> list[Lengths]:
        rng = Random(seed)
        return [MIXES["rag"].draw(rng) for _ in range(10)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert Spread(10, 10).draw(Random(0)) == 10


@pytest.mark.parametrize(
    ("lengths", "fits"),
    [
        (Lengths(100, 50), Lengths(100, 50)),
        (Lengths(100, 5000), Lengths(100, 831)),
        (Lengths(5000, 50), Lengths(881, 50)),
        (Lengths(5000, 5000), Lengths(699, 232)),
    ],
)
def test_lengths_are_cut_to_the_context(lengths: Lengths, fits: Lengths) -> None:
    assert lengths.within(1010) == fits
    assert fits.prompt + fits.answer <= 1010 - 16
    assert lengths.within(None) == lengths


def test_wording_fills_a_prompt_to_its_length() -> None:
    wording = Wording(tokens_per_word=2.0, overhead=10)
    assert len(wording.fill(110, Random(0)).split()) == 50
    assert wording.fill(5, Random(0)) == ""
    assert wording.at_least(Lengths(3, 7)) == Lengths(10, 7)


def pixels(url: str) -> Image.Image:
    head, _, data = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def test_no_two_frames_are_equal_and_all_have_the_size() -> None:
    cameras = [FrameSource(default_image(), (96, 64), seed=f"0/{n}", salt="s") for n in range(2)]
    frames = [pixels(camera.next()) for camera in cameras for _ in range(10)]
    assert {frame.size for frame in frames} == {(96, 64)}
    assert len({frame.tobytes() for frame in frames}) == 20


def test_even_a_single_colour_gives_unlike_frames(tmp_path: Path) -> None:
    Image.new("L", (40, 40), 128).save(tmp_path / "grey.png")
    source = FrameSource(tmp_path / "grey.png", (32, 32), seed="0", salt="s")
    assert len({pixels(source.next()).tobytes() for _ in range(20)}) == 20


def test_a_seed_repeats_the_crops_and_a_new_salt_marks_them() -> None:
    def below_the_mark(frame: Image.Image) -> bytes:
        # JPEG works in blocks, so the mark changes nothing outside its own but for the blur of colours at the border.
        return frame.crop((0, MARK_SIDE + 2, frame.width, frame.height)).tobytes()

    one, again, salted, other = (
        pixels(FrameSource(default_image(), (64, 64), seed=seed, salt=salt).next())
        for seed, salt in (("1", "a"), ("1", "a"), ("1", "b"), ("2", "a"))
    )
    assert one.tobytes() == again.tobytes()
    assert one.tobytes() != salted.tobytes()
    assert below_the_mark(one) == below_the_mark(salted) != below_the_mark(other)


@pytest.mark.parametrize("text", ["512", "512x", "x512", "8x512", "0x0", "-1x5", "axb", "512x512x3"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="--size"):
        parse_size(text)


def test_sizes() -> None:
    assert parse_size(" 640X480 ") == (640, 480)


def test_an_image_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(UsageError, match="no picture that can be read"):
        check_image(tmp_path / "a.jpg")
    with pytest.raises(UsageError, match="no such file"):
        check_image(tmp_path / "b.jpg")


def test_phases_of_the_scenarios() -> None:
    load = Load(chats=(1, 2), cameras=(1, 4))

    def told(scenario: Scenario) -> list[tuple[str, int, int, float]]:
        return [(p.name, p.chats, p.cameras, p.rate) for p in phases_of(scenario, load)]

    assert told(Scenario.CHAT) == [("1 chat", 1, 0, 0.0), ("2 chats", 2, 0, 0.0)]
    assert told(Scenario.CAMERA) == [("1 camera", 0, 1, 0.0), ("4 cameras", 0, 4, 0.0)]
    assert told(Scenario.CHAT_UNDER_CAMERA) == [
        ("1 chat, quiet", 1, 0, 0.0),
        ("1 chat, 1 camera", 1, 1, 0.0),
        ("1 chat, 4 cameras", 1, 4, 0.0),
        ("2 chats, quiet", 2, 0, 0.0),
        ("2 chats, 1 camera", 2, 1, 0.0),
        ("2 chats, 4 cameras", 2, 4, 0.0),
    ]
    assert told(Scenario.RAG)[:2] == [("1 chat, quiet", 1, 0, 0.0), ("1 chat, 0.25 rag/s", 1, 0, 0.25)]
    assert all(p.tokens or p.duration_s for s in Scenario for p in phases_of(s, load))


def test_two_chats_of_the_default_length_have_more_than_a_thousand_gaps() -> None:
    quiet, camera = phases_of(Scenario.CHAT_UNDER_CAMERA, Load())
    for phase in (quiet, camera):
        assert phase.tokens is not None
        assert phase.chats * (phase.tokens - 1) > 1000
        assert phase.chat_lengths.draw(Random(0)).answer == phase.tokens  # one answer: no prefill in between
