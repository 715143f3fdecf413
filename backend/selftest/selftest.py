"""The selftest of one checkpoint: transformers answers some prompts, then the engine does, in every way it has.

Both never hold the weights at the same time. Knows nothing of command lines.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from backend.errors import EngineError, ModelLoadError, one_line
from backend.models.checkpoint import Checkpoint, open_checkpoint
from backend.models.hf_adapter import TEXT_FAMILIES
from backend.models.registry import FAMILIES, load
from backend.runtime.native.choice import find_obstacles
from backend.sched.policy import POLICIES
from backend.selftest import checks
from backend.selftest.checks import Bench, Check, Served, Truth
from backend.selftest.compare import MARGINS, Difference, differences
from backend.selftest.prompts import Prompt, default_prompts
from backend.selftest.reference import Expected, Reference
from backend.selftest.report import CheckResult, Report, Status
from backend.types.request import Request, SamplingParams

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter

MIN_DISTINCT = 8
"""An answer of fewer different tokens agrees too easily with a wrong one."""
SHORT = ("whole prompts", "chunks of 7", "late ones join", "prefix cache", "preempted", "guessed tokens")
"""What compiled loops are asked: they compute the text alone, in whatever order it comes."""
PREFIXES = {"torch": "", "native": "compiled: ", "native-int8": "int8: ", "native-int4": "int4: "}
ROUNDED = ("native-int8", "native-int4")
"""What rounds by design is compared, not judged."""

Answers = dict[str, Expected]


class Progress(Protocol):
    """Who is told how far it is."""

    def expect(self, num_phases: int) -> None:
        """So many parts there are, as far as is known."""
        ...

    def begin(self, name: str) -> None:
        """The next one begins."""
        ...


@dataclass(frozen=True, slots=True)
class Selftest:
    """What to test: the model at `path` (HF id or directory), called `name`. `margin` None: by the number format."""

    name: str
    path: str
    device: str = "cpu"
    dtype: str = "float32"
    quantization: str = "auto"
    num_tokens: int = 32
    margin: float | None = None

    def run(self, progress: Progress) -> Report:
        """Test everything. Raises `EngineError` for a model that cannot be tested at all."""
        started = time.monotonic()
        opened = open_checkpoint(self.path, device=self.device, dtype=self.dtype, families=tuple(FAMILIES))
        prompts = default_prompts(with_images=opened.config.model_type not in TEXT_FAMILIES)
        plan = _checks(with_images=any(prompt.images for prompt in prompts))
        progress.expect(len(prompts) + 2 + len(plan))
        expected = self._expect(opened, prompts, progress)
        progress.begin("loading the engine")
        adapter = load(self.path, device=self.device, dtype=self.dtype)
        dtype = str(adapter.dtype).removeprefix("torch.")
        margin = MARGINS[dtype] if self.margin is None else self.margin
        examiner = _Examiner(adapter, _requests(adapter, prompts, self.num_tokens), expected, margin, progress)
        results = [examiner.compare_prompts()]
        usable, notes = self._usable(adapter)
        plans = {text: {n: plan[n] for n in (plan if text == "torch" else SHORT)} for text in usable}
        progress.expect(len(prompts) + 2 + sum(map(len, plans.values())))
        for text, checks_of_it in plans.items():
            results.extend(examiner.examine(text, checks_of_it))
        notes += _weaknesses(expected)
        took_s = round(time.monotonic() - started, 1)
        family = adapter.spec.family
        return Report(self.name, family, self.device, dtype, margin, tuple(results), tuple(notes), took_s)

    def _expect(self, checkpoint: Checkpoint, prompts: tuple[Prompt, ...], progress: Progress) -> Answers:
        """Transformers' answers; its model is gone when this returns."""
        expected: Answers = {}
        progress.begin("loading transformers")
        try:
            reference = Reference(
                checkpoint.source,
                with_images=any(prompt.images for prompt in prompts),
                device=checkpoint.device,
                dtype=checkpoint.dtype,
                local_files_only=checkpoint.local_files_only,
            )
            for prompt in prompts:
                progress.begin(f"transformers: {prompt.name}")
                expected |= reference.answers([prompt], self.num_tokens)
        except Exception as error:  # transformers raises a dozen unrelated types
            raise ModelLoadError(
                f"model {self.name!r}: transformers cannot answer with it: {one_line(error)}"
            ) from error
        del reference
        gc.collect()
        return expected

    def _usable(self, adapter: ModelAdapter) -> tuple[list[str], list[str]]:
        """The text backends that compute this model here, and why others do not."""
        usable, notes = [], []
        for name, obstacle in find_obstacles(adapter.text_parts(), self.quantization).items():
            if obstacle is None:
                usable.append(name)
            else:
                notes.append(f"{PREFIXES[name]}not tested, {obstacle}")
        if not usable:
            reason = notes[0].partition(", ")[2]
            raise ModelLoadError(f"model {self.name!r} cannot be computed in {self.quantization} here: {reason}")
        return usable, notes


