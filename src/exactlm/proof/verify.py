"""Checks receipts against a model: computes every answer again, all its tokens in a few wide steps, and names the first
thing that differs. spec/receipts.md 5.

The claimed tokens are drafts: what the engine keeps of them is exactly what it would have answered. So checking is a
prefill, not a decode, and nothing here knows the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exactlm.answer import Ticket
from exactlm.engine.sequence import Sequence as TokenSequence
from exactlm.errors import CapacityError, NumericError, RequestError, TemplateError, TokenizerError
from exactlm.llm import LLM
from exactlm.proof.claim import check_claimed_signature, check_digest, check_identity, read_request
from exactlm.proof.verdict import Mismatch, Verdict, judge
from exactlm.receipt import Receipt, read_params

WINDOW = 64  # receipts under way at a time


@dataclass(frozen=True)
class _Check:
    """A receipt under way. `broken_digest`: what is to be said of its digest if that does not fit."""

    index: int
    receipt: Receipt
    ticket: Ticket
    broken_digest: str | None

    def look(self) -> Verdict | None:
        """The verdict, if the answer is there."""
        sequence = self.ticket.answers[0].sequence
        try:
            self.ticket.poll()
            if not self.ticket.is_done:
                return None
            _compare(self.receipt, self.ticket)
        except Mismatch as error:
            return judge(self.index, self.broken_digest, error)
        except (NumericError, RequestError) as error:
            try:
                _compare_tokens(self.receipt, sequence)
            except Mismatch as earlier:
                return judge(self.index, self.broken_digest, earlier)
            at, num_claimed = len(sequence.output_ids), len(self.receipt["output"]["token_ids"])
            if at >= num_claimed:
                goes_on = Mismatch("token_ids", f"the answer goes on where the receipt ends, and fails: {error}", at)
                return judge(self.index, self.broken_digest, goes_on)
            return judge(self.index, self.broken_digest, Mismatch("steps", str(error), at))
        return judge(self.index, self.broken_digest)


class ClaimedAnswer:
    """Drafts what a receipt says that the answer was."""

    def __init__(self, num_prompt: int, token_ids: list[int]) -> None:
        self._num_prompt, self._token_ids = num_prompt, token_ids

    def propose(self, ids: list[int], limit: int) -> list[int]:
        done = len(ids) - self._num_prompt
        return self._token_ids[done : done + limit]

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        pass  # a claim does not get better


def verify_receipts(
    llm: LLM, receipts: Sequence[Receipt], needs_signature: bool = False, public_key: str | None = None
) -> Iterator[Verdict]:
    """A verdict for each receipt, in the order in which they are done.

    needs_signature: an unsigned receipt fails. public_key: hexadecimal; a receipt that another key signed fails.
    FormatError where a weight of this model is damaged: that says nothing of any receipt.
    """
    waiting = list(enumerate(receipts))[::-1]
    running: list[_Check] = []
    try:
        while waiting or running:
            while waiting and len(running) < WINDOW:
                index, receipt = waiting.pop()
                broken_digest = None
                try:
                    broken_digest = check_digest(receipt)
                    if broken_digest is None:  # else the signature does not fit either
                        check_claimed_signature(receipt, needs_signature, public_key)
                    check_identity(receipt, llm)
                    running.append(_Check(index, receipt, _submit(llm, receipt), broken_digest))
                except Mismatch as error:
                    yield judge(index, broken_digest, error)
                except CapacityError as error:
                    if broken_digest is not None:
                        yield Verdict(index, "digest", None, f"{broken_digest}; not computed: {error}")
                    else:
                        yield Verdict(index, reason=str(error), is_checked=False)
            llm.step()
            for check in list(running):
                if (verdict := check.look()) is not None:
                    running.remove(check)
                    yield verdict
    finally:
        for check in running:
            check.ticket.cancel()


def _submit(llm: LLM, receipt: Receipt) -> Ticket:
    """Check 6, and the claimed answer on its way."""
    request, claimed = receipt["request"], receipt["output"]["token_ids"]
    params, choice = read_params(receipt["sampling"])
    try:
        prompt = read_request(llm, request)
        drafter = ClaimedAnswer(len(prompt.token_ids), claimed)
        ticket = llm.submit(prompt, params, receipt=True, drafters=[drafter], choice=choice)
    except (RequestError, TemplateError, TokenizerError) as error:
        raise Mismatch("request", str(error)) from None
    answer, has_left = ticket.answers[0], False

    def is_over(token: int) -> bool:
        """Ends a replay one token after it has left the claimed answer: the digest of that step shows whether the
        receipt went on from this token or from the claimed one."""
        nonlocal has_left
        at = len(answer.sequence.output_ids) - 1
        if answer.take(token) or has_left or at >= len(claimed):
            return True
        has_left = token != claimed[at]
        return has_left and at + 1 == len(claimed)

    answer.sequence.is_ended_by = is_over
    return ticket


def _compare(receipt: Receipt, ticket: Ticket) -> None:
    """Checks 7 to 10."""
    _compare_tokens(receipt, ticket.answers[0].sequence)
    claimed, output = receipt["output"], ticket.answers[0].output()
    if (end := len(output.token_ids)) < len(ids := claimed["token_ids"]):
        raise Mismatch("token_ids", f"the answer ends after {end} tokens, the receipt has {len(ids)}", end)
    for name in ("finish_reason", "stop_reason", "text"):
        if (type(claimed[name]), claimed[name]) != (type(getattr(output, name)), getattr(output, name)):
            reason = f"{name} is {getattr(output, name)!r:.100}, the receipt says {claimed[name]!r:.100}"
            raise Mismatch(name, reason)
    if output.digest != (said := claimed["digest"]):
        raise Mismatch("output.digest", f"output.digest is {output.digest}, the receipt says {said!r:.80}")


def _compare_tokens(receipt: Receipt, sequence: TokenSequence) -> None:
    """Check 7."""
    steps, ids = sequence.digest.steps or [], receipt["output"]["token_ids"]
    for k, (found, token) in enumerate(zip(steps, sequence.output_ids, strict=True)):
        if k >= len(ids):
            raise Mismatch("token_ids", f"the answer goes on with token {token} where the receipt ends", k)
        if found != (said := receipt["steps"][k]):
            raise Mismatch("steps", f"what decides token {k} is another: {found}, not {said!r:.80}", k)
        if token != ids[k]:
            reason = f"token {k} is {token}, the receipt says {ids[k]}"
            if _goes_on_from(token, k, receipt, sequence):
                raise Mismatch("token_ids", reason, k)
            raise Mismatch("sampling", f"{reason}: all that decides it agrees but how it was chosen", k)


def _goes_on_from(token: int, k: int, receipt: Receipt, sequence: TokenSequence) -> bool:
    """Whether what the receipt says after token k was computed after this token, and only its id was altered."""
    said, found = receipt["steps"], sequence.digest.steps or []
    if k + 1 < len(said):
        return k + 1 < len(found) and said[k + 1] == found[k + 1]
    return bool(receipt["output"]["digest"] == sequence.digest.hexdigest())
