"""Writes src/exactlm/doctor/pin.json, the digests of `exactlm doctor`, from the NumPy reference."""

from __future__ import annotations

import json
from pathlib import Path

from exactlm.doctor.selftest import compute
from exactlm.kernels.reference import ReferenceKernels

TARGET = Path(__file__).parent.parent / "src/exactlm/doctor/pin.json"

if __name__ == "__main__":
    TARGET.write_text(json.dumps(compute(ReferenceKernels()), indent=2) + "\n", encoding="ascii")
