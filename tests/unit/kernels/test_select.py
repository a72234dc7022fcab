"""Choosing an instruction set and a number of threads: honoured or refused, never replaced in silence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from exactlm.errors import IsaError
from exactlm.kernels.select import available_isas, choose_isa, choose_threads, select_kernels


@pytest.mark.parametrize("isa", available_isas())
def test_each_can_be_forced(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("EXACTLM_ISA", isa)
    assert select_kernels(None, 1).isa == isa
    assert select_kernels("scalar", 1).isa == "scalar"


def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsaError, match=r"isa='avx9'.*does not know"):
        choose_isa("avx9")
    monkeypatch.setenv("EXACTLM_ISA", "sse2")
    with pytest.raises(IsaError, match="EXACTLM_ISA='sse2'"):
        choose_isa()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1025", "1.5", ""])
def test_bad_thread_counts_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EXACTLM_THREADS", value)
    with pytest.raises(IsaError, match=r"threads|THREADS"):
        choose_threads()


def test_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLM_THREADS", "3")
    assert select_kernels("scalar").num_threads == 3
    assert select_kernels("scalar", 2).num_threads == 2


def test_pools_start_and_end_at_any_moment() -> None:
    """A pool that ended before its threads had started once waited for ever."""
    code = "from exactlm.kernels.select import select_kernels\nfor _ in range(300): select_kernels('scalar', 6)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("isa", available_isas())
def test_codes_outside_the_specification_are_refused(isa: str) -> None:
    """A high limb of -128 makes a code that 16 bits do not hold: instruction sets would differ."""
    kernels = select_kernels(isa, 1)
    codes, scales = np.full(16 * 8, 128, np.uint8), np.ones(16, np.float32)
    kernels.make_linear(codes, None, scales, 16, 4)
    codes[70] = 0  # a low limb of -128 is sound
    kernels.make_linear(codes, None, scales, 16, 4)
    codes[7] = 0
    with pytest.raises(ValueError, match=r"2\.3"):
        kernels.make_linear(codes, None, scales, 16, 4)
