"""Locking weights in memory: what is locked, and what a process without the right to is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from exactlm.format.memory_lock import lock_tensors

FORBIDDEN = """
import os, resource
import numpy as np
from exactlm.errors import CapacityError
from exactlm.format.memory_lock import lock_tensors

tensors = {"small": np.ones(100), "large": np.ones(1 << 20)}
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.geteuid() == 0:
    os.seteuid(65534)  # root may lock what it likes
try:
    lock_tensors(tensors)
except CapacityError as error:
    print(error)
print(open("/proc/self/status").read())
"""


def locked_kib() -> int:
    return int(re.findall(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def test_tensors_are_locked() -> None:
    before = locked_kib()
    tensors = {"a": np.ones(1 << 18, np.float32), "empty": np.ones(0)}
    assert lock_tensors(tensors) == 1 << 20
    assert locked_kib() - before >= 1 << 10


def test_a_limit_that_forbids_it_is_told_and_nothing_stays_locked() -> None:
    result = subprocess.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=True)
    assert "8389408 bytes of weights cannot be locked" in result.stdout
    assert "65536 bytes (soft), 65536 bytes (hard)" in result.stdout
    assert "ulimit -l" in result.stdout
    assert re.search(r"VmLck:\s+0 kB", result.stdout)
