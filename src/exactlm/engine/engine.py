"""The loop: step = schedule, forward, sample, commit. A sequence's answer does not depend on who shares its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from exactlm.engine.batch import Batch, make_batch
from exactlm.engine.config import DEFAULT_KV_TOKENS, EngineConfig
from exactlm.engine.kv_cache import PageAllocator, pages_for
from exactlm.engine.sampler import top_logprobs
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.scheduler import Scheduler, Slice
from exactlm.engine.sequence import Logprobs, OutputDigest, Sequence
from exactlm.errors import CapacityError, ExactlmError, InterruptedStepError, NumericError, RequestError
from exactlm.kernels.api import F32, I16, PAGE_TOKENS
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import HEAD_ROWS, Decoder

MAX_CONTEXT = 131072  # tokens: the bounds of spec/numerics.md 8 are proved up to here


def count_context(config: ModelConfig) -> int:
    """Tokens a sequence may have: the trained window, which dynamic RoPE scaling stretches by its factor."""
    scaling = config.rope_scaling
    factor = scaling.factor if scaling is not None and scaling.kind == "dynamic" else 1.0
    return int(min(config.max_position_embeddings * max(factor, 1.0), MAX_CONTEXT))


class Engine:
    """Runs sequences over one decoder. Not safe for several threads at once: llm.py holds a lock."""

    def __init__(
        self, decoder: Decoder, eos_ids: frozenset[int], excluded_ids: frozenset[int], config: EngineConfig
    ) -> None:
        self.decoder, self.eos_ids, self.config = decoder, eos_ids, config
        self.excluded_ids = np.array(sorted(excluded_ids), np.int64)
        self.context_tokens = count_context(decoder.config)
        num_pages = pages_for(config.kv_tokens or max(self.context_tokens, DEFAULT_KV_TOKENS))
        self.pages = PageAllocator(num_pages)
        try:
            self.cache = decoder.make_cache(num_pages)
        except MemoryError:
            tokens = num_pages * PAGE_TOKENS
            raise CapacityError(f"a KV cache of {tokens} tokens cannot be reserved: lower kv_tokens") from None
        self.scheduler = Scheduler(config, self.pages)

    def add(self, prompt_ids: list[int], params: SamplingParams) -> Sequence:
        """Queues a request. RequestError if the prompt is empty, out of the vocabulary or too long; CapacityError if
        it can never fit."""
        self._check_prompt(prompt_ids)
        room = self.context_tokens - len(prompt_ids)
        if room < (params.max_tokens or 1):
            raise RequestError(
                f"the prompt has {_tokens(len(prompt_ids))} and max_tokens is {params.max_tokens}: "
                f"together more than the model's context of {self.context_tokens}"
            )
        max_tokens = params.max_tokens or room
        self._check_room(len(prompt_ids) + max_tokens)
        sequence = Sequence(prompt_ids, params, max_tokens, OutputDigest(prompt_ids))
        self.scheduler.waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Ends a request now; its pages are free when this returns."""
        if not sequence.is_finished:
            with self._whole():
                self._finish(sequence, "cancelled")

    def step(self) -> list[Sequence]:
        """One step; returns the sequences that got a token or failed. With nothing to do, returns []."""
        with self._whole():
            slices = self.scheduler.schedule()
            if not slices:
                return []
            try:
                return self._run(slices)
            except NumericError as error:
                if len(slices) > 1:  # a NaN is not the neighbours' business: writing the cache again is idempotent
                    return [s for piece in slices for s in self._run_alone(piece)]
                return self._fail(slices[0].sequence, error)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever breaks in (Ctrl-C can, at any line) ends every request with an error: none resumes half a step."""
        try:
            yield
        except BaseException as error:
            kind = type(error).__name__
            lost = InterruptedStepError(f"the step that this request shared was interrupted by {kind}; send it again")
            for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
                sequence.error, sequence.finish_reason, sequence.pages = lost, "error", []
            self.scheduler.clear()
            self.pages.reset()
            raise

    def _run_alone(self, piece: Slice) -> list[Sequence]:
        try:
            return self._run([piece])
        except NumericError as error:
            return self._fail(piece.sequence, error)

    def _run(self, slices: list[Slice]) -> list[Sequence]:
        batch = make_batch(slices)
        decoder = self.decoder
        codes, scales = decoder.forward(
            batch.ids, batch.first_token, batch.positions, batch.page_table, batch.rows, self.cache
        )
        ready = [s.sequence for s in slices if s.is_last]
        tokens: list[int] = []
        logprobs: list[Logprobs | None] = []
        for begin in range(0, len(ready), HEAD_ROWS):
            block = ready[begin : begin + HEAD_ROWS]
            logits = decoder.logits(codes[begin : begin + HEAD_ROWS], scales[begin : begin + HEAD_ROWS])
            chosen = decoder.choose(len(block), self.excluded_ids)
            for sequence, token in zip(block, chosen, strict=True):
                if token < 0:
                    raise NumericError(f"step {len(sequence.output_ids)}: a logit is NaN or infinite")
            tokens += chosen
            logprobs += self._logprobs(block, logits, chosen)
        self._commit(batch, ready, tokens, logprobs, codes, scales)
        return ready

    def _logprobs(self, block: list[Sequence], logits: F32, chosen: list[int]) -> list[Logprobs | None]:
        if all(s.params.logprobs is None for s in block):
            return [None] * len(block)
        values = self.decoder.log_probabilities(len(block))
        limit = self.decoder.config.num_tokens
        return [
            None
            if s.params.logprobs is None
            else top_logprobs(logits[i, :limit], values[i], chosen[i], s.params.logprobs)
            for i, s in enumerate(block)
        ]

    def _commit(
        self,
        batch: Batch,
        ready: list[Sequence],
        tokens: list[int],
        logprobs: list[Logprobs | None],
        codes: I16,
        scales: F32,
    ) -> None:
        for piece in batch.slices:
            piece.sequence.num_cached += piece.count
        hidden = self.decoder.config.hidden_size
        for i, (sequence, token) in enumerate(zip(ready, tokens, strict=True)):
            sequence.digest.add(codes[i, :hidden], scales[i], token)
            sequence.output_ids.append(token)
            if (entry := logprobs[i]) is not None:
                sequence.logprobs.append(entry)
            try:
                is_ended = sequence.is_ended_by is not None and sequence.is_ended_by(token)
            except ExactlmError as error:
                self._fail(sequence, error)
                continue
            is_end_token = token in self.eos_ids and not sequence.params.ignore_eos
            if is_ended or is_end_token or token in sequence.params.stop_token_ids:
                self._finish(sequence, "stop")
            elif len(sequence.output_ids) == sequence.max_tokens:
                self._finish(sequence, "length")

    def _fail(self, sequence: Sequence, error: ExactlmError) -> list[Sequence]:
        sequence.error = error
        self._finish(sequence, "error")
        return [sequence]

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)

    def prompt_logits(self, token_ids: list[int]) -> Iterator[F32]:
        """Logits of every position in blocks [<=64, V], in order; each is a view that the next block overwrites.

        RequestError or CapacityError as in add(); NumericError if a value becomes NaN or infinite.
        """
        self._check_prompt(token_ids)
        if len(token_ids) > self.context_tokens:
            raise RequestError(f"{len(token_ids)} tokens are more than the model's context of {self.context_tokens}")
        self._check_room(len(token_ids))
        sequence = Sequence(token_ids, SamplingParams(), 1, OutputDigest(token_ids))
        while pages_for(len(token_ids)) > self.pages.num_free and self.step():
            pass  # others hold the pages: let them get on
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
            self.pages.free(sequence.pages)

    def _check_prompt(self, ids: list[int]) -> None:
        if not ids:
            raise RequestError("the prompt has no tokens; give at least one")
        limit = self.decoder.config.num_tokens
        for at, i in enumerate(ids):
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < limit:
                raise RequestError(f"token {at} of the prompt is {i!r}; ids of this model run from 0 to {limit - 1}")

    def _check_room(self, num_tokens: int) -> None:
        if pages_for(num_tokens) > self.pages.num_pages:
            raise CapacityError(
                f"{num_tokens} tokens are needed, the KV cache holds {self.pages.num_pages * PAGE_TOKENS}: "
                "raise kv_tokens or lower max_tokens"
            )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
