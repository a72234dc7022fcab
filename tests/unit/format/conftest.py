"""A small model directory to damage."""

import shutil
from pathlib import Path

import pytest

from exactlm import convert_to_deterministic
from tests.tiny import write_checkpoint


@pytest.fixture(scope="session")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    return convert_to_deterministic(write_checkpoint(folder / "hf"), precision="int8").save_pretrained(folder / "model")


@pytest.fixture
def model(sound_model: Path, tmp_path: Path) -> Path:
    """A copy of its own."""
    return Path(shutil.copytree(sound_model, tmp_path / "model"))
