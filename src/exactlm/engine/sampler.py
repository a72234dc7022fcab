"""Chooses tokens from rows of logits, and reports log-probabilities. spec/sampling.md.

Knows what sequences ask for; nothing of steps, pages or text. A row is read, never changed: what biases, penalties and
guides change is a copy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exactlm.engine.sequence import Logprobs, Sequence
from exactlm.errors import ExactlmError, NumericError, RequestError
from exactlm.kernels.api import F32, I16, I64
from exactlm.models.decoder import HEAD_ROWS, Decoder
from exactlm.numerics.philox import draw
from exactlm.numerics.sampling import to_q40

NO_IDS, NO_BIAS, NO_COUNTS = np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int32)
_to_q40 = lru_cache(to_q40)


class Sampler:
    """The choices of one block of at most HEAD_ROWS rows at a time: first read(), then choose() and logprobs()."""

    def __init__(self, decoder: Decoder, excluded_ids: I64) -> None:
        self._decoder, self._kernels, self.excluded_ids = decoder, decoder.kernels, excluded_ids
        self._num_tokens = decoder.config.num_tokens
        self._adjusted = np.empty((HEAD_ROWS, self._num_tokens), np.float32)  # touched as far as rows need it
        self._logits: F32 = self._adjusted[:0]
        self._greedy: list[int] = []

    def read(self, codes: I16, scales: F32) -> None:
        """Makes the logits of R <= HEAD_ROWS rows of final codes [R, padded D] and scales [R]."""
        self._logits = self._decoder.logits(codes, scales)[:, : self._num_tokens]
        self._greedy = self._decoder.choose(len(codes), self.excluded_ids)

    def is_finite(self, row: int) -> bool:
        return self._greedy[row] >= 0

    def choose(self, asked: list[tuple[int, Sequence, int]]) -> list[int | ExactlmError]:
        """For each (row, sequence, position): the token that goes to that position, or why there is none. A sequence
        that looks back stands there once only, with its next position."""
        chosen: list[int | ExactlmError] = []
        drawn: list[int] = []  # places in `asked` that need more than the greedy choice
        for at, (row, sequence, position) in enumerate(asked):
            chosen.append(self._greedy[row])
            if not self.is_finite(row):
                chosen[at] = NumericError(f"step {_step(sequence, position)}: a logit is NaN or infinite")
            elif not _is_plain(sequence):
                try:
                    self._adjust(self._adjusted[len(drawn)], row, sequence)
                    drawn.append(at)
                except ExactlmError as error:
                    chosen[at] = error
        if drawn:
            for at, token in zip(drawn, self._draw([asked[at][1:] for at in drawn]), strict=True):
                step = _step(*asked[at][1:])
                chosen[at] = token if token >= 0 else RequestError(f"step {step}: no token is allowed")
        return chosen

    def _adjust(self, x: F32, row: int, sequence: Sequence) -> None:
        """Clauses 2 and 3: x [num_tokens] becomes the adjusted logits, -infinity where an id is excluded."""
        x[:] = self._logits[row]
        p, history = sequence.params, sequence.history
        bias_ids, bias = sequence.bias or (NO_IDS, NO_BIAS)
        if history is not None or len(bias_ids):
            ids, counts = (history.ids, history.counts) if history is not None else (NO_IDS, NO_COUNTS)
            penalties = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
            if not self._kernels.adjust(x, len(x), bias_ids, bias, ids, counts, *penalties):
                step = len(sequence.output_ids)
                raise NumericError(f"step {step}: a logit is infinite after logit_bias and penalties")
        x[self.excluded_ids] = -np.inf
        if sequence.guide is not None:
            x[~sequence.guide.mask()] = -np.inf

    def _draw(self, asked: list[tuple[Sequence, int]]) -> list[int]:
        params = [s.params for s, _ in asked]
        chosen = np.zeros(len(asked), np.int64)
        self._kernels.sample(
            self._adjusted,
            len(asked),
            self._num_tokens,
            np.array([p.temperature for p in params], np.float64),
            np.array([_to_q40(p.min_p) for p in params], np.int64),
            np.array([max(p.top_k, 0) for p in params], np.int64),
            np.array([_to_q40(p.top_p) for p in params], np.int64),
            np.array([_draw_for(s, position) for s, position in asked], np.uint64),
            chosen,
        )
        return [int(i) for i in chosen]

    def logprobs(self, row: int, chosen: int, count: int) -> Logprobs:
        """The `count` most likely tokens of a row and the chosen one: id -> natural log, by (logit, lower id)."""
        values = self._decoder.log_probabilities(row, row + 1)[0]
        return top_logprobs(self._logits[row], values, chosen, count)


def _is_plain(sequence: Sequence) -> bool:
    """Whether the choice is that of the largest logit."""
    return sequence.params.is_greedy and sequence.history is None and sequence.guide is None and sequence.bias is None


def _draw_for(sequence: Sequence, position: int) -> int:
    if sequence.params.is_greedy:
        return 0
    assert sequence.params.seed is not None
    return draw(sequence.params.seed, sequence.choice, position)


def _step(sequence: Sequence, position: int) -> int:
    return position - len(sequence.prompt_ids)


def top_logprobs(logits: F32, values: NDArray[np.float64], chosen: int, count: int) -> Logprobs:
    """The `count` most likely tokens and the chosen one: id -> natural log, by (logit, lower id).

    logits [V]; values [V], their log-probabilities.
    """
    order = _first_in_order(logits, min(count, len(logits)))
    if chosen not in order:
        order.append(chosen)
    return {i: float(values[i]) for i in order}


def _first_in_order(logits: F32, count: int) -> list[int]:
    if count == 0:
        return []
    keys = _ordered(logits)
    least = np.partition(keys, len(keys) - count)[len(keys) - count]
    candidates = np.flatnonzero(keys >= least)  # by id
    order: list[int] = candidates[np.argsort(-keys[candidates], kind="stable")][:count].tolist()
    return order


def _ordered(x: F32) -> NDArray[np.int64]:
    """Integers that sort like x: unlike float comparisons, blind to the processor's treatment of subnormals."""
    pattern = np.ascontiguousarray(x).view(np.int32).astype(np.int64)
    return np.where(pattern >= 0, pattern, -(pattern & 0x7FFFFFFF))
