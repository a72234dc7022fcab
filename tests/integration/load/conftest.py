"""A small load for the tiny model: real traffic cut down to a moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import data_file
from tests.integration.load.reference import Reference
from tests.integration.load.trace import FILE, read_arrivals
from tests.integration.load.workload import Request, Size, make_requests, read_texts

NUM_REQUESTS = 40
# Answers long enough, and arrivals so close, that they meet in the engine on a fast machine too.
SIZE = Size(prompt_divisor=8, max_prompt=110, answer_divisor=5, max_answer=70, time_divisor=1000)


@pytest.fixture(scope="session")
def tiny_reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture(scope="session")
def tiny_requests(tiny_reference: Reference) -> Sequence[Request]:
    arrivals = read_arrivals(data_file(FILE), NUM_REQUESTS)
    return make_requests(arrivals, read_texts(data_file), tiny_reference.llm.tokenizer, SIZE)
