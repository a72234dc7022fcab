"""Calls on a large stack: results and errors come through, and nothing stays set."""

from __future__ import annotations

import ctypes
import threading

import pytest

from exactlm.errors import CapacityError
from exactlm.text import deep_call
from exactlm.text.deep_call import STACK_BYTES, call_deeply


def test_results_and_errors_come_through() -> None:
    assert call_deeply(lambda: [1]) == [1]
    with pytest.raises(KeyError, match="lost"):
        call_deeply(lambda: {}["lost"])
    with pytest.raises(KeyboardInterrupt):
        call_deeply(lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_the_stack_is_large_there_and_as_before_elsewhere() -> None:
    before = threading.stack_size()
    assert call_deeply(_stack_bytes) >= STACK_BYTES
    assert threading.stack_size() == before
    sizes: list[int] = []
    thread = threading.Thread(target=lambda: sizes.append(_stack_bytes()))
    thread.start()
    thread.join()
    assert sizes[0] < STACK_BYTES


def test_refused_thread_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.stack_size()
    monkeypatch.setattr(deep_call, "STACK_BYTES", 1 << 47)  # more than there is address space for
    with pytest.raises(CapacityError, match="no thread with a stack of"):
        call_deeply(lambda: None)
    assert threading.stack_size() == before


def _stack_bytes() -> int:
    """What the system says of this thread."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    attributes, address, size = ctypes.create_string_buffer(256), ctypes.c_void_p(), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes) == 0
    assert libc.pthread_attr_getstack(attributes, ctypes.byref(address), ctypes.byref(size)) == 0
    libc.pthread_attr_destroy(attributes)
    return size.value
