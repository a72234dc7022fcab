"""From what was asked to token ids that fit the model's context. Runs in worker threads."""

from __future__ import annotations

import functools
from typing import Any

from exactlm.llm import LLM
from exactlm.server.errors import ApiError
from exactlm.text.tokenizer import Tokenizer


def check_size(llm: LLM, num_chars: int, param: str) -> None:
    """ApiError for a text that cannot fit the context even if all its tokens are the longest there are: tokenising
    it would only hold up others."""
    longest = _find_longest(llm.tokenizer)
    if num_chars > llm.context_tokens * longest:
        message = (
            f"this model's context is {llm.context_tokens} tokens of at most {longest} bytes, but the prompt has "
            f"{num_chars} characters"
        )
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def count_chars(told: Any) -> int:
    """Characters that a template can write of a JSON value: those of its texts, names and numbers."""
    count, rest = 0, [told]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += item
            rest += item.values()
        elif isinstance(item, list):
            rest += item
        else:
            count += len(item if isinstance(item, str) else str(item))
    return count


@functools.lru_cache(maxsize=4)
def _find_longest(tokenizer: Tokenizer) -> int:
    """Bytes of the longest token."""
    return max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.num_tokens))


def encode_text(llm: LLM, text: str, param: str) -> list[int]:
    """The token ids of a prompt, as LLM.generate makes them. ApiError if there are none or far too many."""
    check_size(llm, len(text), param)
    ids = llm.tokenizer.encode(text)
    if not ids:
        message = f"{param} = {text!r:.60} has no tokens in this model's vocabulary; give at least one"
        raise ApiError(400, message, param=param, code="invalid_value")
    return ids


def check_ids(llm: LLM, ids: list[int], param: str) -> None:
    """ApiError names an id that is not the model's."""
    limit = llm.config.num_tokens
    if min(ids) < 0 or max(ids) >= limit:
        index = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < limit)
        message = f"{param}[{index}] = {ids[index]} is not a token id of this model, which run from 0 to {limit - 1}"
        raise ApiError(400, message, param=f"{param}[{index}]", code="invalid_value")


def check_length(llm: LLM, num_prompt: int, max_tokens: int | None, param: str) -> None:
    """ApiError with both sizes where prompt and answer do not fit the context together. Nothing is ever cut off."""
    if num_prompt + (1 if max_tokens is None else max_tokens) > llm.context_tokens:
        message = f"this model's context is {llm.context_tokens} tokens, but the prompt has {num_prompt}"
        if max_tokens is not None:
            message += f" and {max_tokens} are to be generated: {num_prompt + max_tokens} together"
        raise ApiError(400, message, param=param, code="context_length_exceeded")
