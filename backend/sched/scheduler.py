"""The only loop: who computes what in the next step, and what its result means for each request.

`schedule()` asks the policy for lanes, books them against blocks, images and bounds, and returns a `Step`; `apply()`
takes its result. Neither reads a clock or touches a tensor, so the same calls always give the same steps. One thread at
a time. One step is in flight, or two: `schedule_ahead()` makes the next while one runs, where no result can change it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from backend.errors import Overloaded, Rejected
from backend.sched.admission import choose_victims, find_prefix, guess_room, has_blocks_for
from backend.sched.answer import cut_answer, events_of, goes_on_with, num_open
from backend.sched.blocks import BlockPool, BlockTable
from backend.sched.booking import Booking
from backend.sched.chunking import chunk_end, longest_atomic
from backend.sched.encoder_ledger import EncoderLedger
from backend.sched.image_booking import Batching, book_images, images_to_encode
from backend.sched.invariants import check_sequences
from backend.sched.limits import check_limits, check_request, check_token_budget, context_len
from backend.sched.policy import Policy
from backend.sched.roster import Roster
from backend.sched.sequence import SeqState, Sequence
from backend.sched.speculator import Speculator, dealt
from backend.sched.view import View
from backend.types.request import Request
from backend.types.result import FinishReason, StepResult, TokenEvent, TokenLogprobs
from backend.types.scheduler import SchedulerLimits, SchedulerStats
from backend.types.step import Step


class Scheduler:
    """All living requests, their blocks and their images.

    Raises ConfigError for limits that contradict each other. `policy` is public: whoever times the steps tells it, and
    another one may take its place between two steps.
    """

    def __init__(self, limits: SchedulerLimits, policy: Policy) -> None:
        check_limits(limits)
        self.policy = policy
        self._limits = limits
        self._context_len = context_len(limits)
        self._token_budget = limits.max_num_batched_tokens
        self._is_budget_exact = limits.is_token_budget_exact
        self._step_token_budget = limits.max_num_batched_tokens
        self._pool = BlockPool(limits.num_blocks, limits.block_size)
        self._ledger = EncoderLedger(limits.encoder_cache_embeds)
        self._speculator = Speculator(limits.num_speculative_tokens)
        self._roster = Roster()
        self._in_flight: deque[tuple[Step, list[Sequence]]] = deque()
        self._is_admitting = True
        self._is_short_of_blocks = False
        self._next_step_id = 0
        self._num_arrivals = 0
        self._num_preemptions = 0
        self._num_prefix_queries = 0
        self._num_prefix_hits = 0

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Rejected for what can never be served, Overloaded when the queue is full."""
        if request.request_id in self._roster:
            raise Rejected(f"Request id {request.request_id!r} is in use.", code="duplicate_request_id")
        check_request(request, self._limits)
        if request.num_places and len(self._roster.waiting) + request.num_places > self._limits.max_num_waiting:
            needed = "" if request.num_places == 1 else f", and there must be {request.num_places} places"
            raise Overloaded(f"{len(self._roster.waiting)} requests are waiting already{needed}; try again later.")
        table = BlockTable(self._pool)
        seq = Sequence(request, arrival=self._num_arrivals, step_id=self._next_step_id, table=table)
        self._num_arrivals += 1
        self._roster.add(seq)

    def cancel(self, request_id: str) -> bool:
        """End a request now: its blocks are free on return, and no event follows. False if it is not alive."""
        if request_id not in self._roster:
            return False
        self._retire(self._roster[request_id])
        return True

    def set_token_budget(self, num_tokens: int | None) -> None:
        """Change the soft token budget from the next step on; raises ConfigError naming the limit it breaks.

        A number is meant exactly; None is the limits' own, below which the policy may go by time.
        """
        if num_tokens is not None:
            check_token_budget(num_tokens, self._limits)
        self._token_budget = self._limits.max_num_batched_tokens if num_tokens is None else num_tokens
        self._step_token_budget = self._token_budget
        self._is_budget_exact = num_tokens is not None

    def has_work(self) -> bool:
        """Whether any request is alive, a step in flight, or an image half encoded that no request needs."""
        return bool(self._roster or self._in_flight) or self._ledger.has_unfinished

    def schedule(self) -> Step | None:
        """The next step, or None if there is no work. The step before must have been applied.

        When the last request has gone while its image was being encoded, the step only drops that image.
        """
        assert not self._in_flight, "a step is in flight"
        return self._schedule()

    def schedule_ahead(self) -> Step | None:
        """The step after the one in flight, or None where that must be applied first.

        Its decodes may be of tokens that nobody knows yet (`AWAITED_TOKEN_ID`); those of an answer that turns out to
        have ended are thrown away by `apply`. The one in flight decides where it has guesses, where a next token is
        chosen by the words before it, where guesses may be worth their price, and where blocks run short: nobody is
        preempted while a token of theirs is being sampled. No image of a step in flight may have failed.
        """
        ((step, seqs),) = self._in_flight
        if self._is_short_of_blocks or step.num_draft_tokens:
            return None
        awaiting = [seq for seq in seqs if seq.awaits_token and seq.state is SeqState.RUNNING]
        if any(seq.request.sampling.needs_history for seq in awaiting):
            return None
        if self._speculator.is_needed(awaiting, self.policy.cost, self._context_len):
            return None
        return self._schedule()

    def _schedule(self) -> Step | None:
        self._roster.promote_starved(self._next_step_id, self._limits.background_aging_steps)
        self._is_admitting, self._is_short_of_blocks = True, False
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for seq in self._roster.running:
            if not seq.is_decoding:
                prefills.append(seq)
            elif not seq.num_awaited or seq.num_awaited < num_open(seq, self._context_len):
                decodes.append(seq)
        # Ahead there are none: they would follow tokens that are not known.
        guesses = {} if self._in_flight else self._speculator.propose(decodes, self.policy.cost, self._context_len)
        view = self._view(tuple(decodes), tuple(prefills), sum(map(len, guesses.values())))
        lanes, num_slices = self.policy.lanes(view), self.policy.slices(view)
        booking = Booking(view.step_id, view.hard_num_tokens, dealt(guesses, self._num_drafts(view)))
        self._step_token_budget = max(lane.tokens for lane in lanes)
        for lane in lanes:
            before = booking.num_tokens
            for seq in lane.seqs:
                if booking.try_decode(seq, lane.tokens):
                    continue
                # Asked here, not by a call: hundreds may wait, and nearly always nobody gets in.
                if self._may_admit or not seq.is_queued:
                    self._book(seq, lane.tokens - booking.num_tokens, booking)
            if lane.exclusive and booking.num_tokens > before:
                break
        self._book_images(booking, num_slices)
        if booking.is_empty and (self._roster or not self._ledger.has_evictions):
            return None
        self._next_step_id += 1
        step = booking.finish(self._ledger.take_evictions())
        self._in_flight.append((step, booking.seqs))
        return step

    def apply(self, result: StepResult) -> tuple[TokenEvent, ...]:
        """Take the result of the step in flight, the first of two: an event for every new token, and for every end."""
        assert self._in_flight, "no step is in flight"
        step, seqs = self._in_flight[0]
        assert result.step_id == step.step_id, f"result of step {result.step_id}, but {step.step_id} is in flight"
        self._in_flight.popleft()
        for image in (image for encode in step.encodes if encode.is_last for image in encode.images):
            if image.key not in result.failed_images:
                self._ledger.complete(image.key)
        events = self._fail(result) if result.failed_images or result.failed_requests else []
        sampled, logprobs = result.sampled, result.logprobs
        for seq, chunk in zip(seqs, step.chunks, strict=True):
            if seq.state is not SeqState.RUNNING:
                continue
            if chunk.is_decode and goes_on_with(seq, sampled[seq.request_id], self._context_len):
                events.append(self._go_on(seq, chunk.start + 1, sampled[seq.request_id][0], logprobs))
                continue
            token_ids, reason = (), None
            num_cached = seq.num_cached if chunk.samples and not chunk.sample_index else None
            if chunk.samples:
                token_ids, reason = cut_answer(seq, sampled[seq.request_id], self._context_len)
                seq.take(token_ids)
            self._publish(seq, chunk.start + chunk.num_tokens - chunk.num_drafts + max(0, len(token_ids) - 1))
            if seq.request_id in result.prompt_logprobs:
                told = result.prompt_logprobs[seq.request_id]
                events.append(TokenEvent(seq.request_id, None, prompt_logprobs=told))
            events += events_of(seq.request_id, token_ids, reason, logprobs.get(seq.request_id), num_cached)
            if reason:
                self._retire(seq)
        return tuple(events)

    def _go_on(
        self, seq: Sequence, num_done: int, token_id: int, logprobs: Mapping[str, tuple[TokenLogprobs, ...]]
    ) -> TokenEvent:
        """Give `seq`, of which `num_done` tokens are computed, one more that does not end it; what is told of that."""
        seq.take_one(token_id)
        if num_done % self._limits.block_size == 0:
            self._publish(seq, num_done)
        told = logprobs.get(seq.request_id) if logprobs else None
        return TokenEvent(seq.request_id, token_id, logprobs=told[0] if told else None)

    def stats(self) -> SchedulerStats:
        """A reading of now. Prefix queries and hits are counted in tokens."""
        return SchedulerStats(
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.waiting),
            num_blocks_used=self._pool.num_used,
            num_blocks_total=self._pool.num_blocks,
            encoder_embeds_used=self._ledger.num_embeds,
            encoder_embeds_total=self._ledger.capacity,
            num_preemptions_total=self._num_preemptions,
            prefix_queries_total=self._num_prefix_queries,
            prefix_hits_total=self._num_prefix_hits,
            step_token_budget=self._step_token_budget,
        )

    def check(self) -> None:
        """Raise AssertionError on any broken invariant. Slow; for tests."""
        assert len(self._roster.running) <= self._limits.max_num_seqs, "too many running"
        check_sequences(self._roster.alive, self._roster.running, self._roster.waiting, self._pool)
        self._ledger.check()

    def _num_drafts(self, view: View) -> int:
        """What the policy allows, but never so many that a span which cannot be split would find no room (R5)."""
        if not view.num_drafts:
            return 0
        hard_room = view.hard_num_tokens - len(view.decodes) - longest_atomic(view.prefills)
        return max(0, min(self.policy.drafts(view), hard_room))

    def _view(self, decodes: tuple[Sequence, ...], prefills: tuple[Sequence, ...], num_drafts: int) -> View:
        return View(
            step_id=self._next_step_id,
            decodes=decodes,
            prefills=prefills,
            waiting=tuple(self._roster.waiting),
            token_budget=self._token_budget,
            hard_num_tokens=self._limits.hard_num_batched_tokens,
            images=images_to_encode(self._roster.running, self._ledger, self._batching),
            num_drafts=num_drafts,
            is_budget_exact=self._is_budget_exact,
        )

    def _book(self, seq: Sequence, soft_room: int, booking: Booking) -> None:
        """Book what `seq` can have in this step, which may be nothing (R1: those after it are asked all the same)."""
        if seq.is_queued and not self._try_admit(seq, soft_room):
            return
        room = seq.table.room - seq.computed
        end = chunk_end(seq, min(soft_room, room), min(booking.hard_room, room), self._ledger.is_resident)
        if end == seq.computed:
            end = self._make_room(seq, min(soft_room, 1), booking)
        if end > seq.computed:
            guesses = booking.guesses_for(seq)
            guesses = guesses[: guess_room(seq, len(guesses), self._roster.running, self._pool)]
            seq.table.grow_to(end + len(guesses))
            booking.add_chunk(seq, end, guesses)

    def _make_room(self, seq: Sequence, soft_room: int, booking: Booking) -> int:
        """End of the shortest chunk that gets `seq` on, after preempting for its blocks; `seq.computed` if none."""
        end = chunk_end(seq, soft_room, booking.hard_room, self._ledger.is_resident)
        num_blocks = seq.table.num_missing(end)
        if num_blocks > self._pool.num_free:
            self._is_admitting = False
            if self._in_flight:
                self._is_short_of_blocks = True
                return seq.computed
            candidates = [other for other in self._roster.running if not booking.holds(other)]
            for victim in choose_victims(seq, num_blocks, candidates, self._pool):
                self._roster.preempt(victim, self._next_step_id)
                self._num_preemptions += 1
        return end if num_blocks <= self._pool.num_free else seq.computed

    @property
    def _may_admit(self) -> bool:
        return self._is_admitting and len(self._roster.running) < self._limits.max_num_seqs

    def _try_admit(self, seq: Sequence, soft_room: int) -> bool:
        """Move a queued sequence to the running if there is a place, and blocks for all its tokens.

        The first refusal closes admission for this step, so that nobody overtakes. A sequence with images is let in
        even when no tokens are left, so that its images can be encoded meanwhile.
        """
        if not self._may_admit:
            return False
        if soft_room <= 0 and not seq.images:
            return False
        hit = find_prefix(seq, self._pool) if self._limits.enable_prefix_caching and not seq.tells_prompt else []
        if not has_blocks_for(seq, hit, self._roster.running, self._pool):
            self._is_admitting = False
            return False
        seq.table.share(hit)
        seq.computed = len(hit) * self._limits.block_size
        self._num_prefix_queries += seq.total
        self._num_prefix_hits += seq.computed
        if seq.state is SeqState.WAITING:
            seq.num_cached = seq.computed
        self._roster.let_in(seq, self._next_step_id)
        return True

    def _book_images(self, booking: Booking, num_slices: int | None) -> None:
        """Book that many encoder slices (None: as many as the limits say, fewer while somebody decodes).

        At least one where the step would be empty, for somebody may wait for nothing else.
        """
        running = self._roster.running
        if num_slices is None:
            is_idle = not any(seq.is_decoding for seq in running)
            limits = self._limits
            num_slices = limits.idle_encoder_slices_per_step if is_idle else limits.max_encoder_slices_per_step
        elif booking.is_empty:
            num_slices = max(1, num_slices)
        in_use = booking.images_in_use
        booking.add_encodes(book_images(running, self._ledger, self._batching, num_slices, in_use, booking.step_id))

    @property
    def _batching(self) -> Batching:
        return Batching(self._limits.max_encoder_batch, self.policy.cost.slices)

    def _fail(self, result: StepResult) -> list[TokenEvent]:
        """End the requests that failed, and the running ones that need an image that failed."""
        reasons: dict[str, str] = {}
        for key, reason in result.failed_images.items():
            self._ledger.drop(key)
            reasons |= {seq.request_id: reason for seq in self._roster.running if seq.needs_image(key)}
        reasons |= {key: reason for key, reason in result.failed_requests.items() if key in self._roster}
        for request_id in reasons:
            self._retire(self._roster[request_id])
        return [TokenEvent(request_id, None, FinishReason.ERROR, reason) for request_id, reason in reasons.items()]

    def _publish(self, seq: Sequence, num_done: int) -> None:
        """Tell the prefix index of the blocks that have become full; in most steps none has.

        `num_done` tokens are computed by steps that were applied: what is still in flight may fail.
        """
        num_full = num_done // self._limits.block_size
        if self._limits.enable_prefix_caching and num_full > seq.table.num_published:
            seq.table.publish(seq.block_keys(num_full))

    def _retire(self, seq: Sequence) -> None:
        self._roster.retire(seq, self._next_step_id)
