"""Processors, threads, memory and C library of this machine, as this process may use them. Linux; elsewhere less is
known."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from exactlm.doctor.control import describe_control, is_default, read_control
from exactlm.doctor.finding import FAIL, FLOAT, NOBODY, NOTE, OK, OURS, Finding
from exactlm.errors import ExactlmError
from exactlm.format.reader import ModelDirectory, open_model
from exactlm.kernels import _native
from exactlm.kernels.select import available_isas, choose_isa, choose_threads

TOPIC = "machine"
_CGROUP = Path("/sys/fs/cgroup")
_LIBM = rb"\0(?:(?:exp|log|sin|cos|tanh|pow|erf)(?:10|2|m1|1p)?f?|fmaf?)\0"


def examine_machine(model: str | None) -> Iterator[Finding]:
    """What is there; with a model directory, also whether it is whole and fits."""
    yield from (_examine_isa(), _examine_threads(), _examine_memory())
    needed = None
    if model is not None:
        try:
            directory = open_model(model)
        except ExactlmError as error:
            yield Finding(TOPIC, "model", str(error), OURS, "a model that cannot be opened cannot answer", FAIL)
        else:
            needed = sum(tensor.nbytes for tensor in directory.tensors.values())
            yield _examine_size(directory, needed)
            yield _examine_digests(directory)
    yield _examine_lock(needed)
    yield from _examine_rest()


def _examine_isa() -> Finding:
    why = "the fastest is taken, or that of EXACTLM_ISA; each gives the same bits, which the self-test shows"
    try:
        value, state = f"{choose_isa()}, of {', '.join(available_isas())}", OK
    except ExactlmError as error:
        value, state = str(error), FAIL
    lacking = [isa for isa in _native.compiled_isas() if isa not in available_isas()]
    if lacking:
        value += f"; this processor lacks {', '.join(lacking)}"
    return Finding(TOPIC, "instruction set", value, OURS, why, state)


def _examine_threads() -> Finding:
    why = "only speed: more threads than processors make it slow; the self-test shows that the number changes no bit"
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_cpu_quota()
    value = f"of {os.cpu_count()} processors this process may use {allowed}"
    value += f", and the time of {quota:g} (cgroup)" if quota is not None else ""
    try:
        threads = choose_threads()
    except ExactlmError as error:
        return Finding(TOPIC, "threads", str(error), OURS, why, FAIL)
    is_fitting = threads <= allowed and (quota is None or threads <= max(1.0, quota))
    advice = "" if is_fitting else "; set EXACTLM_THREADS to what there is"
    return Finding(TOPIC, "threads", f"{threads}; {value}{advice}", OURS, why, OK if is_fitting else NOTE)


def _examine_memory() -> Finding:
    total, available = read_memory()
    limit = read_memory_limit()
    value = f"{_gib(total)}, {_gib(available)} available" if total is not None else "unknown"
    value += f", limited to {_gib(limit)} (cgroup)" if limit is not None else ""
    return Finding(TOPIC, "memory", value, OURS, "a model's weights are mapped, its KV cache is reserved at the start")


def _examine_size(directory: ModelDirectory, size: int) -> Finding:
    why = "weights that do not fit are read from the disk again for every token: same bits, very slow"
    limits = [value for value in (read_memory()[0], read_memory_limit()) if value is not None]
    is_fitting = not limits or size < min(limits)
    value = f"{size:,} bytes of weights, fingerprint {directory.fingerprint:.16}"
    value += "" if is_fitting else f"; there are {_gib(min(limits))} of memory"
    return Finding(TOPIC, "model", value, OURS, why, OK if is_fitting else FAIL)


def _examine_digests(directory: ModelDirectory) -> Finding:
    why = "one changed bit is another model; else only `info`, --verify and receipts have all weights read"
    try:
        digests = list(directory.verify())
        directory.check_unchanged()
    except (ExactlmError, OSError) as error:
        return Finding(TOPIC, "digests", f"changed while it was read: {error}", OURS, why, FAIL)
    damaged = [name for name, is_sound in digests if not is_sound]
    value = f"all {len(digests)} of its files and tensors are what its manifest says"
    if damaged:
        value = f"NOT what its manifest says: {', '.join(damaged[:4])}{', ..' * (len(damaged) > 4)}; convert it again"
    return Finding(TOPIC, "digests", value, OURS, why, FAIL if damaged else OK)


def _examine_lock(needed: int | None) -> Finding:
    why = "only for mlock=True and --mlock, which keep the weights in memory"
    try:
        import resource
    except ImportError:
        return Finding(TOPIC, "locked memory", "unknown", OURS, why)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    told = ["no limit" if value == resource.RLIM_INFINITY else f"{value:,} bytes" for value in (soft, hard)]
    is_short = needed is not None and soft != resource.RLIM_INFINITY and soft < needed
    value = f"{told[0]} (at most {told[1]})" + ("; too little for this model: raise `ulimit -l`" if is_short else "")
    return Finding(TOPIC, "locked memory", value, OURS, why, NOTE if is_short else OK)


def _examine_rest() -> list[Finding]:
    word = read_control()
    libm = sorted({name.strip(b"\0").decode() for name in re.findall(_LIBM, Path(_native.__file__).read_bytes())})
    library = " ".join(part for part in platform.libc_ver() if part) or "unknown"
    own = "its kernels need no function of it that computes" if not libm else f"the kernels name {', '.join(libm)}"
    return [
        Finding(
            TOPIC,
            "control word",
            describe_control(word),
            FLOAT,
            "any library may change it for the whole process, and so their results",
            OK if is_default(word) else NOTE,
            "its kernels set their own and give this one back: see the self-test",
        ),
        Finding(
            TOPIC,
            "C library",
            library,
            FLOAT,
            "exp, log and sin differ between versions",
            OK if not libm else FAIL,
            f"{own} (looked up in the compiled module)",
        ),
        Finding(
            TOPIC, "page size", f"{os.sysconf('SC_PAGE_SIZE')} bytes", NOBODY, "weights are mapped with any page size"
        ),
        Finding(TOPIC, "processor", f"{platform.machine()}, {_name_processor()}", NOBODY, "see instruction set"),
    ]


def read_memory() -> tuple[int | None, int | None]:
    """Bytes of memory, and of them available."""
    try:
        text = Path("/proc/meminfo").read_text()
        found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
        return int(found["MemTotal"]) << 10, int(found["MemAvailable"]) << 10
    except (OSError, KeyError):
        return None, None


def read_memory_limit(root: Path = _CGROUP) -> int | None:
    """Bytes that the control group may use; None for no limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(root / name)
        if text.isdecimal() and int(text) < 1 << 60:
            return int(text)
    return None


def read_cpu_quota(root: Path = _CGROUP) -> float | None:
    """Processors whose time the control group may use; None for no limit."""
    words = _read(root / "cpu.max").split()
    if not words:
        words = [_read(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _name_processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1] if match else platform.processor() or "unknown"
