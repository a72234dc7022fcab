"""Processes that keep the machine busy are there while they are wanted, and never longer than who wanted them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from exactlm.bench.busy import SPIN, busy_processors


def list_busy() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if SPIN in read_command(child)]


def read_command(process: psutil.Process) -> list[str]:
    """Popen returns when the program is chosen; the system may fill in its arguments a moment later."""
    for _ in range(1000):
        if command := process.cmdline():
            return command
        time.sleep(0.01)
    raise AssertionError(f"{process} has no command line")


def test_they_end_with_the_block() -> None:
    with busy_processors(True):
        assert len(list_busy()) == os.cpu_count()
    assert list_busy() == []
    with busy_processors(False):
        assert list_busy() == []


def test_they_end_with_a_parent_that_is_killed_at_once() -> None:
    """Even one that has gone before they look for the first time."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", SPIN, "1000000000"], timeout=60)
    assert done.returncode == 0
