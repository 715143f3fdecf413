"""Times answers with and without guesses: `python -m tests.bench.speculation MODEL_DIR`. Prints one table.

Two kinds of work: texts to be repeated word by word, as answers from documents do, and questions without any text.
Greedy, one and two answers at a time, the real scheduler and runner without HTTP; with and without guesses in turns, so
that a machine which others use treats both alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.runtime.runner import Runner, build_runner
from backend.sched.policy import StallFree
from backend.sched.scheduler import Scheduler
from backend.types.request import Request, SamplingParams
from backend.types.scheduler import SchedulerLimits

NUM_GUESSES, NUM_TOKENS, NUM_TURNS = 6, 96, 3
REPORTS = (
    "At 07:40 a white delivery van stopped in front of gate 3. Two people unloaded eleven boxes and carried them to "
    "the ramp. The driver waited beside the van, spoke with the guard, and left at 07:58 towards the river.",
    "The north yard was empty until 12:15. Then a man in a yellow jacket crossed it with a ladder, leaned the ladder "
    "against the wall of hall B, and climbed to the second window. He took photographs and came down at 12:26.",
)
QUESTIONS = (
    "What is the difference between a river and a lake?",
    "Why do people like to listen to music while they work?",
)


@dataclass(frozen=True)
class Run:
    """What one run came to: tokens by the second of decode steps, guesses, and the answers."""

    tokens_per_s: float
    num_drafts: int
    num_accepted: int
    answers: tuple[tuple[int, ...], ...]


def repeat(text: str) -> str:
    return f"{text}\n\nRepeat the text above word by word."


def make_scheduler(num_guesses: int) -> Scheduler:
    """One for all the work, as a server has: what it learned of costs and of odds goes on."""
    limits = SchedulerLimits(
        max_num_batched_tokens=512,
        hard_num_batched_tokens=1024,
        max_num_seqs=32,
        max_model_len=2048,
        num_blocks=512,
        enable_prefix_caching=False,
        num_speculative_tokens=num_guesses,
    )
    return Scheduler(limits, StallFree())


def run(adapter: ModelAdapter, runner: Runner, scheduler: Scheduler, texts: tuple[str, ...]) -> Run:
    """Answers to `texts`, together. Steps that compute prompts are not timed."""
    for number, text in enumerate(texts):
        prompt = adapter.prepare([{"role": "user", "content": [{"type": "text", "text": text}]}], [])
        sampling = SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True)
        scheduler.submit(Request(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(texts))}
    num_drafts = num_accepted = num_timed = 0
    seconds = 0.0
    while (step := scheduler.schedule()) is not None:
        start = time.perf_counter()
        result = runner.execute(step)
        events = scheduler.apply(result)
        elapsed_s = time.perf_counter() - start
        scheduler.policy.observe(step, elapsed_s)
        for event in events:
            assert event.token_id is not None
            answers[event.request_id].append(event.token_id)
        if step.num_prefill_tokens == 0:
            seconds += elapsed_s
            num_timed += len(events)
        num_drafts += step.num_draft_tokens
        num_accepted += result.num_accepted_tokens
    return Run(num_timed / seconds, num_drafts, num_accepted, tuple(map(tuple, answers.values())))


def main(model: str, text_backend: str) -> None:
    adapter = load(model, device="cpu", dtype="float32")
    runner = build_runner(adapter, num_blocks=512, block_size=16, text=text_backend)
    plain, guessing = make_scheduler(0), make_scheduler(NUM_GUESSES)
    run(adapter, runner, plain, QUESTIONS)
    run(adapter, runner, guessing, QUESTIONS)
    kinds = {"repeat": tuple(map(repeat, REPORTS)), "chat": QUESTIONS}
    print(
        f"{'task':<8} {'answers':>7} {'tok/s':>7} {'guessing':>8} {'ratio':>6} {'drafts':>6} {'right':>6} {'same':>4}"
    )
    for title, texts in kinds.items():
        for together in (1, 2):
            groups = [texts[i : i + together] for i in range(0, len(texts), together)]
            pairs = [
                (run(adapter, runner, plain, group), run(adapter, runner, guessing, group))
                for group in groups
                for _ in range(NUM_TURNS)
            ]
            off, on = (statistics.median(p[i].tokens_per_s for p in pairs) for i in (0, 1))
            drafts = sum(with_guesses.num_drafts for _, with_guesses in pairs)
            right = sum(with_guesses.num_accepted for _, with_guesses in pairs) / max(1, drafts)
            same = all(a.answers == b.answers for a, b in pairs)
            ratio = statistics.median(b.tokens_per_s / a.tokens_per_s for a, b in pairs)
            print(
                f"{title:<8} {together:>7} {off:>7.1f} {on:>8.1f} {ratio:>6.2f} {drafts // NUM_TURNS:>6} {right:>6.0%} "
                f"{'yes' if same else 'no':>4}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "native-int8")
