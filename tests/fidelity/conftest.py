"""The oracle as a fixture, and the figures of a run printed at its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fidelity.reference import MissingPackageError, Oracle

FIGURES: list[str] = []


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    try:
        return Oracle.find()
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.fixture
def record() -> Callable[[str], None]:
    """Takes a line of figures for the summary."""
    return FIGURES.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("fidelity to transformers, float32")
        for line in FIGURES:
            terminalreporter.write_line(line)
