"""GPUs of this machine as nvidia-smi tells of them, and torch's flags: what float engines depend on."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from typing import Any

from exactlm.doctor.finding import FLOAT, NOTE, OK, Finding

TOPIC = "GPU"
MIN_DRIVER = 525
_FIELDS = ("name", "driver_version", "clocks.current.sm", "clocks.max.sm", "persistence_mode", "ecc.mode.current")
_SECONDS = 20
_FOR = "driver and clocks, for float models on it"
_FLAGS = "its flags choose how float sums are made"
_NO_TORCH = "torch takes no part in an answer"
_NOT_HERE = "it computes on the processor, and no timing enters an answer"


def examine_gpu() -> list[Finding]:
    """One finding for each GPU's driver and clocks."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [Finding(TOPIC, "GPU", "none: there is no nvidia-smi", FLOAT, _FOR, OK, _NOT_HERE)]
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding(TOPIC, "GPU", f"nvidia-smi fails: {error}", FLOAT, _FOR, NOTE, _NOT_HERE)]
    if ran.returncode != 0:
        reason = " ".join((ran.stderr or ran.stdout).split())[:200]
        return [Finding(TOPIC, "GPU", f"nvidia-smi fails: {reason}", FLOAT, _FOR, NOTE, _NOT_HERE)]
    return [finding for index, line in enumerate(ran.stdout.splitlines()) for finding in read_gpu(index, line)]


def read_gpu(index: int, line: str) -> list[Finding]:
    """What one line of nvidia-smi's answer says."""
    values = dict(zip(_FIELDS, [word.strip() for word in line.split(",")], strict=False))
    driver = values.get("driver_version", "")
    major = driver.split(".")[0]
    is_new = major.isdecimal() and int(major) >= MIN_DRIVER
    now, most = values.get("clocks.current.sm", "?"), values.get("clocks.max.sm", "?")
    state = f"persistence {values.get('persistence_mode', '?')}, ECC {values.get('ecc.mode.current', '?')}"
    return [
        Finding(
            TOPIC,
            f"GPU {index} driver",
            f"{driver or 'unknown'}, {values['name']}",
            FLOAT,
            f"CUDA 12 needs {MIN_DRIVER} or later, and another version may choose other kernels",
            OK if is_new else NOTE,
            _NOT_HERE,
        ),
        Finding(
            TOPIC,
            f"GPU {index} clocks",
            f"{now} of at most {most} MHz, {state}",
            FLOAT,
            "boost changes timings, and with them who shares a batch",
            OK,
            _NOT_HERE,
        ),
    ]


def examine_torch(may_import: bool) -> list[Finding]:
    """torch's flags, if it is installed. may_import: to import it takes seconds and may change this process."""
    if not may_import:
        asked = "not looked at: `exactlm doctor --torch`, under a Python that has torch, shows cuDNN's and TF32's flags"
        return [Finding("torch", "cuDNN and TF32 flags", asked, FLOAT, _FLAGS, OK, _NO_TORCH)]
    if importlib.util.find_spec("torch") is None:
        return [Finding("torch", "torch", "not installed", FLOAT, _FLAGS, OK, _NO_TORCH)]
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except (ImportError, OSError) as error:  # a library that it needs is missing, say
        return [Finding("torch", "torch", f"cannot be imported: {error}", FLOAT, _FLAGS, NOTE, _NO_TORCH)]

    given: Any = torch
    backends = given.backends
    flags = (
        ("use_deterministic_algorithms", given.are_deterministic_algorithms_enabled(), True),
        ("cudnn.deterministic", backends.cudnn.deterministic, True),
        ("cudnn.benchmark", backends.cudnn.benchmark, False),
        ("cudnn.allow_tf32", backends.cudnn.allow_tf32, False),
        ("cuda.matmul.allow_tf32", backends.cuda.matmul.allow_tf32, False),
        ("get_num_threads", given.get_num_threads(), 1),
    )
    why = f"torch {given.__version__}, as it starts; a float baseline wants"
    return [
        Finding("torch", name, str(value), FLOAT, f"{why} {wanted}", OK if value == wanted else NOTE, _NO_TORCH)
        for name, value, wanted in flags
    ]
