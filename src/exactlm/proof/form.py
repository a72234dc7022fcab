"""The form of a receipt: which members it has, and of which type. Check 1 of spec/receipts.md 5. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from exactlm.errors import ReceiptError, RequestError
from exactlm.proof.verdict import Mismatch
from exactlm.receipt import RECEIPT_VERSION, Receipt, describe_params, read_params

Rule = tuple[Callable[[Any], bool], str]


def _is_integer(value: Any) -> bool:
    return type(value) is int  # True is not 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 31 for i in value)


def _or_null(rule: Rule) -> Rule:
    check, name = rule
    return lambda value: value is None or check(value), f"{name} or null"


_INTEGER: Rule = _is_integer, "an integer"
_TEXT: Rule = _is_text, "a text"
_DIGEST: Rule = _is_digest, "a digest, 64 lower-case hexadecimal digits"
_IDS: Rule = _are_ids, "a list of token ids"
_OBJECT: Rule = lambda value: isinstance(value, dict), "an object"

# Every member by its path; what has members of its own stands before them.
_RECEIPT: dict[str, Rule] = {
    "receipt_version": _INTEGER,
    "spec": _OBJECT,
    "spec.numerics": _INTEGER,
    "spec.sampling": _INTEGER,
    "spec.guide": _or_null(_TEXT),
    "model": _OBJECT,
    **{f"model.{name}": _DIGEST for name in ("fingerprint", "model", "tokenizer", "text")},
    "model.template": _or_null(_DIGEST),
    "model.adapter": _or_null(_DIGEST),
    "request": _OBJECT,
    "request.text": _or_null(_TEXT),
    "request.chat": _or_null(_OBJECT),
    "request.prompt_token_ids": _IDS,
    "sampling": _OBJECT,
    "output": _OBJECT,
    "output.token_ids": _IDS,
    "output.text": _TEXT,
    "output.finish_reason": _TEXT,
    "output.stop_reason": _or_null((lambda value: _is_text(value) or _is_integer(value), "a text, an id")),
    "output.digest": _DIGEST,
    "steps": (lambda value: isinstance(value, list) and all(map(_is_digest, value)), "a list of digests"),
    "digest": _DIGEST,
    "signature": _or_null(_OBJECT),
}
_CHAT: dict[str, Rule] = {
    "messages": _TEXT,
    "tools": _or_null(_TEXT),
    "add_generation_prompt": (lambda value: isinstance(value, bool), "true or false"),
    "template_kwargs": _or_null(_TEXT),
    "clock": _or_null(_TEXT),
}


def check_form(receipt: Receipt) -> None:
    """Raises Mismatch that names the first member that is missing, unknown or of another type."""
    _check_members(receipt, _RECEIPT, "")
    if (chat := receipt["request"]["chat"]) is not None:
        _check_members(chat, _CHAT, "request.chat.")
    if receipt["receipt_version"] != RECEIPT_VERSION:
        raise Mismatch("form", f"receipt_version is {receipt['receipt_version']!r:.60}, this reads {RECEIPT_VERSION}")
    if len(receipt["steps"]) != len(receipt["output"]["token_ids"]):
        raise Mismatch("form", "steps must have one digest for each token of output.token_ids")
    _check_sampling(receipt["sampling"])


def _check_members(value: dict[str, Any], rules: dict[str, Rule], prefix: str) -> None:
    """The members of an object and of the objects in it, in the order of the rules."""
    _check_names(value, rules, prefix)
    for path, (is_right, expected) in rules.items():
        outer, _, name = path.rpartition(".")
        member = (value[outer] if outer else value)[name]
        if not is_right(member):
            raise Mismatch("form", f"{prefix}{path} is {member!r:.60}, not {expected}")
        if any(other.startswith(f"{path}.") for other in rules):
            inner = {other[len(path) + 1 :]: rule for other, rule in rules.items() if other.startswith(f"{path}.")}
            _check_names(member, inner, f"{prefix}{path}.")


def _check_names(value: dict[str, Any], rules: dict[str, Rule], prefix: str) -> None:
    known = {path for path in rules if "." not in path}
    if odd := sorted(known ^ set(value)):
        raise Mismatch("form", f"{prefix}{odd[0]} is {'unknown' if odd[0] in value else 'missing'}")


def _check_sampling(sampling: dict[str, Any]) -> None:
    try:
        params, choice = read_params(sampling)
    except (RequestError, ReceiptError) as error:
        raise Mismatch("form", str(error)) from None
    if params.max_tokens is None or describe_params(params, params.max_tokens, choice) != sampling:
        raise Mismatch("form", "sampling is not as spec/receipts.md 2 writes it")
    if params.seed is None and not params.is_greedy:  # a seed of our own would make the verdict a matter of chance
        raise Mismatch("form", f"sampling.seed is null, and temperature={params.temperature} draws")
