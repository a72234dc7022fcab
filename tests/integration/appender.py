"""A process that appends receipts until it is killed, and says each one that the ledger has acknowledged.

    python -m tests.integration.appender URL_OR_PATH FIRST_NUMBER NUM_THREADS [early]

early: says it before the ledger does, as a ledger that loses receipts would.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from exactlm.proof.ledger import Ledger
from tests.ledger import make


def main() -> None:
    where, first, num_threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    is_early = sys.argv[4:] == ["early"]
    ledger, numbers = Ledger.open(where), itertools.count(first)

    def work() -> None:
        for number in numbers:
            receipt = make(number)
            if is_early:
                ledger.submit([receipt])
            else:
                ledger.append(receipt)
            os.write(1, f"{receipt['digest']}\n".encode())

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
