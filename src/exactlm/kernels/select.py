"""Which implementation to use: the fastest this CPU has, or the one that EXACTLM_ISA or an argument names."""

from __future__ import annotations

import os

from exactlm.errors import IsaError
from exactlm.kernels import _native
from exactlm.kernels.api import Kernels
from exactlm.kernels.cpu import CpuKernels
from exactlm.kernels.reference import ReferenceKernels

REFERENCE = "reference"


def available_isas() -> list[str]:
    """Names that `isa` accepts on this machine, slowest first: the NumPy reference, then the compiled ones."""
    return [REFERENCE, *_native.supported_isas()]


def choose_isa(isa: str | None = None) -> str:
    """The argument, else EXACTLM_ISA, else the fastest; IsaError for a name this machine cannot honour."""
    name = os.environ.get("EXACTLM_ISA") if isa is None else isa
    if name is None:
        return str(_native.supported_isas()[-1])
    if name not in available_isas():
        compiled = name in _native.compiled_isas()
        why = "this CPU lacks it" if compiled else "this build does not know it"
        source = "EXACTLM_ISA" if isa is None else "isa"
        raise IsaError(f"{source}={name!r}: {why}; available here: {', '.join(available_isas())}")
    return name


def choose_threads(threads: int | None = None) -> int:
    """The argument, else EXACTLM_THREADS, else the CPUs this process may use."""
    if threads is None:
        text = os.environ.get("EXACTLM_THREADS")
        if text is None:
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if not text.isascii() or not text.isdecimal():
            raise IsaError(f"EXACTLM_THREADS={text!r} is not a number of threads: use 1 to 1024")
        threads = int(text)
    if isinstance(threads, bool) or not 1 <= threads <= 1024:
        raise IsaError(f"threads={threads!r} is out of range: use 1 to 1024")
    return threads


def select_kernels(isa: str | None = None, threads: int | None = None) -> Kernels:
    """An implementation of kernels/api.py with its own threads."""
    name, count = choose_isa(isa), choose_threads(threads)
    if name == REFERENCE:
        return ReferenceKernels()
    try:
        return CpuKernels(name, count)
    except RuntimeError as error:
        raise IsaError(f"threads={count}: cannot be started ({error}); use fewer") from None
