"""Group commit: a thread that appends whatever waits, in one transaction, and then tells everybody who waited.

Knows neither the database nor the chain.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from exactlm.errors import LedgerError
from exactlm.proof.ledger_entry import Entry, Sealed, seal_receipt
from exactlm.receipt import Receipt

MAX_GROUP = 256  # requests in a transaction
_Result = Future[list[Entry]]


class Writer:
    """Appends with `append`, which is called in one thread, a whole group at a time."""

    def __init__(self, append: Callable[[Sequence[Sealed]], list[Entry]]) -> None:
        self._append = append
        self._waiting: deque[tuple[list[Receipt], _Result]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, receipts: list[Receipt]) -> _Result:
        """Queues receipts that belong together. LedgerError if the ledger is closed."""
        result: _Result = Future()
        result.set_running_or_notify_cancel()  # who has stopped waiting cannot take it back
        with self._changed:
            if self._is_closed:
                raise LedgerError("the ledger is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exactlm-ledger", daemon=True)
                self._thread.start()
            self._waiting.append((receipts, result))
            self._changed.notify()
        return result

    def close(self) -> None:
        """Appends what waits, and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while group := self._take():
            sealed = [(items, result) for receipts, result in group if (items := _seal(receipts, result)) is not None]
            if sealed:
                self._commit(sealed)

    def _take(self) -> list[tuple[list[Receipt], _Result]]:
        """Waits for requests; an empty list ends the thread."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]

    def _commit(self, group: list[tuple[list[Sealed], _Result]]) -> None:
        try:
            entries = self._append([item for items, _ in group for item in items])
        except Exception as error:
            for _, result in group:
                result.set_exception(error)
            return
        begin = 0
        for items, result in group:
            result.set_result(entries[begin : begin + len(items)])
            begin += len(items)


def _seal(receipts: list[Receipt], result: _Result) -> list[Sealed] | None:
    """None if they cannot be sealed: then whoever waits knows."""
    try:
        return [seal_receipt(receipt) for receipt in receipts]
    except Exception as error:
        result.set_exception(error)
        return None
