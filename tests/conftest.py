"""What the test folders share: where the real inputs and the real model are, and the instruction sets of this
machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exactlm.kernels.select import REFERENCE, available_isas

ROOT = Path(__file__).parent.parent


def data_file(name: str) -> Path:
    """A file of EXACTLM_DATA (default: shared/data beside the checkout); the test skips, naming it, if it is not
    there."""
    folder = Path(os.environ.get("EXACTLM_DATA") or ROOT.parent / "shared" / "data")
    path = folder / name
    if not path.exists():
        pytest.skip(f"no {name} in {folder} (set EXACTLM_DATA)")
    return path


def model_directory(precision: str) -> Path:
    """The real model, converted by `make models`."""
    path = ROOT / ".cache" / "models" / f"smollm2-135m-{precision}"
    if not (path / "manifest.json").is_file():
        pytest.skip(f"no {path.relative_to(ROOT)} (run `make models`)")
    return path


@pytest.fixture(params=["fp16", "int8"])
def model_path(request: pytest.FixtureRequest) -> Path:
    return model_directory(request.param)


@pytest.fixture(params=[isa for isa in available_isas() if isa != REFERENCE])
def compiled_isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)
