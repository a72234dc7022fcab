"""Philox4x64-10 against its authors' known answers and against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlm.numerics.philox import MASK, draw, philox4x64

WORD = st.integers(0, MASK)


def numpy_block(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """NumPy adds one to the counter before its first block."""
    number = sum(word << (64 * i) for i, word in enumerate(counter))
    before = (number - 1) % (1 << 256)
    generator = np.random.Philox(counter=before, key=key[0] | key[1] << 64)
    return tuple(int(word) for word in generator.random_raw(4))


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # kat_vectors of Random123
        (
            (0, 0),
            (0, 0, 0, 0),
            (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
        ),
        (
            (MASK, MASK),
            (MASK, MASK, MASK, MASK),
            (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
        ),
        (
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int, int, int], words: tuple[int, ...]) -> None:
    assert philox4x64(key, counter) == words


@given(st.tuples(WORD, WORD), st.tuples(WORD, WORD, WORD, WORD))
def test_equals_numpy(key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
    assert philox4x64(key, counter) == numpy_block(key, counter)


@given(WORD, st.integers(0, 127), st.integers(0, 131072))
def test_a_draw_is_the_first_word_of_its_own_block(seed: int, choice: int, position: int) -> None:
    assert draw(seed, choice, position) == numpy_block((seed, 0), (position, choice, 0, 0))[0]


def test_draws_of_neighbouring_arguments_are_distinct() -> None:
    draws = {draw(seed, choice, position) for seed in range(10) for choice in range(10) for position in range(10)}
    assert len(draws) == 1000
