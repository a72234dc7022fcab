"""A bias becomes fp32 by integers: the nearest value, ties to even, whatever the control word says."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from exactlm.doctor.control import hostile_control
from exactlm.numerics.sampling import to_fp32

VALUES = st.floats(-100, 100) | st.floats(-1e-37, 1e-37)


@given(VALUES)
@example(1 + 2.0**-24)
@example(1 + 3 * 2.0**-24)
@example(2.0**-150)
@example(0.0)
def test_it_is_the_nearest(value: float) -> None:
    assert to_fp32(value) == float(np.float32(value))


def test_the_control_word_does_not_reach_it() -> None:
    values = [0.1 * i for i in range(1, 200)]
    expected = [to_fp32(v) for v in values]
    with hostile_control() as is_set:  # rounds upward, where this machine lets us
        found = [to_fp32(v) for v in values]
        plain = [float(np.float32(v)) for v in values]
    assert found == expected
    assert (plain != expected) is is_set  # the conversion itself would not have held
