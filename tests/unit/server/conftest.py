"""A tiny model for the parts of the server that need one."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm import LLM, convert_to_deterministic
from tests import tiny


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("server")
    source = tiny.write_checkpoint(folder / "source")
    return LLM(convert_to_deterministic(source).save_pretrained(folder / "model", progress=False), threads=1)
