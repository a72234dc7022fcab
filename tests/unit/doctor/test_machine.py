"""What the doctor says of a machine, its environment and its GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from exactlm.doctor.environment import VARIABLES, examine_environment, list_loaded, make_exports
from exactlm.doctor.finding import FAIL, FLOAT, NOTE, OK, OURS, Finding
from exactlm.doctor.gpu import examine_gpu, examine_torch, read_gpu
from exactlm.doctor.machine import examine_machine, read_cpu_quota, read_memory, read_memory_limit
from exactlm.kernels.select import available_isas


def find(findings: Iterable[Finding], name: str) -> Finding:
    (found,) = [f for f in findings if f.name == name]
    return found


def test_this_machine() -> None:
    findings = list(examine_machine(None))
    assert not [f for f in findings if f.state == FAIL]
    assert available_isas()[-1] in find(findings, "instruction set").value
    assert find(findings, "C library").why_not.startswith("its kernels need no function")
    total, available = read_memory()
    assert total is not None
    assert available is not None
    assert 1 << 28 < available <= total


@pytest.mark.parametrize(
    ("variable", "value", "name"), [("EXACTLM_ISA", "z80", "instruction set"), ("EXACTLM_THREADS", "0", "threads")]
)
def test_a_setting_that_cannot_be_honoured_fails(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
) -> None:
    monkeypatch.setenv(variable, value)
    finding = find(examine_machine(None), name)
    assert (finding.state, finding.needed_by) == (FAIL, OURS)
    assert value in finding.value


def test_more_threads_than_processors_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLM_THREADS", str(len(os.sched_getaffinity(0)) + 1))
    assert find(examine_machine(None), "threads").state == NOTE


def test_a_model_that_is_none_fails(tmp_path: Path) -> None:
    finding = find(examine_machine(str(tmp_path)), "model")
    assert finding.state == FAIL
    assert str(tmp_path) in finding.value


def test_a_flipped_bit_of_a_weight_is_found(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    assert find(examine_machine(str(model)), "digests").state == OK
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)
    findings = list(examine_machine(str(model)))
    assert find(findings, "model").state == OK
    assert find(findings, "digests").state == FAIL
    assert "model.safetensors, " in find(findings, "digests").value


def test_a_model_that_is_replaced_meanwhile_is_not_called_damaged(tiny_model: Path, tmp_path: Path) -> None:
    for change in ("replace", "remove"):
        model, other = tmp_path / change, tmp_path / f"{change}.new"
        shutil.copytree(tiny_model, model)
        shutil.copytree(tiny_model, other)
        findings = examine_machine(str(model))
        assert next(f for f in findings if f.name == "model").state == OK
        shutil.rmtree(model)
        if change == "replace":
            other.rename(model)
        finding = find(findings, "digests")
        assert finding.state == FAIL
        assert finding.value.startswith("changed while it was read: ")


def test_a_model_that_does_not_fit_fails(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(examine_machine(str(tiny_model)), "model").state == OK
    monkeypatch.setattr("exactlm.doctor.machine.read_memory_limit", lambda: 1 << 10)
    finding = find(examine_machine(str(tiny_model)), "model")
    assert finding.state == FAIL


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        ({"cpu.max": "150000 100000\n", "memory.max": "2147483648\n"}, 1.5, 1 << 31),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None, None),
        ({"memory/memory.limit_in_bytes": "1073741824\n"}, None, 1 << 30),
        ({"cpu.max": "nonsense\n", "memory.max": "\n"}, None, None),
    ],
)
def test_limits_of_a_control_group(
    tmp_path: Path, files: dict[str, str], quota: float | None, limit: int | None
) -> None:
    """Of version 2, and of version 1."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert read_cpu_quota(tmp_path) == quota
    assert read_memory_limit(tmp_path) == limit


def test_exports_give_a_float_baseline() -> None:
    """A shell evaluates them, and then nothing is left to note."""
    script = 'eval "$1"; env -0'
    ran = subprocess.run(["bash", "-c", script, "bash", make_exports()], capture_output=True, text=True, check=True)
    environment = dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)
    findings = examine_environment(environment)
    assert [f.name for f in findings] == [variable.name for variable in VARIABLES]
    assert {f.state for f in findings} == {OK}
    assert {f.needed_by for f in findings} == {FLOAT}
    assert {f.state for f in examine_environment({})} == {NOTE}
    assert ran.stderr == ""


def test_no_library_of_float_engines_is_loaded() -> None:
    """In a process of ours alone: pytest may have loaded others."""
    code = "from exactlm.doctor.environment import list_loaded; import exactlm; print(list_loaded())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "{'gpu': [], 'threads': []}\n"
    assert set(list_loaded()) == {"gpu", "threads"}


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("NVIDIA H200, 550.54.15, 345, 1980, Enabled, Enabled", OK),
        ("Tesla T4, 525.60.13, 585, 1590, Disabled, [N/A]", OK),
        ("Tesla V100, 470.82.01, 135, 1530, Enabled, Enabled", NOTE),
        ("odd", NOTE),
    ],
)
def test_drivers(line: str, state: str) -> None:
    driver, clocks = read_gpu(0, line)
    assert (driver.state, driver.needed_by) == (state, FLOAT)
    assert driver.why_not
    assert "MHz" in clocks.value


def test_torch_is_imported_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (finding,) = examine_torch(may_import=False)
    assert "exactlm doctor --torch" in finding.value
    assert "torch" not in sys.modules


def test_a_torch_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (finding,) = examine_torch(may_import=True)
    assert (finding.state, finding.needed_by) == (NOTE, FLOAT)
    assert "libcudart.so.12" in finding.value


def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = examine_gpu()
    assert "no nvidia-smi" in finding.value
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    program.chmod(0o755)
    (finding,) = examine_gpu()
    assert (finding.state, finding.value) == (NOTE, "nvidia-smi fails: NVIDIA-SMI has failed")
    program.write_text("#!/bin/sh\nprintf 'broken \\377\\n'; exit 3\n")
    (finding,) = examine_gpu()
    assert (finding.state, finding.value) == (NOTE, "nvidia-smi fails: broken \ufffd")
