"""The loop: step = schedule, forward, sample, commit. A sequence's answer does not depend on who shares its steps."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator

import numpy as np

from exactlm.engine.admission import Admission, count_context
from exactlm.engine.batch import Row, make_batch
from exactlm.engine.config import DEFAULT_KV_TOKENS, EngineConfig
from exactlm.engine.history import History
from exactlm.engine.kv_cache import PageStore, pages_for
from exactlm.engine.sampler import Sampler
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.scheduler import Scheduler, Slice
from exactlm.engine.sequence import DraftSource, Guide, OutputDigest, Sequence, Timings
from exactlm.engine.speculation import Drafter
from exactlm.engine.stats import EngineStats
from exactlm.errors import CapacityError, ExactlmError, InterruptedStepError, NumericError, RequestError
from exactlm.kernels.api import F32, I16, PAGE_TOKENS
from exactlm.models.decoder import HEAD_ROWS, Decoder
from exactlm.numerics.sampling import to_fp32


class _Progress:
    """How far a slice has come in its step: whether it still takes tokens, and how many of its drafts were right."""

    def __init__(self) -> None:
        self.is_open, self.num_right = True, 0


class Engine:
    """Runs sequences over one decoder. Not safe for several threads at once: llm.py holds a lock."""

    def __init__(
        self, decoder: Decoder, eos_ids: frozenset[int], excluded_ids: frozenset[int], config: EngineConfig
    ) -> None:
        self.decoder, self.eos_ids, self.config = decoder, eos_ids, config
        self.context_tokens = count_context(decoder.config)
        num_pages = pages_for(config.kv_tokens or max(self.context_tokens, DEFAULT_KV_TOKENS))
        self.admission = Admission(decoder.config.num_tokens, self.context_tokens, num_pages * PAGE_TOKENS)
        self.pages = PageStore(num_pages, config.prefix_cache)
        try:
            self.cache = decoder.make_cache(num_pages)
        except MemoryError:
            tokens = num_pages * PAGE_TOKENS
            raise CapacityError(f"a KV cache of {tokens} tokens cannot be reserved: lower kv_tokens") from None
        self.scheduler = Scheduler(config, self.pages, decoder.config.num_tokens)
        self.sampler = Sampler(decoder, np.array(sorted(excluded_ids), np.int64))
        self._stats = EngineStats(num_pages=num_pages)
        self._num_arrived = 0
        self._unfinished: dict[Sequence, None] = {}  # all that were queued and still hold something, in order
        # Those that a token was being taken into: what breaks in then leaves half of it.
        self._torn: weakref.WeakSet[Sequence] = weakref.WeakSet()

    def add(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        choice: int = 0,
        leader: Sequence | None = None,
        guide: Guide | None = None,
    ) -> Sequence:
        """Queues one answer. Raises what Admission.check() raises."""
        sequence = self.make(prompt_ids, params, choice, leader, guide)
        self.enqueue(sequence)
        return sequence

    def enqueue(self, sequence: Sequence) -> None:
        """Puts a made sequence at the end of the queue, unless it is there or has ended."""
        with self._whole():
            if sequence.is_finished or sequence in self._unfinished:
                return
            self._unfinished[sequence] = None
            sequence.arrival = self._num_arrived
            self._num_arrived += 1
            self.scheduler.waiting.append(sequence)

    def make(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        choice: int = 0,
        leader: Sequence | None = None,
        guide: Guide | None = None,
        keeps_steps: bool = False,
        drafter: DraftSource | None = None,
    ) -> Sequence:
        """One answer of a request, not yet queued: touches nothing that a step touches. Raises what add() raises.

        choice: its index. leader: the request's first answer. guide: what constrains it. keeps_steps: for a receipt.
        drafter: instead of the engine's own.
        """
        max_tokens = self.admission.check(prompt_ids, params)
        if params.seed is None and not params.is_greedy:
            raise RequestError("seed: tokens that are drawn need one; SamplingParams.seeded() makes one up")
        digest = OutputDigest(prompt_ids, keeps_steps)
        sequence = Sequence(prompt_ids, params, max_tokens, digest, choice, leader=leader)
        sequence.timings = Timings(time.monotonic())
        sequence.guide = guide
        if params.bias:
            ids, values = zip(*params.bias, strict=True)
            sequence.bias = np.array(ids, np.int64), np.array([to_fp32(b) for b in values], np.float32)
        if params.has_penalty:
            sequence.history = History(prompt_ids)
        sequence.drafter = drafter
        if drafter is None and self.config.speculation == "ngram":
            sequence.drafter = Drafter()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Ends a request now; its pages are free when this returns."""
        if not sequence.is_finished:
            with self._whole():
                self._finish(sequence, "cancelled")
                self._remove(sequence)

    def cut(self, sequence: Sequence) -> None:
        """Ends a request now, as if it had asked for the tokens that it has; cancels one that has none. One that
        failed after whole tokens ends so too: a request for so many would not have failed."""
        if not sequence.output_ids:
            self.cancel(sequence)
        elif not sequence.is_finished or (sequence.error is not None and sequence not in self._torn):
            with self._whole():
                sequence.max_tokens = len(sequence.output_ids)
                self._finish(sequence, "length")
                sequence.error = None
                self._remove(sequence)

    def step(self) -> list[Sequence]:
        """One step; returns the sequences that took part. With nothing to do, returns []."""
        with self._whole():
            slices = self.scheduler.schedule()
            if not slices:
                return []
            self._stats.num_steps += 1
            self._stats.last_batch_tokens = sum(s.num_tokens for s in slices)
            self._stats.last_batch_sequences = len(slices)
            self._run(slices)
            return [s.sequence for s in slices]

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever breaks in (Ctrl-C can, at any line) ends every request that had not ended with an error: none
        resumes half a step."""
        try:
            yield
        except BaseException as error:
            kind = type(error).__name__
            lost = InterruptedStepError(f"the step that this request shared was interrupted by {kind}; send it again")
            for sequence in self._unfinished:  # not the scheduler's lists: one may be on its way between them
                sequence.pages = []
                if not sequence.is_finished or sequence in self._torn:
                    sequence.error, sequence.finish_reason = lost, "error"
            self._unfinished.clear()
            self.scheduler.clear()
            self.pages.reset()
            raise

    def _run(self, slices: list[Slice]) -> None:
        """Forward, sample, commit. Who meets a NaN fails alone: writing the cache again is idempotent."""
        batch = make_batch(slices)
        try:
            codes, scales = self.decoder.forward(
                batch.ids, batch.first_token, batch.positions, batch.page_table, batch.rows, self.cache
            )
        except NumericError as error:
            if any(s.drafts for s in slices):  # a draft that would not have been kept may be the cause
                self._run([Slice(s.sequence, s.count) for s in slices])
            elif len(slices) > 1:
                for piece in slices:
                    self._run([piece])
            else:
                self._fail(slices[0].sequence, error)
                self._remove(slices[0].sequence)
            return
        progress = {id(s): _Progress() for s in slices}
        for begin in range(0, len(batch.wanted), HEAD_ROWS):
            block = slice(begin, begin + HEAD_ROWS)
            rows = batch.wanted[block]
            self.sampler.read(codes[block], scales[block])
            self._score_prompts(rows)
            self._choose(rows, codes[block], scales[block], progress)
        for piece in slices:
            self._advance(piece, progress[id(piece)].num_right)

    def _score_prompts(self, rows: list[Row]) -> None:
        for i, row in enumerate(rows):
            sequence = row.piece.sequence
            if row.position < len(sequence.prompt_ids) - 1 and not sequence.is_finished:
                if not self.sampler.is_finite(i):
                    self._fail(sequence, NumericError(f"position {row.position}: a logit is NaN or infinite"))
                    continue
                count = sequence.params.prompt_logprobs or 0
                token = sequence.prompt_ids[row.position + 1]
                sequence.prompt_logprobs.append(self.sampler.logprobs(i, token, count))

    def _choose(self, rows: list[Row], codes: I16, scales: F32, progress: dict[int, _Progress]) -> None:
        """Chooses the tokens of a block, as long as drafts turn out right. Where a choice looks at the tokens before
        it, one at a time; else all of a slice at once, since a wrong draft only makes the rest unused."""
        queues: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            if row.is_choice and row.piece.sequence.max_tokens and not row.piece.sequence.is_finished:
                queues.setdefault(id(row.piece), []).append(i)
        while queues:
            turn: list[int] = []
            for key, queue in queues.items():
                if progress[key].is_open:
                    count = 1 if rows[queue[0]].piece.sequence.looks_back else len(queue)
                    turn += queue[:count]
                    del queue[:count]
            chosen = self.sampler.choose([(i, rows[i].piece.sequence, rows[i].position + 1) for i in turn])
            for i, token in zip(turn, chosen, strict=True):
                state = progress[id(rows[i].piece)]
                if state.is_open:
                    self._take(rows[i], i, token, codes[i], scales[i], state)
            queues = {key: queue for key, queue in queues.items() if queue and progress[key].is_open}

    def _take(
        self, row: Row, i: int, token: int | ExactlmError, codes: I16, scale: np.float32, state: _Progress
    ) -> None:
        """Takes the choice of row i of a block into its sequence; the slice stays open if it was the next draft."""
        sequence, drafts = row.piece.sequence, row.piece.drafts
        if isinstance(token, ExactlmError):
            self._fail(sequence, token)
        else:
            self._torn.add(sequence)
            sequence.digest.add(codes[: self.decoder.config.hidden_size], scale, token)
            if sequence.params.logprobs is not None:
                sequence.logprobs.append(self.sampler.logprobs(i, token, sequence.params.logprobs))
            self._commit(sequence, token)
        is_right = state.num_right < len(drafts) and drafts[state.num_right] == token
        state.num_right += is_right
        state.is_open = is_right and not sequence.is_finished

    def _commit(self, sequence: Sequence, token: int) -> None:
        """Takes a token into the answer, and ends it where spec/sampling.md 7 says."""
        sequence.output_ids.append(token)
        if len(sequence.output_ids) == 1:
            sequence.timings.first_token = time.monotonic()
        self._stats.num_generated_tokens += 1
        if sequence.history is not None:
            sequence.history.add(token)
        try:
            is_ended = sequence.is_ended_by is not None and sequence.is_ended_by(token)
            is_end_token = token in self.eos_ids and not sequence.params.goes_past_end
            is_stop_token = token in sequence.params.stop_token_ids
            if is_ended or is_end_token or is_stop_token:
                if is_stop_token and not is_ended:
                    sequence.stop_token = token
                self._finish(sequence, "stop")
            elif len(sequence.output_ids) == sequence.max_tokens:
                self._finish(sequence, "length")
            self._torn.discard(sequence)
            if sequence.guide is not None and not sequence.is_finished:
                sequence.guide.accept(token)
        except ExactlmError as error:
            self._fail(sequence, error)

    def _advance(self, piece: Slice, num_right: int) -> None:
        """What a slice leaves: its known tokens and right drafts are cached; an ended sequence gives its pages back."""
        sequence, stats = piece.sequence, self._stats
        if sequence.drafter is not None:
            sequence.drafter.learn(len(piece.drafts), num_right)
        sequence.num_drafted += len(piece.drafts)
        sequence.num_accepted += num_right
        stats.num_drafted_tokens += len(piece.drafts)
        stats.num_accepted_tokens += num_right
        sequence.num_cached += piece.count + num_right
        if sequence.error is None:
            self.scheduler.publish(sequence)
        if sequence.max_tokens == 0 and sequence.num_pending == 0 and not sequence.is_finished:
            self._finish(sequence, "length")
        if sequence.is_finished:
            self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        """Forgets an ended sequence."""
        self.scheduler.remove(sequence)
        self._unfinished.pop(sequence, None)

    def _fail(self, sequence: Sequence, error: ExactlmError) -> None:
        sequence.error = error
        self._finish(sequence, "error")

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        sequence.timings.done = time.monotonic()

    def stats(self) -> EngineStats:
        """Counters and gauges; a view that steps go on changing."""
        stats, pages = self._stats, self.pages
        stats.num_waiting, stats.num_running = len(self.scheduler.waiting), len(self.scheduler.running)
        stats.num_pages_used, stats.num_pages_cached = pages.num_held, pages.num_idle
        stats.num_preemptions = self.scheduler.num_preemptions
        stats.num_cached_tokens, stats.num_prompt_tokens = self.scheduler.num_reused, self.scheduler.num_prompt_tokens
        return stats

    @property
    def cache_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.pages.num_pages * PAGE_TOKENS

    def forget(self) -> None:
        """With nothing running, forgets cached prefixes and counts: as if nothing had been asked."""
        if not self.scheduler.running:
            self.pages.reset()
            self.scheduler.reset_counts()
            self._stats = EngineStats(num_pages=self.pages.num_pages)

    def check_integrity(self) -> None:
        """Raises CapacityError if, with nothing running, a page is lost, free twice, or not where its prefix says."""
        if not self.scheduler.running:
            self.pages.check_integrity()

    def prompt_logits(self, token_ids: list[int]) -> Iterator[F32]:
        """Logits of every position in blocks [<=64, V], in order; each is a view that the next block overwrites.

        RequestError or CapacityError as in Admission.check_scored(); NumericError if a value becomes NaN or infinite.
        """
        self.admission.check_scored(token_ids)
        sequence = Sequence(token_ids, SamplingParams(), 1, OutputDigest(token_ids))
        with self._whole():
            self.scheduler.make_room(pages_for(len(token_ids)))
            sequence.pages = self.pages.allocate(pages_for(len(token_ids)))
        try:
            while sequence.num_pending:
                piece = Slice(sequence, min(sequence.num_pending, self.config.chunk_tokens))
                batch = make_batch([piece])
                rows = np.arange(piece.count, dtype=np.int32)
                codes, scales = self.decoder.forward(
                    batch.ids, batch.first_token, batch.positions, batch.page_table, rows, self.cache
                )
                for begin in range(0, piece.count, HEAD_ROWS):
                    logits = self.decoder.logits(codes[begin : begin + HEAD_ROWS], scales[begin : begin + HEAD_ROWS])
                    if not np.isfinite(logits).all():
                        first = sequence.num_cached + begin
                        raise NumericError(
                            f"positions {first} to {first + len(logits) - 1}: a logit is NaN or infinite"
                        )
                    yield logits
                sequence.num_cached += piece.count
        finally:
            self.pages.release(sequence.pages)
