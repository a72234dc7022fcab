"""One request on its way: its tokens, its pages, how far it is, and the digest of what determined its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ExactlmError
from exactlm.kernels.api import I16

Logprobs = dict[int, float]


class OutputDigest:
    """SHA-256 of spec/numerics.md 11.3."""

    def __init__(self, prompt_ids: list[int]) -> None:
        self._hash = hashlib.sha256(b"exactlm-output-1\0")
        self._hash.update(len(prompt_ids).to_bytes(8, "little"))
        self._hash.update(np.array(prompt_ids, "<u4").tobytes())

    def add(self, codes: I16, scale: np.float32, token_id: int) -> None:
        """One step: final-norm codes [D] and scale, and the token chosen from the logits they give."""
        self._hash.update(codes.astype("<i2", copy=False).tobytes())
        self._hash.update(np.array(scale, "<f4").tobytes())
        self._hash.update(token_id.to_bytes(4, "little"))

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@dataclass(eq=False)
class Sequence:
    """State of one request. `num_cached` tokens of prompt and output are in the KV cache."""

    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    digest: OutputDigest
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    num_cached: int = 0
    finish_reason: str | None = None
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
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Tokens [begin, end) of prompt and output together."""
        n = len(self.prompt_ids)
        return self.prompt_ids[begin:end] + self.output_ids[max(0, begin - n) : max(0, end - n)]
