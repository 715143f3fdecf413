from __future__ import annotations

import pytest

from backend.sched.sequence import MOVES, SeqState
from backend.types.request import ImageInput, ImageSpan, Prepared, Request, SamplingParams
from backend.types.step import EmbedSlice
from tests.unit.sched.builders import BACKGROUND, image, request, sequence


@pytest.mark.parametrize("before", SeqState)
@pytest.mark.parametrize("after", SeqState)
def test_only_moves_of_the_table_are_possible(before: SeqState, after: SeqState) -> None:
    seq = sequence(request("a", 3))
    seq.state = before
    if after in MOVES[before]:
        seq.move_to(after, 7)
        assert (seq.state, seq.state_step) == (after, 7)
    else:
        with pytest.raises(AssertionError, match="illegal move"):
            seq.move_to(after, 7)


def test_one_subtraction_from_prompt_to_decode_and_back() -> None:
    seq = sequence(request("a", 10))
    seq.table.grow_to(16)

    first = seq.advance(4, step_id=0)
    assert (first.start, first.num_tokens, first.samples, first.is_decode) == (0, 4, False, False)
    assert (seq.remaining, seq.is_decoding, seq.awaits_token) == (6, False, False)

    last = seq.advance(10, step_id=1)
    assert (last.start, last.samples, last.sample_index, last.is_decode) == (4, True, 0, False)
    assert seq.awaits_token
    seq.take((77,))
    assert (seq.remaining, seq.num_outputs, seq.is_decoding) == (1, 1, True)

    decode = seq.advance(11, step_id=2)
    assert (decode.start, decode.token_ids, decode.sample_index, decode.is_decode) == (10, (77,), 1, True)
    seq.take((78,))

    seq.rewind()
    assert (seq.computed, seq.remaining, len(seq.table), seq.is_decoding) == (0, 12, 0, False)
    seq.table.grow_to(12)
    again = seq.advance(12, step_id=3)
    assert again.token_ids[-2:] == (77, 78)
    assert (again.sample_index, again.is_decode) == (2, False)


def test_positions_are_sliced_and_go_on_behind_the_prompt() -> None:
    prompt = Prepared((5, 6, 7, 8), (), (), ((0, 1, 1, 2), (0, 1, 2, 2), (0, 1, 1, 3)), decode_delta=-1)
    seq = sequence(Request("a", prompt, SamplingParams(max_tokens=4)))
    seq.table.grow_to(8)
    assert seq.advance(3, 0).positions == ((0, 1, 1), (0, 1, 2), (0, 1, 1))
    assert seq.advance(4, 1).positions == ((2,), (2,), (3,))
    seq.take((9,))
    assert seq.advance(5, 2).positions == ((3,), (3,), (3,))
    seq.take((9,))
    seq.computed = 2
    assert seq.advance(6, 3).positions == ((1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4))


def test_embeds_are_cut_by_absolute_range() -> None:
    """Two runs of one tiled image, at tokens 2-5 and 6-9; the chunk takes the end of one and the start of the other."""
    spans = (ImageSpan(2, 3, "cat", 0), ImageSpan(6, 3, "cat", 3))
    prompt = Prepared(tuple(range(10)), (ImageInput("cat", 6, 1),), spans, (range(10),))
    seq = sequence(Request("a", prompt, SamplingParams(max_tokens=4)), computed=3)
    seq.table.grow_to(10)
    chunk = seq.advance(8, 0)
    assert chunk.embeds == (EmbedSlice("cat", 1, 0, 2), EmbedSlice("cat", 3, 3, 2))
    assert seq.needs_image("cat")
    assert seq.advance(10, 1).embeds == (EmbedSlice("cat", 5, 0, 1),)
    assert not seq.needs_image("cat")


def test_background_goes_after_interactive_until_it_is_promoted() -> None:
    camera, chat = sequence(request("camera", 3, request_class=BACKGROUND)), sequence(request("chat", 3), arrival=1)
    assert sorted([camera, chat], key=lambda seq: seq.priority) == [chat, camera]
    camera.is_promoted = True
    assert sorted([camera, chat], key=lambda seq: seq.priority) == [camera, chat]


def test_block_keys_cover_tokens_everything_before_and_images() -> None:
    def keys(*pieces: int | tuple[int, ...] | ImageInput) -> list[object]:
        return list(sequence(request("a", *pieces)).block_keys(2))

    base = keys((1, 2), image("cat"))
    assert base == keys((1, 2), image("cat"))
    other_image, other_token = keys((1, 2), image("dog")), keys((1, 3), image("cat"))
    assert base[0] != other_image[0]
    assert base[1] != other_image[1]
    assert base[0] != other_token[0]
    assert base[1] != other_token[1], "the second block has the same tokens, but another past"
