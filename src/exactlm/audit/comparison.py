"""What two answers to the same request have in common, and where they part. Knows no statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exactlm.audit.observation import Observation

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Difference:
    """is_text, is_number: the text (or the token ids) or any number told differs; is_number is None where an answer
    tells no numbers. position: of the first token that differs, or of the first character if `unit` is "character";
    None for equal texts. common: leading tokens that are equal, so that their numbers can be compared."""

    is_text: bool
    is_number: bool | None
    position: int | None
    unit: str
    common: int


def compare(base: Observation, other: Observation) -> Difference:
    """The difference of an answer from the base answer."""
    has_tokens = base.tokens is not None and other.tokens is not None
    common = common_length(base.tokens or (), other.tokens or ())
    has_ids = has_tokens and all(isinstance(t, int) for t in (base.tokens or ()))
    is_text = base.text != other.text or (has_ids and base.tokens != other.tokens)
    position, unit = None, "token" if has_tokens else "character"
    if is_text:
        position = common
        if not has_tokens or base.tokens == other.tokens:
            position, unit = common_length(base.text, other.text), "character"
    return Difference(is_text, _is_number(base, other, common), position, unit, common)


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """Leading elements that are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare_logits(base: NDArray[np.float32], other: NDArray[np.float32], common: int) -> tuple[float, float]:
    """Largest absolute difference and smallest cosine of logits [T, V], over the steps computed from equal tokens:
    those up to the first differing token, its own step included. NaN or infinity in both is equal; in one of them it
    counts as the largest difference of all, and a cosine of 0."""
    steps = min(common + 1, len(base), len(other))
    a, b = base[:steps].astype(np.float64), other[:steps].astype(np.float64)
    if np.array_equal(a, b, equal_nan=True):
        return 0.0, 1.0
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    a[is_same & ~np.isfinite(a)] = b[is_same & ~np.isfinite(b)] = 0
    with np.errstate(invalid="ignore"):
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine = np.nan_to_num((a * b).sum(axis=1) / np.where(norms == 0, 1, norms), nan=0.0)
        difference = np.nan_to_num(np.abs(a - b), nan=LARGEST, posinf=LARGEST)
    return float(difference.max()), float(min(1.0, cosine.min()))


def _is_number(base: Observation, other: Observation, common: int) -> bool | None:
    """Whether a number told by both differs. After the texts part, all further numbers are of another question."""
    if base.digest is not None and other.digest is not None:
        return base.digest != other.digest
    if base.logprobs is None or other.logprobs is None:
        return None
    steps = min(common, len(base.logprobs), len(other.logprobs))
    return base.logprobs[:steps] != other.logprobs[:steps] or base.text != other.text
