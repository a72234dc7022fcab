"""kill -9 at random moments loses no receipt that was acknowledged, and leaves the chain whole."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactlm.proof.ledger import Ledger
from tests.conftest import ROOT
from tests.ledger import fresh_postgres

THREADS = 6


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "ledger.db")
    else:
        with fresh_postgres() as url:
            yield url


class Appender:
    """A process that appends, and writes the digests that were acknowledged into a file."""

    def __init__(self, place: str, said: Path, first: int, *mode: str) -> None:
        command = [sys.executable, "-m", "tests.integration.appender", place, str(first), str(THREADS), *mode]
        self._said = said
        with said.open("ab") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=file)

    def wait(self) -> None:
        """Until it has said something."""
        end = time.monotonic() + 60
        while not self._said.stat().st_size:
            assert self._process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)

    def kill(self) -> set[str]:
        """kill -9; what it had said."""
        self._process.kill()
        assert self._process.wait() == -9
        return set(self._said.read_text().split("\n")[:-1])


def run(place: str, folder: Path, count: int, seed: int, *mode: str) -> tuple[set[str], int]:
    """Two processes at a time append and are killed, again and again, until `count` receipts were acknowledged."""
    draw = random.Random(seed)
    acknowledged: set[str] = set()
    kills = 0
    while len(acknowledged) < count:
        pair = [Appender(place, folder / f"said{kills + i}", (kills + i) * 1_000_000, *mode) for i in range(2)]
        try:
            for appender in pair:
                appender.wait()
        finally:
            for appender in draw.sample(pair, 2):
                time.sleep(draw.uniform(0, 0.8))
                acknowledged |= appender.kill()
                kills += 1
    return acknowledged, kills


def check(place: str, acknowledged: set[str]) -> int:
    """Entries in the ledger; all that was acknowledged is among them, and the chain is whole."""
    with Ledger.open(place, can_create=False) as ledger:
        digests = [receipt["digest"] for entry in ledger.entries() if (receipt := entry.receipt) is not None]
        report = ledger.verify()
    assert report.is_sound, report
    assert report.num_entries == len(digests) == len(set(digests))
    assert acknowledged <= set(digests)
    return len(digests)


def test_kill_loses_nothing(place: str, tmp_path: Path) -> None:
    acknowledged, kills = run(place, tmp_path, 150, 1)
    assert kills >= 2
    assert check(place, acknowledged) >= 150


@pytest.mark.slow
def test_kill_loses_nothing_of_ten_thousand(place: str, tmp_path: Path) -> None:
    acknowledged, kills = run(place, tmp_path, 10_000, 2)
    total = check(place, acknowledged)
    print(f"{len(acknowledged)} acknowledged, {total} in the ledger, {kills} kills")
    assert kills >= 10


def test_a_ledger_that_acknowledges_early_is_caught(tmp_path: Path) -> None:
    """The control: what is said before it is durable is lost by the same kills."""
    place = str(tmp_path / "ledger.db")
    said, _ = run(place, tmp_path, 150, 3, "early")
    with Ledger.open(place) as ledger:
        digests = {receipt["digest"] for entry in ledger.entries() if (receipt := entry.receipt) is not None}
        assert ledger.verify().is_sound
    assert said - digests
