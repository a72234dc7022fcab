"""Background load: processes of the lowest priority that want every processor, and end with their parent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# The parent, which is the argument, may be killed: each process looks now and then whether it still has it.
SPIN = "import os, sys\nos.nice(19)\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(10**5))"


@contextlib.contextmanager
def busy_processors(is_wanted: bool) -> Iterator[None]:
    """Keeps every processor busy inside the `with` block, if wanted."""
    count = (os.cpu_count() or 1) if is_wanted else 0
    command = [sys.executable, "-I", "-S", "-c", SPIN, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
