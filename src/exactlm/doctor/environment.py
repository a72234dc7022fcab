"""Environment variables that float engines need for reproducible results, and why exactlm does not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exactlm.doctor.finding import FLOAT, NOTE, OK, Finding

TOPIC = "environment"


@dataclass(frozen=True)
class Variable:
    """`value`: for a float baseline. `effect`: what it pins there. `area`: why it cannot matter here."""

    name: str
    value: str
    effect: str
    area: str


_GPU, _THREADS, _OTHER = "gpu", "threads", "other"
VARIABLES = (
    Variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS may split sums otherwise from run to run without it", _GPU),
    Variable("CUDA_LAUNCH_BLOCKING", "1", "kernels run one after another: no race between streams; slow", _GPU),
    Variable("NVIDIA_TF32_OVERRIDE", "0", "float32 products are not rounded to 10 bits first", _GPU),
    Variable("NCCL_ALGO", "Ring", "the order of sums across devices; else chosen by size and topology", _GPU),
    Variable("NCCL_PROTO", "Simple", "the same, for how pieces are sent", _GPU),
    Variable("NCCL_DEBUG", "INFO", "changes nothing; tells which algorithm was chosen", _GPU),
    Variable("OMP_NUM_THREADS", "1", "sums are split by the number of threads", _THREADS),
    Variable("OMP_DYNAMIC", "FALSE", "the number of threads does not follow the load", _THREADS),
    Variable("MKL_NUM_THREADS", "1", "sums are split by the number of threads", _THREADS),
    Variable("MKL_DYNAMIC", "FALSE", "the number of threads does not follow the load", _THREADS),
    Variable("MKL_CBWR", "COMPATIBLE", "one code path on every processor, whatever its instruction set", _THREADS),
    Variable("OPENBLAS_NUM_THREADS", "1", "sums are split by the number of threads", _THREADS),
    Variable("PYTHONHASHSEED", "0", "the order of sets, where an engine iterates over them", _OTHER),
)
_LIBRARIES = {
    _GPU: r"lib(?:cuda|cudart|cublas|cudnn|nccl)\b[^/\s]*\.so",
    _THREADS: r"lib(?:gomp|iomp5|omp|mkl_\w+)\b[^/\s]*\.so",
}
_PYTHON = """# and in Python, before the model is loaded:
#   import torch
#   torch.use_deterministic_algorithms(True)
#   torch.backends.cudnn.benchmark = False
#   torch.backends.cuda.matmul.allow_tf32 = False
#   torch.backends.cudnn.allow_tf32 = False
# Same batch, same order, same machine: none of this makes a float engine independent of who shares its batch."""


def examine_environment(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """One finding for each variable."""
    loaded = list_loaded()
    reasons = {
        _GPU: _tell_absence(loaded[_GPU], "no CUDA library", "exactlm computes on the processor"),
        _THREADS: _tell_absence(
            loaded[_THREADS], "no OpenMP or MKL", "our threads are our own, and sums are of integers"
        ),
        _OTHER: "the hash of no text enters an answer",
    }
    findings = []
    for variable in VARIABLES:
        given = environment.get(variable.name)
        value = "not set" if given is None else given
        state = OK if given == variable.value else NOTE
        findings.append(Finding(TOPIC, variable.name, value, FLOAT, variable.effect, state, reasons[variable.area]))
    return findings


def list_loaded() -> dict[str, list[str]]:
    """Libraries of float engines that are loaded in this process, by area."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    return {area: sorted(set(re.findall(pattern, maps))) for area, pattern in _LIBRARIES.items()}


def make_exports() -> str:
    """Shell lines for a float baseline."""
    lines = [f"export {v.name}={v.value}  # {v.effect}" for v in VARIABLES]
    return "\n".join([*lines, _PYTHON])


def _tell_absence(found: list[str], nothing: str, reason: str) -> str:
    return f"{reason}; " + (f"{nothing} is loaded (looked up)" if not found else f"loaded all the same: {found[0]}")
