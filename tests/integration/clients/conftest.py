"""One server of the tiny model for the folder, and the interpreter that has the heavy clients."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactlm import LLM
from tests.integration.load.server import capacity
from tests.integration.server.process import ServerProcess


@pytest.fixture(scope="package")
def tiny_llm(tiny_model: Path) -> LLM:
    return LLM(tiny_model, threads=1)


@pytest.fixture(scope="package")
def server(tiny_model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model, *capacity(max_batch=32), "--model-name", "tiny") as started:
        yield started


def find_python(*modules: str) -> str:
    """The interpreter EXACTLM_CLIENTS_PYTHON, if it has these modules; else the test skips."""
    python = os.environ.get("EXACTLM_CLIENTS_PYTHON")
    if not python:
        pytest.skip(f"EXACTLM_CLIENTS_PYTHON does not name an interpreter that has {' and '.join(modules)}")
    found = subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"{python} lacks {' or '.join(modules)}: {found.stderr.strip().splitlines()[-1]}")
    return python
