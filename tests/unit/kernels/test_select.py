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


def test_a_forked_child_can_use_and_drop_kernels() -> None:
    code = (
        "import os, sys, numpy as np\n"
        "from exactlm.kernels.select import select_kernels\n"
        "k = select_kernels('scalar', 3)\n"
        "x, codes, scales = np.ones((64, 64), np.float32), np.zeros((64, 64), np.int16), np.zeros(64, np.float32)\n"
        "assert k.quantise(x, 64, 64, codes, scales)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert k.quantise(x, 64, 64, codes, scales)\n"
        "    del k\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_threads_that_cannot_start_are_an_error_not_an_abort() -> None:
    code = (
        "import resource\n"
        "from exactlm.errors import IsaError\n"
        "from exactlm.kernels.select import select_kernels\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "try:\n    select_kernels('scalar', 1024)\n"
        "except IsaError as error:\n    assert 'threads=1024' in str(error)\n"
        "else:\n    raise SystemExit('1,024 threads started in 2 GiB')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
