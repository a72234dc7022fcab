"""A tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm import convert_to_deterministic
from tests import tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "model", progress=False
    )
