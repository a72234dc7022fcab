"""Checks receipts against a model: computes every answer again, all its tokens in a few wide steps, and names the first
thing that differs. spec/receipts.md 5.

The claimed tokens are drafts: what the engine keeps of them is exactly what it would have answered. So checking is a
prefill, not a decode, and nothing here knows the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exactlm.answer import Ticket
from exactlm.errors import CapacityError, NumericError, ReceiptError, RequestError, TemplateError, TokenizerError
from exactlm.llm import LLM
from exactlm.prompt import ReadPrompt
from exactlm.receipt import (
    RECEIPT_VERSION,
    Receipt,
    canonical,
    describe_params,
    describe_spec,
    digest_of,
    load_strict,
    read_params,
)
from exactlm.signature import check_signature

WINDOW = 64  # receipts under way at a time

MEMBERS: dict[str, set[str]] = {
    "": {"receipt_version", "spec", "model", "request", "sampling", "output", "steps", "digest", "signature"},
    "spec": {"numerics", "sampling", "guide"},
    "model": {"fingerprint", "model", "tokenizer", "text", "template", "adapter"},
    "request": {"text", "chat", "prompt_token_ids"},
    "output": {"token_ids", "text", "finish_reason", "stop_reason", "digest"},
}
NOTHING = type(None)
CHAT_MEMBERS: dict[str, tuple[type, ...]] = {
    "messages": (str,),
    "tools": (str, NOTHING),
    "add_generation_prompt": (bool,),
    "template_kwargs": (str, NOTHING),
    "clock": (str, NOTHING),
}


@dataclass(frozen=True)
class Verdict:
    """What was found of one receipt. `differs`: None if it is identical, else the first thing of spec/receipts.md 5
    that is not: "form", "digest", "signature", "spec", "model", "request", "steps", "token_ids", "finish_reason",
    "stop_reason", "text" or "output.digest"; `position`: at which generated token, from 0, where that makes sense;
    `reason`: found and expected, for people. `is_checked`: False where this engine has no room to compute the answer
    again, which says nothing of the receipt; `reason` says what it needs."""

    index: int
    differs: str | None = None
    position: int | None = None
    reason: str = ""
    is_checked: bool = True

    @property
    def is_identical(self) -> bool:
        return self.is_checked and self.differs is None


class _Mismatch(Exception):  # noqa: N818  # a finding, not an error: it becomes a Verdict
    def __init__(self, differs: str, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.differs, self.position = differs, position
        # A receipt's own words may hold what no terminal should be sent, and what no file can hold.
        self.reason = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in reason)


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
    """
    waiting = list(enumerate(receipts))[::-1]
    running: list[tuple[int, Receipt, Ticket]] = []
    try:
        while waiting or running:
            while waiting and len(running) < WINDOW:
                index, receipt = waiting.pop()
                try:
                    check_claim(receipt, llm, needs_signature, public_key)
                    running.append((index, receipt, _submit(llm, receipt)))
                except _Mismatch as error:
                    yield Verdict(index, error.differs, error.position, error.reason)
                except CapacityError as error:
                    yield Verdict(index, reason=str(error), is_checked=False)
            llm.step()
            for entry in list(running):
                if (verdict := _look_at(*entry)) is not None:
                    running.remove(entry)
                    yield verdict
    finally:
        for _, _, ticket in running:
            ticket.cancel()


def _look_at(index: int, receipt: Receipt, ticket: Ticket) -> Verdict | None:
    """The verdict, if the answer is there."""
    try:
        ticket.poll()
        if not ticket.is_done:
            return None
        _compare(receipt, ticket)
        return Verdict(index)
    except _Mismatch as error:
        return Verdict(index, error.differs, error.position, error.reason)
    except (NumericError, RequestError) as error:
        return Verdict(index, "steps", len(ticket.answers[0].sequence.output_ids), str(error))


def check_claim(receipt: Receipt, llm: LLM, needs_signature: bool, public_key: str | None) -> None:
    """Checks 1 to 5: all that needs no computing."""
    _check_form(receipt)
    try:
        found = digest_of(receipt)
    except ReceiptError as error:
        raise _Mismatch("form", str(error)) from None
    if receipt["digest"] != found:
        reason = f"the receipt was altered: its digest is {found}, it says {receipt['digest']!r:.80}"
        raise _Mismatch("digest", reason)
    if receipt["signature"] is not None or needs_signature or public_key is not None:
        try:
            check_signature(receipt, public_key)
        except ReceiptError as error:
            raise _Mismatch("signature", str(error)) from None
    ours = describe_spec(read_params(receipt["sampling"])[0].is_guided)
    if canonical(receipt["spec"]) != canonical(ours):  # True is not 1
        raise _Mismatch("spec", f"made by the spec {receipt['spec']}, this is {ours}")
    for name, value in llm.identity.items():
        if receipt["model"][name] != value:
            raise _Mismatch("model", f"model.{name} is {value}, the receipt says {receipt['model'][name]}")


