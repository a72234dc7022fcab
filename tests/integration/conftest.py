"""A tiny converted model for the whole folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm import convert_to_deterministic
from tests import tiny


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_checkpoint(tmp_path_factory.mktemp("integration") / "source")


@pytest.fixture(scope="session")
def tiny_model(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("integration") / "model"
    return convert_to_deterministic(source).save_pretrained(target, progress=False)
