"""EXACTLM_LOG: a level, or an error; silent without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exactlm import convert_to_deterministic
from tests import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "tiny", progress=False
    )


def run(model: Path, level: str | None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "EXACTLM_LOG"}
    environment = kept if level is None else {**kept, "EXACTLM_LOG": level}
    command = [sys.executable, "-m", "exactlm", "run", str(model), "the secret thing", "--max-tokens", "4"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_level_tells_more_and_never_a_text(model: Path) -> None:
    silent, told = run(model, None), run(model, "info")
    assert silent.returncode == told.returncode == 0
    assert silent.stderr == ""
    assert f"INFO exactlm.llm: {model} loaded in " in told.stderr
    assert "secret" not in told.stderr
    assert told.stdout == silent.stdout


def test_a_level_that_is_none_is_an_error(model: Path) -> None:
    found = run(model, "loud")
    assert found.returncode == 2
    assert "EXACTLM_LOG='loud': no such level; use one of debug, info, warning, error" in found.stderr
