"""Keeps mapped weights in memory, so that a quiet hour does not make the next request wait for the disk."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import CapacityError


def lock_tensors(tensors: Mapping[str, NDArray[np.generic]]) -> int:
    """mlock of every tensor; returns the bytes locked. CapacityError, with the limit, where the system refuses: then
    nothing stays locked."""
    libc = ctypes.CDLL(None, use_errno=True)
    done: list[tuple[int, int]] = []
    for tensor in tensors.values():
        if not tensor.nbytes:
            continue
        address = ctypes.c_void_p(tensor.ctypes.data), ctypes.c_size_t(tensor.nbytes)
        if libc.mlock(*address) != 0:
            reason = os.strerror(ctypes.get_errno())
            for begin, size in done:
                libc.munlock(ctypes.c_void_p(begin), ctypes.c_size_t(size))
            total = sum(t.nbytes for t in tensors.values())
            raise CapacityError(
                f"mlock: {total} bytes of weights cannot be locked in memory ({reason}); the limit is {_limit()}: "
                "raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of a container) or leave mlock off"
            )
        done.append((tensor.ctypes.data, tensor.nbytes))
    return sum(size for _, size in done)


def _limit() -> str:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return ", ".join(
        f"{'unlimited' if value == resource.RLIM_INFINITY else f'{value} bytes'} ({kind})"
        for kind, value in (("soft", soft), ("hard", hard))
    )
