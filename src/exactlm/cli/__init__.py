"""The command line. Exit status 0 done, 1 the answer is no, 2 wrong usage or input, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. The commands load inside, so that Ctrl-C meanwhile ends quietly."""
    try:
        from exactlm.cli.program import execute

        return execute(arguments)
    except KeyboardInterrupt:
        print("exactlm: interrupted", file=sys.stderr)
        return 130
