"""exactlm doctor as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from exactlm.kernels.select import available_isas


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exactlm", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def test_json_in_an_odd_environment() -> None:
    """Variables that change what float engines compute change nothing here."""
    odd = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "7", "MKL_DYNAMIC": "TRUE", "NVIDIA_TF32_OVERRIDE": "1"}
    ran = doctor("--json", **odd)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["sound"], told["failed"]) == (True, [])
    tested = [f for f in told["findings"] if f["topic"] == "self-test"]
    assert [f["name"] for f in tested] == [*available_isas(), "control word"]
    assert {f["state"] for f in tested} == {"ok"}
    values = {f["name"]: f["value"] for f in told["findings"]}
    assert values["OMP_NUM_THREADS"] == "7"


def test_text() -> None:
    ran = doctor()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("\nwhat exactlm promises holds here\n")
    for topic in ("machine", "self-test", "environment", "GPU"):
        assert f"\n{topic}\n" in f"\n{ran.stdout}"


def test_what_fails_is_told_last(tmp_path: os.PathLike[str]) -> None:
    ran = doctor(str(tmp_path))
    assert ran.returncode == 1
    assert ran.stdout.endswith("\nFAILS: model\n")


def test_exports_only() -> None:
    ran = doctor("--env", "float")
    assert ran.returncode == 0
    assert ran.stdout.startswith("export CUBLAS_WORKSPACE_CONFIG=:4096:8")
    assert doctor("--env", "other").returncode == 2
