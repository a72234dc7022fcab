"""All findings of the doctor, in order; the self-test on every instruction set, with other threads and another control
word."""

from __future__ import annotations

from collections.abc import Iterator

from exactlm.doctor.control import hostile_control
from exactlm.doctor.environment import examine_environment
from exactlm.doctor.finding import FAIL, NOTE, OK, OURS, Finding
from exactlm.doctor.gpu import examine_gpu, examine_torch
from exactlm.doctor.machine import examine_machine
from exactlm.doctor.selftest import Digests, compute, prepare, read_pins
from exactlm.kernels.select import REFERENCE, available_isas, select_kernels

TOPIC = "self-test"
THREADS = (1, 3)


def examine(model: str | None = None, has_torch: bool = False) -> Iterator[Finding]:
    """Every finding, as it is made. model: a directory that should run here. has_torch: import torch and look."""
    yield from examine_machine(model)
    yield from examine_selftest()
    yield from examine_environment()
    yield from examine_gpu()
    yield from examine_torch(has_torch)


def examine_selftest() -> Iterator[Finding]:
    """Whether every instruction set of this machine finds the pinned digests."""
    pins = read_pins()
    prepare()
    for isa in available_isas():
        threads = (1,) if isa == REFERENCE else THREADS
        wrong = sorted({name for count in threads for name in find_wrong(compute(select_kernels(isa, count)), pins)})
        why = f"recomputes {len(pins)} pinned digests: every elementwise operation over all float16 values, and a model"
        value = "all as pinned" if not wrong else f"NOT as pinned: {', '.join(wrong)}"
        value += f", with {' and '.join(map(str, threads))} threads" if len(threads) > 1 else ", the definition"
        yield Finding(TOPIC, isa, value, OURS, why, FAIL if wrong else OK)
    yield _examine_control(pins)


def find_wrong(found: Digests, pins: Digests) -> list[str]:
    """Names of what is not as pinned."""
    return [name for name in pins if found.get(name) != pins[name]]


def _examine_control(pins: Digests) -> Finding:
    """The same with another control word, and for comparison NumPy, which obeys it as float engines do."""
    wrong: list[str] = []
    with hostile_control() as is_set:
        for isa in available_isas():
            if isa != REFERENCE:
                wrong += [f"{isa} {name}" for name in find_wrong(compute(select_kernels(isa, THREADS[1])), pins)]
        changed = len(find_wrong(compute(select_kernels(REFERENCE)), pins)) if is_set else 0
    why = "rounding up and flushing subnormals, as another library may leave it; kernels run with a word of their own"
    if not is_set:
        return Finding(TOPIC, "control word", "cannot be set on this processor", OURS, why, NOTE)
    value = "changes nothing" if not wrong else f"CHANGES {', '.join(wrong)}"
    value += f"; NumPy, which obeys it, finds {changed} of {len(pins)} digests otherwise"
    return Finding(TOPIC, "control word", value, OURS, why, FAIL if wrong else OK)
