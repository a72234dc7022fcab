"""Checks of a receipt that need no answer to be computed: checks 1 (by form.py) to 6 of spec/receipts.md 5."""

from __future__ import annotations

from typing import Any

from exactlm.errors import ReceiptError
from exactlm.llm import LLM
from exactlm.prompt import ReadPrompt
from exactlm.proof.form import check_form
from exactlm.proof.verdict import Mismatch, printable
from exactlm.receipt import Receipt, canonical, describe_spec, digest_of, load_strict, read_params
from exactlm.signature import check_signature


def check_digest(receipt: Receipt) -> str | None:
    """Checks 1 and 2; what is to be said of a digest that does not fit: what was altered shows in what follows."""
    check_form(receipt)
    try:
        found = digest_of(receipt)
    except ReceiptError as error:
        raise Mismatch("form", str(error)) from None
    if receipt["digest"] == found:
        return None
    return printable(f"the receipt was altered: its digest is {found}, it says {receipt['digest']!r:.80}")


def check_claimed_signature(receipt: Receipt, needs_signature: bool, public_key: str | None) -> None:
    """Check 3."""
    if receipt["signature"] is not None or needs_signature or public_key is not None:
        try:
            check_signature(receipt, public_key)
        except ReceiptError as error:
            raise Mismatch("signature", str(error)) from None


def check_identity(receipt: Receipt, llm: LLM) -> None:
    """Checks 4 and 5."""
    ours = describe_spec(read_params(receipt["sampling"])[0].is_guided)
    if canonical(receipt["spec"]) != canonical(ours):  # True is not 1
        raise Mismatch("spec", f"made by the spec {receipt['spec']!s:.200}, this is {ours}")
    for name, value in llm.identity.items():
        if receipt["model"][name] != value:
            raise Mismatch("model", f"model.{name} is {value}, the receipt says {receipt['model'][name]}")


def read_request(llm: LLM, request: dict[str, Any]) -> ReadPrompt:
    """Check 6: the prompt. Raises Mismatch, and what LLM.read_chat and the tokenizer raise."""
    ids, text, chat = request["prompt_token_ids"], request["text"], request["chat"]
    if text is not None and chat is not None:
        raise Mismatch("request", "both text and chat are given")
    prompt = ReadPrompt(ids)
    if text is not None:
        prompt = ReadPrompt(llm.tokenizer.encode(text), text)
    elif chat is not None:
        try:
            texts = {key: chat[key] or "null" for key in ("messages", "tools", "template_kwargs")}
            said = {key: load_strict(text, f"request.chat.{key}") for key, text in texts.items()}
        except ReceiptError as error:
            raise Mismatch("request", str(error)) from None
        if not isinstance(said["template_kwargs"], (dict, type(None))):
            raise Mismatch("request", "request.chat.template_kwargs is not an object")
        prompt = llm.read_chat(add_generation_prompt=chat["add_generation_prompt"], **said)
        if prompt.conversation is None or prompt.conversation.clock != chat["clock"]:
            raise Mismatch("request", f"the template was told {chat['clock']!r:.60} as the time, here it is another")
    if prompt.token_ids != ids:
        at = next((i for i, (a, b) in enumerate(zip(prompt.token_ids, ids, strict=False)) if a != b), -1)
        where = f"at token {at}" if at >= 0 else f"in length: {len(prompt.token_ids)}, not {len(ids)}"
        raise Mismatch("request", f"the prompt gives other token ids than prompt_token_ids, {where}")
    return prompt
