"""Receipts: what was asked of which model and what it answered, in a form that can be checked later. spec/receipts.md.

Knows plain values, the canonical form and signatures; no models, no engine. Needs the extra `proof`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exactlm.engine.sampling_params import MAX_CHOICES, SamplingParams
from exactlm.errors import ConfigError, ReceiptError
from exactlm.numerics import SPEC_VERSION
from exactlm.numerics.sampling import SAMPLING_VERSION
from exactlm.prompt import ReadPrompt
from exactlm.text.guide import guide_version

RECEIPT_VERSION = 1
SIGNED_PREFIX = b"exactlm-receipt-1\0"
Receipt = dict[str, Any]


def make_receipt(
    identity: Mapping[str, str | None],
    prompt: ReadPrompt,
    params: SamplingParams,
    max_tokens: int,
    choice: int,
    output: Mapping[str, Any],
    steps: list[str],
) -> Receipt:
    """A receipt without a signature. ReceiptError if the request holds what JSON cannot say."""
    receipt: Receipt = {
        "receipt_version": RECEIPT_VERSION,
        "spec": describe_spec(params.is_guided),
        "model": dict(identity),
        "request": {
            "text": prompt.text,
            "chat": prompt.conversation.to_dict() if prompt.conversation else None,
            "prompt_token_ids": prompt.token_ids,
        },
        "sampling": describe_params(params, max_tokens, choice),
        "output": dict(output),
        "steps": steps,
    }
    # What is not exactly a JSON value (a tuple, an integral float) becomes what a reader will find.
    receipt = json.loads(canonical(receipt))
    return {**receipt, "digest": digest_of(receipt), "signature": None}


def check_receiptable(prompt: ReadPrompt, params: SamplingParams) -> None:
    """ReceiptError or ConfigError where no receipt could be made, before anything is computed."""
    chat = prompt.conversation.to_dict() if prompt.conversation else {}
    canonical([prompt.text, chat])
    for name in ("messages", "tools", "template_kwargs"):  # {1: .., "1": ..} would be a member that stands twice
        if chat.get(name) is not None:
            load_strict(chat[name], f"request.chat.{name}")
    canonical(describe_params(params, 0, 0))
    describe_spec(params.is_guided)


def describe_spec(is_guided: bool) -> dict[str, Any]:
    """The member `spec`: what defines an answer that is made here."""
    guide = f"llguidance {guide_version()}" if is_guided else None
    return {"numerics": SPEC_VERSION, "sampling": SAMPLING_VERSION, "guide": guide}


def describe_params(params: SamplingParams, max_tokens: int, choice: int) -> dict[str, Any]:
    """The member `sampling`."""
    p = params
    return {
        "choice": choice,
        "temperature": p.temperature,
        "top_k": p.top_k,
        "top_p": p.top_p,
        "min_p": p.min_p,
        "repetition_penalty": p.repetition_penalty,
        "presence_penalty": p.presence_penalty,
        "frequency_penalty": p.frequency_penalty,
        "logit_bias": {str(i): b for i, b in p.bias},
        "seed": None if p.seed is None else str(p.seed),
        "max_tokens": max_tokens,
        "stop": list(p.stop),
        "stop_token_ids": list(p.stop_token_ids),
        "ignore_eos": p.ignore_eos,
        "json_schema": p.json_schema,
        "regex": p.regex,
        "grammar": p.grammar,
    }


def read_params(sampling: object) -> tuple[SamplingParams, int]:
    """Parameters and choice index of a member `sampling`. RequestError or ReceiptError for a bad value."""
    if not isinstance(sampling, Mapping):
        raise ReceiptError("sampling is not an object")
    values = dict(sampling)
    choice = values.pop("choice", None)
    if not isinstance(choice, int) or isinstance(choice, bool) or not 0 <= choice < MAX_CHOICES:
        raise ReceiptError(f"sampling.choice={choice!r:.60}: not a choice index")
    try:
        seed = values.pop("seed")
        values["seed"] = None if seed is None else int(seed)
        values["logit_bias"] = {int(i): b for i, b in values.pop("logit_bias").items()}
        return SamplingParams(**values), choice
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:  # 1e999 is read as infinity
        raise ReceiptError(f"sampling: {error}") from None


def canonical(value: Any) -> bytes:
    """RFC 8785. ReceiptError for what it cannot hold; ConfigError if its library is not installed."""
    try:
        import rfc8785
    except ImportError:
        raise ConfigError('receipts need the package rfc8785: pip install "exactlm[proof]"') from None
    try:
        return bytes(rfc8785.dumps(value))
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeEncodeError) as error:
        raise ReceiptError(f"not a value of RFC 8785: {error}") from None


def digest_of(receipt: Mapping[str, Any]) -> str:
    """Clause 1.2."""
    rest = {key: value for key, value in receipt.items() if key not in ("digest", "signature")}
    return hashlib.sha256(canonical(rest)).hexdigest()


def read_receipts(path: str | Path) -> list[Receipt]:
    """The receipts of a file: one JSON object, or one on each line. ReceiptError names file and line."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReceiptError(f"{path}: cannot be read: {error}") from None
    # Not splitlines(): a text may hold U+2028 as it is.
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_whole(lines[0][1]):
        return [_as_object(f"{path}:{number}", load_strict(line, f"{path}:{number}")) for number, line in lines]
    return [_as_object(f"{path}", load_strict(content, f"{path}"))]


def load_strict(text: str, where: str) -> Any:
    """A JSON text in which no member stands twice and every number is one. ReceiptError begins with `where`."""

    def refuse(name: str) -> None:
        raise ReceiptError(f"{where}: {name} is not a JSON number")

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise ReceiptError(f"{where}: member {twice!r:.60} stands twice in an object")
        return dict(pairs)

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=check)
    except RecursionError:
        raise ReceiptError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise ReceiptError(f"{where}: not JSON: {error}") from None


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _as_object(where: str, value: Any) -> Receipt:
    if not isinstance(value, dict):
        raise ReceiptError(f"{where}: not a JSON object")
    return value
