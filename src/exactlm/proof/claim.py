"""Checks of a receipt that need no answer to be computed: checks 1 to 6 of spec/receipts.md 5."""

from __future__ import annotations

from typing import Any

from exactlm.errors import ReceiptError, RequestError
from exactlm.llm import LLM
from exactlm.prompt import ReadPrompt
from exactlm.proof.verdict import Mismatch
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


def check_digest(receipt: Receipt) -> str | None:
    """Checks 1 and 2; what is to be said of a digest that does not fit: what was altered shows in what follows."""
    _check_form(receipt)
    try:
        found = digest_of(receipt)
    except ReceiptError as error:
        raise Mismatch("form", str(error)) from None
    if receipt["digest"] == found:
        return None
    return str(Mismatch("digest", f"the receipt was altered: its digest is {found}, it says {receipt['digest']!r:.80}"))


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
        raise Mismatch("spec", f"made by the spec {receipt['spec']}, this is {ours}")
    for name, value in llm.identity.items():
        if receipt["model"][name] != value:
            raise Mismatch("model", f"model.{name} is {value}, the receipt says {receipt['model'][name]}")


def _check_form(receipt: Receipt) -> None:
    for name, members in MEMBERS.items():
        value = receipt if name == "" else receipt[name]
        if not isinstance(value, dict):
            raise Mismatch("form", f"{name} is not an object")
        if odd := sorted(members ^ set(value)):
            kind = "unknown" if odd[0] in value else "missing"
            raise Mismatch("form", f"{name + '.' if name else ''}{odd[0]} is {kind}")
    if type(receipt["receipt_version"]) is not int or receipt["receipt_version"] != RECEIPT_VERSION:
        raise Mismatch("form", f"receipt_version is {receipt['receipt_version']!r:.60}, this reads {RECEIPT_VERSION}")
    text, chat, output = receipt["request"]["text"], receipt["request"]["chat"], receipt["output"]
    if not isinstance(text, (str, NOTHING)):
        raise Mismatch("form", "request.text must be a text or null")
    if chat is not None and (not isinstance(chat, dict) or set(chat) != set(CHAT_MEMBERS)):
        raise Mismatch("form", f"request.chat must be null or have {', '.join(CHAT_MEMBERS)}")
    for name, types in CHAT_MEMBERS.items():
        if chat is not None and not isinstance(chat[name], types):
            raise Mismatch("form", f"request.chat.{name} is a {type(chat[name]).__name__}")
    lists = {
        "request.prompt_token_ids": receipt["request"]["prompt_token_ids"],
        "output.token_ids": output["token_ids"],
    }
    for name, ids in lists.items():
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
            raise Mismatch("form", f"{name} is not a list of token ids")
    steps = receipt["steps"]
    if not isinstance(steps, list) or len(steps) != len(output["token_ids"]):
        raise Mismatch("form", "steps must have one digest for each token of output.token_ids")
    try:
        params, choice = read_params(receipt["sampling"])
    except (RequestError, ReceiptError) as error:
        raise Mismatch("form", str(error)) from None
    if params.max_tokens is None or describe_params(params, params.max_tokens, choice) != receipt["sampling"]:
        raise Mismatch("form", "sampling is not as spec/receipts.md 2 writes it")
    if params.seed is None and not params.is_greedy:  # a seed of our own would make the verdict a matter of chance
        raise Mismatch("form", f"sampling.seed is null, and temperature={params.temperature} draws")


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
        if not isinstance(said["template_kwargs"], (dict, NOTHING)):
            raise Mismatch("request", "request.chat.template_kwargs is not an object")
        prompt = llm.read_chat(add_generation_prompt=chat["add_generation_prompt"], **said)
        if prompt.conversation is None or prompt.conversation.clock != chat["clock"]:
            raise Mismatch("request", f"the template was told {chat['clock']!r:.60} as the time, here it is another")
    if prompt.token_ids != ids:
        at = next((i for i, (a, b) in enumerate(zip(prompt.token_ids, ids, strict=False)) if a != b), -1)
        where = f"at token {at}" if at >= 0 else f"in length: {len(prompt.token_ids)}, not {len(ids)}"
        raise Mismatch("request", f"the prompt gives other token ids than prompt_token_ids, {where}")
    return prompt
