"""Runs one call on a stack large enough for recursion as deep as a text of 64 KiB can ask for.

Native code that overflows its stack ends the process; a Python thread has 8 MiB, or less. Knows nothing of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from exactlm.errors import CapacityError

STACK_BYTES = 1 << 29  # address space: memory is used only as deep as the call goes
_LOCK = threading.Lock()

T = TypeVar("T")


def call_deeply(function: Callable[[], T]) -> T:
    """What `function` returns or raises. CapacityError if the system refuses the thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="exactlm-deep-call", daemon=True)
    with _LOCK:  # the size is set for the whole process, so for as short as can be
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise CapacityError(
                f"no thread with a stack of {STACK_BYTES >> 20} MiB of address space: {error}"
            ) from None
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
