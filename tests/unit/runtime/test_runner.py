"""Steps executed one by one: images advanced, failed, evicted; requests that fail alone."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from unittest.mock import Mock

import pytest
import torch

from backend.runtime import flight
from backend.runtime.download import Download
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.kv_pool import KvPool
from backend.runtime.runner import Runner, build_runner
from backend.runtime.text_backend import make_text
from backend.types.request import ImageInput, SamplingParams
from backend.types.result import StepResult
from backend.types.step import Chunk, EmbedSlice, EncodeSlice, Step
from tests.unit.runtime.toy import ToyAdapter, image, rows

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@pytest.fixture
def adapter() -> ToyAdapter:
    return ToyAdapter()


@pytest.fixture
def runner(adapter: ToyAdapter) -> Runner:
    return build_runner(adapter, num_blocks=8, block_size=4)


def chunk(request_id: str, *token_ids: int, embeds: tuple[EmbedSlice, ...] = ()) -> Chunk:
    positions = (range(len(token_ids)),)
    return Chunk(request_id, 0, token_ids, positions, (0, 1), embeds, True, 0, GREEDY, is_decode=False)


def encode(runner: Runner, picture: ImageInput, first: int, num: int) -> StepResult:
    return runner.execute(Step(0, (), (EncodeSlice(picture, first, num),)))


def test_a_step_samples_where_it_is_told(runner: Runner) -> None:
    quiet = Chunk("quiet", 0, (1, 2), (range(2),), (2,), (), False, 0, GREEDY, is_decode=False)
    result = runner.execute(Step(7, (chunk("a", 3, 4), quiet, chunk("b", 9))))
    assert result == StepResult(7, {"a": (5,), "b": (10,)})


def test_an_empty_step_is_an_empty_result(runner: Runner) -> None:
    assert runner.execute(Step(3, ())) == StepResult(3, {})


def test_an_image_is_encoded_in_slices_and_its_rows_replace_placeholders(runner: Runner, adapter: ToyAdapter) -> None:
    picture = image("k", 3, [None, None, None, None, rows(6, 7, 8)])
    for first, num in ((0, 1), (1, 2), (3, 1)):
        assert encode(runner, picture, first, num) == StepResult(0, {})
        assert adapter.num_resumed == first + num
    result = runner.execute(Step(1, (chunk("a", 15, 15, embeds=(EmbedSlice("k", 1, 0, 2),)),)))
    assert result.sampled == {"a": (9,)}, "the last token stands on the image's third row"


def test_an_encoder_error_fails_its_image_alone(runner: Runner) -> None:
    bad = image("bad", 1, [None, RuntimeError("out of\nluck"), rows(1)])
    good = image("good", 1, [None, rows(4)])
    step = Step(1, (chunk("text", 1),), (EncodeSlice(bad, 0, 2), EncodeSlice(good, 0, 1)))
    result = runner.execute(step)
    assert result.sampled == {"text": (2,)}
    assert result.failed_images == {"bad": "the vision encoder failed: RuntimeError: out of"}
    after = runner.execute(Step(2, (chunk("a", 15, embeds=(EmbedSlice("good", 0, 0, 1),)),)))
    assert after.sampled == {"a": (5,)}


@pytest.mark.parametrize(
    ("picture", "first", "num", "reason"),
    [
        (image("k", 2, [None, rows(1, 2, 3)]), 0, 1, "gave 3 rows for 2 image placeholders"),
        (image("k", 1, [None, None, rows(1)]), 1, 1, "never started"),
        (ImageInput("k", 1, num_slices=2, pixels=[None, None, None, rows(1)]), 0, 2, "more than the 2 slices"),
        (ImageInput("k", 1, num_slices=3, pixels=[None, rows(1)]), 0, 1, "ended before slice 3"),
    ],
)
def test_an_encoder_that_breaks_its_word_fails_its_image(
    runner: Runner, picture: ImageInput, first: int, num: int, reason: str
) -> None:
    result = encode(runner, picture, first, num)
    assert list(result.failed_images) == ["k"]
    assert reason in result.failed_images["k"]


def test_a_chunk_without_its_image_fails_alone(runner: Runner) -> None:
    result = runner.execute(Step(1, (chunk("a", 15, embeds=(EmbedSlice("gone", 0, 0, 1),)), chunk("b", 1))))
    assert result.sampled == {"b": (2,)}
    assert result.failed_requests == {"a": "an image's embeddings are not resident"}


def test_evictions_come_first(runner: Runner, adapter: ToyAdapter) -> None:
    """A resident image is gone; a half encoded one is closed, and may be begun again in the same step."""
    whole, half = image("whole", 1, [None, rows(1)]), image("half", 1, [None, None, rows(2)])
    encode(runner, whole, 0, 1)
    encode(runner, half, 0, 1)
    assert adapter.closed == ["whole"]
    again = runner.execute(Step(1, (), (EncodeSlice(half, 0, 2),), evictions=("whole", "half", "unknown")))
    assert again.failed_images == {}
    assert adapter.closed == ["whole", "half", "half"]
    use = [chunk(key, 15, embeds=(EmbedSlice(key, 0, 0, 1),)) for key in ("whole", "half")]
    result = runner.execute(Step(2, tuple(use)))
    assert result.sampled == {"half": (3,)}
    assert list(result.failed_requests) == ["whole"]


def together(runner: Runner, first: int, num: int, *pictures: ImageInput) -> StepResult:
    return runner.execute(Step(0, (), (EncodeSlice(pictures[0], first, num, pictures[1:]),)))


def rows_seen(runner: Runner, key: str) -> tuple[int, ...]:
    return runner.execute(Step(9, (chunk("a", 15, embeds=(EmbedSlice(key, 0, 0, 1),)),))).sampled["a"]


def test_a_batch_is_encoded_at_once_and_each_image_gets_its_own_rows(runner: Runner, adapter: ToyAdapter) -> None:
    pictures = [image(key, 1, [None, None, None, rows(value)]) for key, value in (("a", 3), ("b", 6), ("c", 9))]
    for first, num in ((0, 1), (1, 2)):
        assert together(runner, first, num, *pictures) == StepResult(0, {})
    assert (adapter.batches, adapter.num_resumed) == ([("a", "b", "c")], 3)
    assert [rows_seen(runner, key) for key in "abc"] == [(4,), (7,), (10,)]


def test_a_batch_goes_on_without_those_that_are_evicted(runner: Runner, adapter: ToyAdapter) -> None:
    """The second one is begun anew while its old batch is on its way, and has the rows of its own."""
    a, b = image("a", 1, [None, None, rows(3)]), image("b", 1, [None, None, rows(6)])
    together(runner, 0, 1, a, b)
    fresh = image("b", 1, [None, None, rows(8)])
    step = Step(1, (), (EncodeSlice(a, 1, 1), EncodeSlice(fresh, 0, 1)), evictions=("b",))
    assert runner.execute(step) == StepResult(1, {})
    assert rows_seen(runner, "a") == (4,)
    assert runner.execute(Step(2, (chunk("x", 15, embeds=(EmbedSlice("b", 0, 0, 1),)),))).failed_requests
    encode(runner, fresh, 1, 1)
    assert rows_seen(runner, "b") == (9,)
    assert adapter.closed == ["a", "b", "b"]


def test_a_batch_that_nobody_wants_is_closed(runner: Runner, adapter: ToyAdapter) -> None:
    together(runner, 0, 1, image("a", 1, [None, None, rows(3)]), image("b", 1, [None, None, rows(6)]))
    runner.execute(Step(1, (), evictions=("a",)))
    assert adapter.closed == []
    runner.execute(Step(1, (), evictions=("b",)))
    assert adapter.closed == ["a", "b"]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_image_fails_alone_whoever_is_encoded_with_it(runner: Runner, adapter: ToyAdapter, fails_at: int) -> None:
    script: list[RuntimeError | torch.Tensor | None] = [None, None, None, rows(6)]
    script[fails_at] = RuntimeError("out of luck")
    pictures = [image("a", 1, [None, None, None, rows(3)]), image("b", 1, script)]
    results = [together(runner, 0, 2, *pictures)]
    if fails_at == 2:
        results.append(together(runner, 2, 1, *pictures))
    else:
        encode(runner, pictures[0], 2, 1)
    failed = {key: reason for result in results for key, reason in result.failed_images.items()}
    assert failed == {"b": "the vision encoder failed: RuntimeError: out of luck"}
    assert rows_seen(runner, "a") == (4,)
    assert adapter.batches == [("a", "b"), ("a",), ("b",)]


def test_a_batch_that_fails_midway_goes_on_image_by_image(runner: Runner, adapter: ToyAdapter) -> None:
    """The slices that follow name its images together, as if nothing had happened."""
    pictures = [image(key, 1, [None, None, None, None, rows(value)]) for key, value in (("a", 3), ("b", 6))]
    bad = image("c", 1, [None, RuntimeError("out of luck"), None, None, rows(9)])
    together(runner, 0, 1, *pictures, bad)
    assert list(together(runner, 1, 1, *pictures, bad).failed_images) == ["c"]
    for first in (2, 3):
        assert together(runner, first, 1, *pictures).failed_images == {}
    assert [rows_seen(runner, key) for key in "ab"] == [(4,), (7,)]


def test_what_a_failed_batch_held_is_gone_before_its_images_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, held = ToyAdapter(), list[weakref.ref[torch.Tensor]]()
    alone = adapter.encode_together

    def hungry(images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        if len(images) == 1:
            assert [tensor() for tensor in held] == [None]
            return (yield from alone(images))
        activations = torch.zeros(1)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("too little")

    monkeypatch.setattr(adapter, "encode_together", hungry)
    runner = build_runner(adapter, num_blocks=8, block_size=4)
    pictures = [image(key, 1, [None, rows(1)]) for key in "ab"]
    assert together(runner, 0, 1, *pictures) == StepResult(0, {})
    assert len(held) == 1


def test_the_device_is_waited_for_at_the_landing_also_when_nothing_is_sampled(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time that the step is said to take would be that of launching it."""
    read: list[int] = []

    class Watched(Download):
        def read(self) -> list[int]:
            read.append(len(self._host))
            return super().read()

    monkeypatch.setattr(flight, "Download", Watched)
    launched = runner.launch(Step(0, (), (EncodeSlice(image("k", 1, [None, rows(1)]), 0, 1),)))
    assert (launched.is_smooth, read) == (True, [])
    assert launched.land() == StepResult(0, {})
    assert read == [0]


