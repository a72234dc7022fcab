"""The floating-point control word of the calling thread: read, and set otherwise for a while, through the C library.

x86-64 and aarch64 on glibc or musl; elsewhere only the rounding direction.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import platform
import struct
from collections.abc import Iterator

_ENVIRONMENT_BYTES = 64  # fenv_t has 32 on x86-64 and 8 on aarch64
_ROUNDING = {0: "to nearest", 1: "down", 2: "up", 3: "towards zero"}
_ARM_ROUNDING = {0: 0, 1: 2, 2: 1, 3: 3}  # FPCR counts in another order
# Round up, flush results to zero; on x86-64 also read subnormal numbers as zero.
_HOSTILE = {"x86_64": 0x1F80 | 0x8000 | 0x0040 | 0x4000, "aarch64": 1 << 24 | 1 << 22}
_PLACE = {"x86_64": 28, "aarch64": 0}  # of the control word in fenv_t
_STICKY = 0x3F  # flags of what happened, in MXCSR


def read_control() -> int | None:
    """MXCSR without its flags, or FPCR; None on other processors."""
    place = _PLACE.get(platform.machine())
    if place is None:
        return None
    word = int(struct.unpack_from("<I", _read_environment(), place)[0])
    return word & ~_STICKY if platform.machine() == "x86_64" else word


def describe_control(word: int | None) -> str:
    """What a control word says."""
    if word is None:
        return "not readable on this processor"
    if platform.machine() == "x86_64":
        rounding, flushes, name = word >> 13 & 3, [bool(word & 0x8000), bool(word & 0x40)], "MXCSR"
    else:
        rounding, flushes, name = _ARM_ROUNDING[word >> 22 & 3], [bool(word & 1 << 24)], "FPCR"
    told = [f"{what} {'on' if on else 'off'}" for what, on in zip(("FTZ", "DAZ"), flushes, strict=False)]
    return f"{name} {word:#06x}: rounds {_ROUNDING[rounding]}, {', '.join(told)}"


def is_default(word: int | None) -> bool:
    """Whether it rounds to nearest and flushes nothing."""
    hostile = _HOSTILE.get(platform.machine(), 0)
    rounding = 0x6000 if platform.machine() == "x86_64" else 3 << 22
    flush = hostile & (0x8040 if platform.machine() == "x86_64" else 1 << 24)
    return word is None or not word & (rounding | flush)


@contextlib.contextmanager
def hostile_control() -> Iterator[bool]:
    """A time in which this thread, and threads it starts, round up and flush subnormals to zero; False if this
    processor's word cannot be set."""
    machine = platform.machine()
    if machine not in _PLACE:
        yield False
        return
    found = _read_environment()
    other = bytearray(found)
    struct.pack_into("<I", other, _PLACE[machine], _HOSTILE[machine])
    libm = _load_libm()
    libm.fesetenv(ctypes.create_string_buffer(bytes(other), _ENVIRONMENT_BYTES))
    try:
        yield True
    finally:
        libm.fesetenv(ctypes.create_string_buffer(found, _ENVIRONMENT_BYTES))


def _read_environment() -> bytes:
    buffer = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _load_libm().fegetenv(buffer)
    return buffer.raw


def _load_libm() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
