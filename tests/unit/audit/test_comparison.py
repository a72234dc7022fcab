"""Where two answers part, and what of their numbers can be compared."""

from __future__ import annotations

import numpy as np

from exactlm.audit.comparison import compare, compare_logits
from exactlm.audit.observation import Observation


def seen(text: str, tokens: list[object] | None = None, **more: object) -> Observation:
    return Observation("c", 0, text, tokens, **more)  # type: ignore[arg-type]


def test_equal_answers() -> None:
    a = seen("a b", ["a", " b"], logprobs=[-1.0, -2.0])
    found = compare(a, a)
    assert (found.is_text, found.is_number, found.position) == (False, False, None)


def test_first_token_that_differs() -> None:
    found = compare(seen("abc", ["a", "b", "c"]), seen("abd", ["a", "b", "d"]))
    assert (found.is_text, found.position, found.unit, found.is_number) == (True, 2, "token", None)
    longer = compare(seen("ab", ["a", "b"]), seen("abc", ["a", "b", "c"]))
    assert longer.position == 2


def test_first_character_without_tokens() -> None:
    found = compare(seen("abcd"), seen("abXd", ["ab", "X", "d"]))
    assert (found.position, found.unit) == (2, "character")


def test_same_text_by_other_ids_is_another_answer() -> None:
    assert compare(seen("ab", [1, 2]), seen("ab", [3])).is_text
    assert not compare(seen("ab", ["a", "b"]), seen("ab", ["ab"])).is_text  # texts of tokens are only for showing


def test_numbers_are_compared_while_tokens_are_equal() -> None:
    base = seen("abc", ["a", "b", "c"], logprobs=[-1.0, -2.0, -3.0])
    assert compare(base, seen("abc", ["a", "b", "c"], logprobs=[-1.0, np.nextafter(-2.0, 0), -3.0])).is_number
    assert compare(base, seen("abc", ["a", "b", "c"])).is_number is None


def test_digests_decide() -> None:
    a, b = seen("a", [1], digest="x", logprobs=[-1.0]), seen("a", [1], digest="y", logprobs=[-1.0])
    assert compare(a, b).is_number
    assert not compare(a, a).is_number


def test_logits() -> None:
    base = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert compare_logits(base, base.copy(), 3) == (0.0, 1.0)
    other = base.copy()
    other[2] = [6, -5]  # at right angles
    assert compare_logits(base, other, 1) == (0.0, 1.0)  # the third row follows other tokens
    difference, cosine = compare_logits(base, other, 2)
    assert difference == 11.0
    assert abs(cosine) < 1e-9


def test_logits_that_are_no_numbers() -> None:
    """Masked entries are -inf in both; NaN in one alone is the largest difference."""
    base = np.array([[1.0, -np.inf, np.nan], [2.0, 0.0, 1.0]], np.float32)
    moved, broken = base.copy(), base.copy()
    moved[0, 0] = 1.5
    broken[1, 1] = np.nan
    difference, cosine = compare_logits(base, moved, 1)
    assert difference == 0.5
    assert 0.99 < cosine <= 1.0
    assert compare_logits(base, broken, 1) == (np.finfo(np.float32).max, 0.0)
    broken[1, 1] = -np.inf
    assert compare_logits(base, broken, 1) == (np.finfo(np.float32).max, 0.0)
