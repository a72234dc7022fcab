"""Opens hostile files in a process of its own, with the memory and time that a bad file may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECONDS = 5.0  # of processor time: what else the machine does is not the file's fault
BYTES = 256 << 20
# Peak memory counts what the file costs on top of the interpreter, NumPy and the tokenizers library.
PROGRAM = """
import resource, sys, time
from pathlib import Path
from exactlm.{module} import {function}
from exactlm.errors import ExactlmError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before, start = peak(), time.process_time()
try:
    {function}(Path(sys.argv[1]))
    print("opened")
except ExactlmError as error:
    print(type(error).__name__, error)
print(time.process_time() - start)
print(peak() - before)
"""


def open_in_limits(path: Path, module: str = "convert.checkpoint", function: str = "open_checkpoint") -> str:
    """ "opened" or the name of the error and its message; fails if opening crossed the limits or died otherwise."""
    program = PROGRAM.format(module=module, function=function)
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    outcome, seconds, size = done.stdout.rsplit("\n", 3)[:3]
    assert float(seconds) < SECONDS, f"{seconds} s for {path.name}: {outcome[:200]}"
    assert int(size) < BYTES, f"{int(size) >> 20} MiB for {path.name}: {outcome[:200]}"
    return outcome