def test_a_gpus_answer_is_copied_behind_the_step_and_waited_for_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch is told, for there need be no GPU here."""
    calls: list[str] = []
    host = Mock(**{"copy_.side_effect": lambda *_, **options: calls.append(f"copy {options}"), "tolist": lambda: [7]})
    event = Mock(**{f"{n}.side_effect": lambda *_, n=n: calls.append(n) for n in ("record", "synchronize")})
    monkeypatch.setattr(torch, "empty", lambda *_, **options: calls.append(f"empty {options['pin_memory']}") or host)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    download = Download(Mock(device=torch.device("cuda")))
    assert calls == ["empty True", "copy {'non_blocking': True}", "record"]
    assert download.read() == [7]
    assert calls[3:] == ["synchronize"]


def test_blocks_of_a_request_that_came_to_no_numbers_are_cleared_before_others_begin_them() -> None:
    """Those who share one for what it holds do not begin it: for them it stays as it is."""
    adapter = ToyAdapter()
    pool = KvPool(adapter.spec, num_blocks=8, block_size=4, dtype=adapter.dtype, device=adapter.device)
    text = make_text("torch", adapter, pool, attention="sdpa")
    runner = Runner(adapter, text, EncoderCache(adapter), block_size=4, pool=pool)
    adapter.poisoned_ids = {4}
    pool.keys[:, 4:12] = pool.values[:, 4:12] = float("nan")
    poisoned = Chunk("a", 4, (4,), (range(4, 5),), (1, 2), (), True, 0, GREEDY, is_decode=False)
    assert runner.execute(Step(1, (poisoned,))).failed_requests
    runner.execute(Step(2, (poisoned._replace(request_id="shares", token_ids=(5,)),)))
    assert [pool.keys[:, 4 * block : 4 * block + 4].isnan().any().item() for block in (1, 2)] == [True, False]
    runner.execute(Step(3, (poisoned._replace(request_id="begins", start=0, block_ids=(1,), token_ids=(5,)),)))
    assert pool.keys.isfinite().all()
    assert pool.values.isfinite().all()


def test_logits_that_are_not_numbers_fail_their_request(runner: Runner, adapter: ToyAdapter) -> None:
    adapter.poisoned_ids = {4}
    result = runner.execute(Step(1, (chunk("a", 4), chunk("b", 5))))
    assert result.sampled == {"b": (6,)}
    assert result.failed_requests == {"a": "the model's logits are not finite numbers"}


def test_without_a_seed_the_request_is_one(runner: Runner) -> None:
    """The same request repeats itself, another does not: over 40 outputs of a nearly flat distribution."""

    def draw(request_id: str, seed: int | None) -> list[int]:
        params = SamplingParams(max_tokens=1, temperature=50.0, seed=seed)
        chunks = [Chunk(request_id, 0, (1,), (range(1),), (0,), (), True, n, params, False) for n in range(40)]
        return [runner.execute(Step(0, (c,))).sampled[request_id][0] for c in chunks]

    assert draw("a", None) == draw("a", None)
    assert draw("a", None) != draw("b", None)
    assert draw("a", 5) == draw("b", 5)
    assert draw("a", 5) != draw("a", 6)
    assert draw("a", 0) != draw("a", None)


def test_close_unwinds_paused_encoders(runner: Runner, adapter: ToyAdapter) -> None:
    encode(runner, image("k", 1, [None, None, rows(1)]), 0, 1)
    assert adapter.closed == []
    runner.close()
    assert adapter.closed == ["k"]


def test_inference_mode_does_not_leak(runner: Runner) -> None:
    encode(runner, image("k", 1, [None, None, rows(1)]), 0, 1)
    assert not torch.is_inference_mode_enabled()
