"""The sandbox: what a program may and may not do, and that nothing runs where it cannot be isolated."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from exactlm.bench.sandbox import CPU_SECONDS, MEMORY_BYTES, WALL_SECONDS, Sandbox, list_folders
from exactlm.errors import ConfigError
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return Sandbox()
    except ConfigError as error:
        pytest.skip(f"no namespaces for this user: {error}")


@pytest.mark.parametrize(
    ("program", "tests", "compiles", "passes"),
    [
        ("def f(): return 1", "assert f() == 1", True, True),
        ("def f(): return 2", "assert f() == 1", True, False),
        ("def f(: return 1", "", False, False),
        ("x = '\udcff'", "", False, False),
        ("x = 1\0", "", True, True),
        ("print('compiled')", "assert 0", True, False),
        ("import os, sys\nsys.__stdout__.write('x')\nos.write(1, b'y')", "", True, True),
        ("import sys; sys.exit(0)", "", True, False),
        ("import os; os._exit(0)", "", True, False),
        ("x = bytearray(1 << 31)", "", True, False),
        ("import os\nos.fork()", "", True, False),
        ("import subprocess\nsubprocess.run(['/bin/true'])", "", True, False),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", "", True, False),
        ("while True: print('x' * 10000)", "", True, False),
        ("import os\nos.setuid(0)", "", True, False),
        ("def f(): return f()", "f()", True, False),
    ],
)  # fmt: skip
def test_outcome(sandbox: Sandbox, program: str, tests: str, compiles: bool, passes: bool) -> None:
    outcome = sandbox.run(program, tests)
    assert (outcome.compiles, outcome.passes) == (compiles, passes), outcome.report


def test_endless_program_is_stopped(sandbox: Sandbox) -> None:
    begin = time.monotonic()
    outcome = sandbox.run("while True: pass", "")
    assert (outcome.compiles, outcome.passes) == (True, False)
    assert time.monotonic() - begin > CPU_SECONDS / 2


def test_sleeping_program_is_stopped(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses no processor time."""
    monkeypatch.setattr("exactlm.bench.sandbox.WALL_SECONDS", 1)
    begin = time.monotonic()
    outcome = sandbox.run("import time\ntime.sleep(60)", "")
    assert (outcome.compiles, outcome.passes, outcome.report) == (True, False, "stopped after 1 s")
    assert time.monotonic() - begin < 30


def test_documented_limits_are_those_of_the_code() -> None:
    told = (ROOT / "docs" / "howto" / "bench.md").read_text()
    assert f"{CPU_SECONDS} seconds of processor time, {WALL_SECONDS} seconds in all, {MEMORY_BYTES >> 30} GiB" in told


def test_files_of_this_machine_are_neither_seen_nor_changed(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("keep")
    read = sandbox.run(f"open({str(secret)!r}).read()", "")
    assert "FileNotFoundError" in read.report
    assert not read.passes
    library = os.path.dirname(os.__file__)
    for action in (f"os.remove({os.__file__!r})", f"open({library + '/planted.py'!r}, 'w')"):
        assert not sandbox.run(f"import os\n{action}", "").passes
    assert Path(os.__file__).exists()
    assert not Path(library, "planted.py").exists()
    listing = sandbox.run("import os\nassert not {'home', 'tmp', 'proc', 'old', 'work'} & set(os.listdir('/'))", "")
    assert listing.passes, listing.report


def test_no_power_is_left(sandbox: Sandbox) -> None:
    """Started by another user than root, a program is root of its namespaces: it could mount that user's own folders
    for writing again. Started by root, it could run a program that becomes root."""
    program = f"""
import ctypes
libc = ctypes.CDLL(None)
held = (ctypes.c_uint32 * 6)()
assert libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and not any(held), list(held)
assert libc.prctl(39, 0, 0, 0, 0) == 1, "new privileges"
assert libc.mount(None, {list_folders()[-1]!r}.encode(), None, 4096 | 32, None) == -1
"""
    outcome = sandbox.run(program, "")
    assert outcome.passes, outcome.report
    outcome = sandbox.run("import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 28, 0o600) == -1", "")
    assert outcome.passes or not os.access("/proc/sys/kernel/shmall", os.W_OK), outcome.report


def test_nothing_is_left_behind(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert sandbox.run("x = 1", "").passes
    assert list(tmp_path.iterdir()) == []


def test_without_isolation_nothing_runs_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\necho unshare: Operation not permitted >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"Operation not permitted.*--unsafe"):
        Sandbox()
    assert Sandbox(is_isolated=False).run("x = 1", "assert x == 1").passes
    fake.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="unshare"):
        Sandbox()


def test_isolation_in_name_only_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `unshare` that only runs the interpreter, with our files and our network in reach."""
    fake = tmp_path / "unshare"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n'
                    'exec "$1" -I -S -c "$5" unsafe\n')  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match="AssertionError"):
        Sandbox()
