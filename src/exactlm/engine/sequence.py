"""One answer on its way: its tokens, its pages, how far it is, and the digest of what determined it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from exactlm.engine.history import History
from exactlm.engine.kv_cache import Prefix
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ExactlmError
from exactlm.kernels.api import F32, I16, I64

Logprobs = dict[int, float]


class Guide(Protocol):
    """What a constraint says of the next token; see text/guide.py."""

    def mask(self) -> NDArray[np.bool_]:
        """[num_tokens]: the ids that may follow."""

    def accept(self, token_id: int) -> None:
        """Goes on past a chosen token."""


class DraftSource(Protocol):
    """Who proposes tokens that may follow; see engine/speculation.py."""

    def propose(self, ids: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow ids, prompt and answer so far."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Told how many of the last draft were right."""


class OutputDigest:
    """SHA-256 of spec/numerics.md 11.3. `steps`, if kept: for each token the digest of all that decides it, its step's
    logits included, itself not (spec/receipts.md 3)."""

    def __init__(self, prompt_ids: list[int], keeps_steps: bool = False) -> None:
        self.steps: list[str] | None = [] if keeps_steps else None
        self._hash = hashlib.sha256(b"exactlm-output-1\0")
        self._hash.update(len(prompt_ids).to_bytes(8, "little"))
        self._hash.update(np.array(prompt_ids, "<u4").tobytes())

    def add(self, codes: I16, scale: np.float32, token_id: int) -> None:
        """One step: final-norm codes [D] and scale, and the token chosen from the logits they give."""
        self._hash.update(codes.astype("<i2", copy=False).tobytes())
        self._hash.update(np.array(scale, "<f4").tobytes())
        if self.steps is not None:
            self.steps.append(self._hash.copy().hexdigest())
        self._hash.update(token_id.to_bytes(4, "little"))

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@dataclass
class Timings:
    """time.monotonic() seconds at which a request was queued, first scheduled, had its first token, and was done; None
    for what has not happened. They depend on the load; nothing else in an answer does."""

    queued: float
    started: float | None = None
    first_token: float | None = None
    done: float | None = None


@dataclass(eq=False)
class Sequence:
    """State of one answer. `num_cached` tokens of prompt and output are in the KV cache."""

    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    digest: OutputDigest
    choice: int = 0
    arrival: int = 0
    # The first choice of the same request: once its prompt is cached, the others can share it.
    leader: Sequence | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)  # of tokens 1, 2, ..., as far as known
    pages: list[int] = field(default_factory=list)
    prefix: Prefix | None = None  # what of `pages` is published or was taken from the cache
    num_published: int = 0  # pages
    num_cached: int = 0
    num_reused: int = 0  # prompt tokens that were found in the cache when it was first scheduled
    num_drafted: int = 0
    num_accepted: int = 0
    bias: tuple[I64, F32] | None = None  # ids and what to add
    history: History | None = None
    guide: Guide | None = None
    drafter: DraftSource | None = None
    timings: Timings = field(default_factory=lambda: Timings(0.0))
    finish_reason: str | None = None
    stop_token: int | None = None  # the token of params.stop_token_ids that ended it
    error: ExactlmError | None = None
    # Told each token as it is committed; True ends the sequence there. Called inside the step, so that where an answer
    # ends does not depend on when its owner looks.
    is_ended_by: Callable[[int], bool] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet in the cache: the rest of the prompt, or the last token chosen."""
        return self.num_tokens - self.num_cached

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on the tokens before it in other ways than through the logits."""
        return self.history is not None or self.guide is not None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_skippable(self) -> int:
        """Tokens whose logits nobody needs any more: only they may come from the prefix cache."""
        if self.params.prompt_logprobs is None:
            return self.num_tokens - 1
        return min(self.num_tokens - 1, len(self.prompt_logprobs))

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Tokens [begin, end) of prompt and output together."""
        n = len(self.prompt_ids)
        return self.prompt_ids[begin:end] + self.output_ids[max(0, begin - n) : max(0, end - n)]