@dataclass(frozen=True)
class _Examiner:
    """One loaded model and the answers it should give."""

    adapter: ModelAdapter
    requests: tuple[Request, ...]
    expected: Answers
    margin: float
    progress: Progress

    def compare_prompts(self) -> CheckResult:
        """Whether both sides read the same tokens."""
        found = []
        for request in self.requests:
            own, theirs = request.prompt.token_ids, self.expected[request.request_id].prompt_ids
            if own != theirs:
                found.append(_first_of_prompt(request.request_id, theirs, own))
        num = sum(len(r.prompt.token_ids) for r in self.requests)
        status = Status.DIFFERENT if found else Status.EQUAL
        return CheckResult("tokens of the prompts", status, f"{num} tokens", num, num, tuple(found))

    def examine(self, text: str, plan: dict[str, Check]) -> Iterator[CheckResult]:
        """Every check of `plan`, the text computed by `text`."""
        bench = Bench(self.adapter, self.requests, text)
        truth: Truth = {name: answer.token_ids for name, answer in self.expected.items()}
        for name, check in plan.items():
            self.progress.begin(PREFIXES[text] + name)
            yield self._result(PREFIXES[text] + name, check, bench, truth, is_judged=text not in ROUNDED)

    def _result(self, name: str, check: Check, bench: Bench, truth: Truth, *, is_judged: bool) -> CheckResult:
        try:
            served = check(bench, truth)
        except EngineError as error:
            return CheckResult(name, Status.BROKEN, str(error))
        expected = {request: self.expected[request.removesuffix(checks.AGAIN)] for request in served.tokens}
        found = differences(expected, served.tokens)
        num_tokens = sum(len(answer.token_ids) for answer in expected.values())
        num_equal = num_tokens - sum(len(expected[d.prompt].token_ids) - d.index for d in found)
        status = self._judge(found, served) if is_judged else Status.REPORTED
        return CheckResult(name, status, served.what or "it did not come up", num_equal, num_tokens, tuple(found))

    def _judge(self, found: list[Difference], served: Served) -> Status:
        if any(difference.margin > self.margin for difference in found):
            return Status.DIFFERENT
        if found:
            return Status.TIE
        return Status.EQUAL if served.what else Status.IDLE


def _checks(*, with_images: bool) -> dict[str, Check]:
    """In order; names are for people."""
    plan: dict[str, Check] = {
        "whole prompts": checks.whole,
        "chunks of 64": checks.chunked(64),
        "chunks of 7": checks.chunked(7),
        "one at a time": checks.alone,
        "late ones join": checks.together,
        "prefix cache": checks.cached,
        "preempted": checks.preempted,
        "guessed tokens": checks.guessed,
        "steps made ahead": checks.ahead,
    }
    plan |= {f"policy {name}": checks.ordered_by(name) for name in POLICIES}
    if with_images:
        plan["room for one picture"] = checks.crowded_pictures
    return plan


def _requests(adapter: ModelAdapter, prompts: tuple[Prompt, ...], num_tokens: int) -> tuple[Request, ...]:
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    return tuple(Request(p.name, adapter.prepare(p.messages, p.images), sampling) for p in prompts)


def _first_of_prompt(name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> Difference:
    pairs = enumerate(zip(expected, got, strict=False))
    index = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))
    at: Callable[[tuple[int, ...]], int | None] = lambda ids: ids[index] if index < len(ids) else None  # noqa: E731
    return Difference(name, index, at(got), at(expected), float("inf"))


def _weaknesses(expected: Answers) -> list[str]:
    """Why equal answers may mean little."""
    notes = [
        f"the answer to {name!r} has only {len(set(answer.token_ids))} different tokens"
        for name, answer in expected.items()
        if len(set(answer.token_ids)) < MIN_DISTINCT
    ]
    answers = {name: answer.token_ids for name, answer in expected.items()}
    if "picture" in answers and answers["picture"] == answers["other picture"]:
        notes.append("two unlike pictures get the same answer, so equal answers say little of pictures")
    return notes