def _check_form(receipt: Receipt) -> None:
    for name, members in MEMBERS.items():
        value = receipt if name == "" else receipt[name]
        if not isinstance(value, dict):
            raise _Mismatch("form", f"{name} is not an object")
        if odd := sorted(members ^ set(value)):
            kind = "unknown" if odd[0] in value else "missing"
            raise _Mismatch("form", f"{name + '.' if name else ''}{odd[0]} is {kind}")
    if type(receipt["receipt_version"]) is not int or receipt["receipt_version"] != RECEIPT_VERSION:
        raise _Mismatch("form", f"receipt_version is {receipt['receipt_version']!r:.60}, this reads {RECEIPT_VERSION}")
    text, chat, output = receipt["request"]["text"], receipt["request"]["chat"], receipt["output"]
    if not isinstance(text, (str, NOTHING)):
        raise _Mismatch("form", "request.text must be a text or null")
    if chat is not None and (not isinstance(chat, dict) or set(chat) != set(CHAT_MEMBERS)):
        raise _Mismatch("form", f"request.chat must be null or have {', '.join(CHAT_MEMBERS)}")
    for name, types in CHAT_MEMBERS.items():
        if chat is not None and not isinstance(chat[name], types):
            raise _Mismatch("form", f"request.chat.{name} is a {type(chat[name]).__name__}")
    lists = {
        "request.prompt_token_ids": receipt["request"]["prompt_token_ids"],
        "output.token_ids": output["token_ids"],
    }
    for name, ids in lists.items():
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
            raise _Mismatch("form", f"{name} is not a list of token ids")
    steps = receipt["steps"]
    if not isinstance(steps, list) or len(steps) != len(output["token_ids"]):
        raise _Mismatch("form", "steps must have one digest for each token of output.token_ids")
    try:
        params, choice = read_params(receipt["sampling"])
    except (RequestError, ReceiptError) as error:
        raise _Mismatch("form", str(error)) from None
    if params.max_tokens is None or describe_params(params, params.max_tokens, choice) != receipt["sampling"]:
        raise _Mismatch("form", "sampling is not as spec/receipts.md 2 writes it")
    if params.seed is None and not params.is_greedy:  # a seed of our own would make the verdict a matter of chance
        raise _Mismatch("form", f"sampling.seed is null, and temperature={params.temperature} draws")


def _submit(llm: LLM, receipt: Receipt) -> Ticket:
    """Check 6, and the claimed answer on its way."""
    request, claimed = receipt["request"], receipt["output"]["token_ids"]
    params, choice = read_params(receipt["sampling"])
    try:
        prompt = _read_request(llm, request)
        drafter = ClaimedAnswer(len(prompt.token_ids), claimed)
        ticket = llm.submit(prompt, params, receipt=True, drafters=[drafter], choice=choice)
    except (RequestError, TemplateError, TokenizerError) as error:
        raise _Mismatch("request", str(error)) from None
    answer = ticket.answers[0]

    def is_over(token: int) -> bool:
        """Ends a replay that has left the claimed answer: what follows is of no use."""
        at = len(answer.sequence.output_ids) - 1
        return answer.take(token) or at >= len(claimed) or token != claimed[at]

    answer.sequence.is_ended_by = is_over
    return ticket


def _read_request(llm: LLM, request: dict[str, Any]) -> ReadPrompt:
    ids, text, chat = request["prompt_token_ids"], request["text"], request["chat"]
    if text is not None and chat is not None:
        raise _Mismatch("request", "both text and chat are given")
    prompt = ReadPrompt(ids)
    if text is not None:
        prompt = ReadPrompt(llm.tokenizer.encode(text), text)
    elif chat is not None:
        try:
            texts = {key: chat[key] or "null" for key in ("messages", "tools", "template_kwargs")}
            said = {key: load_strict(text, f"request.chat.{key}") for key, text in texts.items()}
        except ReceiptError as error:
            raise _Mismatch("request", str(error)) from None
        if not isinstance(said["template_kwargs"], (dict, NOTHING)):
            raise _Mismatch("request", "request.chat.template_kwargs is not an object")
        prompt = llm.read_chat(add_generation_prompt=chat["add_generation_prompt"], **said)
        if prompt.conversation is None or prompt.conversation.clock != chat["clock"]:
            raise _Mismatch("request", f"the template was told {chat['clock']!r:.60} as the time, here it is another")
    if prompt.token_ids != ids:
        at = next((i for i, (a, b) in enumerate(zip(prompt.token_ids, ids, strict=False)) if a != b), -1)
        where = f"at token {at}" if at >= 0 else f"in length: {len(prompt.token_ids)}, not {len(ids)}"
        raise _Mismatch("request", f"the prompt gives other token ids than prompt_token_ids, {where}")
    return prompt


def _compare(receipt: Receipt, ticket: Ticket) -> None:
    """Checks 7 to 10."""
    sequence, claimed = ticket.answers[0].sequence, receipt["output"]
    steps, ids = sequence.digest.steps or [], claimed["token_ids"]
    for k, (found, token) in enumerate(zip(steps, sequence.output_ids, strict=True)):
        if k >= len(ids):
            raise _Mismatch("token_ids", f"the answer goes on with token {token} where the receipt ends", k)
        if found != (said := receipt["steps"][k]):
            raise _Mismatch("steps", f"the logits of token {k} are others: {found}, not {said!r:.80}", k)
        if token != ids[k]:
            raise _Mismatch("token_ids", f"token {k} is {token}, the receipt says {ids[k]}", k)
    output = ticket.answers[0].output()
    if (end := len(output.token_ids)) < len(ids):
        raise _Mismatch("token_ids", f"the answer ends after {end} tokens, the receipt has {len(ids)}", end)
    for name in ("finish_reason", "stop_reason", "text"):
        if (type(claimed[name]), claimed[name]) != (type(getattr(output, name)), getattr(output, name)):
            reason = f"{name} is {getattr(output, name)!r:.100}, the receipt says {claimed[name]!r:.100}"
            raise _Mismatch(name, reason)
    if output.digest != (said := claimed["digest"]):
        raise _Mismatch("output.digest", f"output.digest is {output.digest}, the receipt says {said!r:.80}")
