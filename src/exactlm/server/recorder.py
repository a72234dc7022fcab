"""Receipts of answers: signed if there is a key, and durable in the ledger before the answer's last bytes are sent.

The ledger's own thread waits for the disk, never the event loop. Knows nothing of formats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ConfigError, LedgerError, ReceiptError
from exactlm.llm import CompletionOutput, RequestOutput, Ticket
from exactlm.prompt import ReadPrompt
from exactlm.receipt import Receipt, check_receiptable
from exactlm.server.errors import ApiError
from exactlm.server.limit import RETRY_SECONDS
from exactlm.signature import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from exactlm.proof.ledger import Ledger


_LOG = logging.getLogger("exactlm.server")
_WITHHELD = "the answer cannot be recorded now, and so is withheld"


class Recorder:
    """Makes receipts where they are due: in a ledger always, else for who asks. `key`: signs them."""

    def __init__(self, ledger: Ledger | None = None, key: Ed25519PrivateKey | None = None) -> None:
        self._ledger, self._key = ledger, key

    @property
    def has_ledger(self) -> bool:
        """Whether every answer is recorded."""
        return self._ledger is not None

    def check(self, prompts: Sequence[ReadPrompt], params: SamplingParams) -> None:
        """ApiError for a request that no receipt could be made of, before anything is computed for it."""
        try:
            for prompt in prompts:
                check_receiptable(prompt, params)
        except ReceiptError as error:
            message = f"a receipt is made of this request, and cannot hold it: {error}"
            raise ApiError(400, message, code="invalid_value") from None
        except ConfigError as error:
            message = f"this server makes no receipts: {error}"
            raise ApiError(400, message, param="exactlm.receipt", code="not_available") from None

    def collect(self, tickets: Sequence[Ticket]) -> list[RequestOutput]:
        """The outputs of finished requests with their receipts. In a worker thread: this takes milliseconds."""
        outputs = [ticket.output() for ticket in tickets]
        return [replace(output, outputs=[self._sign(a) for a in output.outputs]) for output in outputs]

    def _sign(self, answer: CompletionOutput) -> CompletionOutput:
        if self._key is None or answer.receipt is None:
            return answer
        return replace(answer, receipt=sign(answer.receipt, self._key))

    async def record(self, request: str, outputs: Sequence[RequestOutput], is_begun: bool = False) -> None:
        """Returns when the receipts are durable, if there is a ledger. ApiError 503: they are not. request: its id.
        is_begun: something of the answers was sent, and only the rest is withheld."""
        if self._ledger is None:
            return
        try:
            await asyncio.wrap_future(self._ledger.submit(list_receipts(outputs)))
        except LedgerError as error:
            told = "what was sent of the answer is not recorded, and the rest is withheld" if is_begun else _WITHHELD
            _LOG.error("request %s: %s: %s", request, told, error)
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise ApiError(503, f"{told}; the server's log says why", code="not_recorded", headers=headers) from None

    async def record_rest(self, request: str, outputs: Sequence[RequestOutput]) -> None:
        """Records what was made of a stream that ended early, whose text is sent and cannot be withheld: where that
        fails the log says so. request: its id."""
        if self._ledger is None:
            return
        told = "request %s: the stream ended early, and what was sent of it is not recorded: %s"
        for number, answer in enumerate(answer for output in outputs for answer in output.outputs):
            if answer.token_ids and answer.receipt is None:
                _LOG.error(told, request, f"choice {number} failed where no receipt can be made of it")
        receipts = list_receipts(outputs)
        if not receipts:
            return
        try:
            await asyncio.wrap_future(self._ledger.submit(receipts))
        except LedgerError as error:
            _LOG.error(told, request, error)

    def close(self) -> None:
        """Appends what was submitted, and closes the ledger."""
        if self._ledger is not None:
            self._ledger.close()


def list_receipts(outputs: Sequence[RequestOutput]) -> list[Receipt]:
    """One for each choice, in the order of the choices."""
    return [answer.receipt for output in outputs for answer in output.outputs if answer.receipt is not None]
