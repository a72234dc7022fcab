"""Prompts as callers give them - a text, token ids, a rendered conversation - and how each becomes token ids.

Knows the tokenizer; nothing of engines or answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import RequestError, TemplateError
from exactlm.text.chat import check_messages, render_chat
from exactlm.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Conversation:
    """What a chat template was given. Messages, tools and template_kwargs are JSON text, since a template sees the
    order of members and 1.0 beside 1. `clock`: the time it was told, None if it did not ask."""

    messages: str
    tools: str | None
    add_generation_prompt: bool
    template_kwargs: str | None
    clock: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a receipt holds them."""
        return dict(vars(self))


@dataclass(frozen=True)
class ReadPrompt:
    """Token ids, and the text or the conversation that they came from, if they came from one."""

    token_ids: list[int]
    text: str | None = None
    conversation: Conversation | None = None


Prompt = str | Sequence[int] | ReadPrompt


def read_prompt(tokenizer: Tokenizer, prompt: Prompt) -> ReadPrompt:
    """Encodes a text; takes ids and what was read before as they are. RequestError where nothing is left."""
    if isinstance(prompt, ReadPrompt):
        return prompt
    if not isinstance(prompt, str):
        return ReadPrompt(as_ids(prompt))
    ids = tokenizer.encode(prompt)
    if not ids:
        raise RequestError(f"the prompt {prompt!r:.60} has no tokens in this model's vocabulary; give at least one")
    return ReadPrompt(ids, prompt)


def read_chat(
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
) -> ReadPrompt:
    """Renders and encodes a conversation; control tokens come from the template only, never from the messages.

    RequestError for a bad message, TemplateError.
    """
    if tokenizer.chat_template is None:
        raise TemplateError("this model has no chat template; use generate() with a prompt of your own")
    rendered = render_chat(
        tokenizer.chat_template,
        messages,
        special_tokens=tokenizer.special_tokens,
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        template_kwargs=template_kwargs,
    )
    clock = rendered.clock.isoformat() if rendered.clock_used else None
    said = json.dumps(check_messages(messages), ensure_ascii=False)
    kwargs = json.dumps(dict(template_kwargs), ensure_ascii=False) if template_kwargs else None
    given = json.dumps(list(tools), ensure_ascii=False) if tools else None
    conversation = Conversation(said, given, add_generation_prompt, kwargs, clock)
    return ReadPrompt(tokenizer.encode_segments(rendered.segments), None, conversation)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Several prompts; a single one is a list of one. RequestError for another type."""
    if isinstance(prompts, (str, ReadPrompt)):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping, set, frozenset)) or not hasattr(prompts, "__iter__"):
        raise RequestError(f"prompts must be texts or lists of token ids, not {type(prompts).__name__}")
    items: list[Any] = list(prompts)
    return [items] if items and isinstance(items[0], (int, np.integer)) else items


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One for each of `count` prompts. RequestError for another type or number."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise RequestError(
            f"sampling parameters must be a SamplingParams or a list of them, not {type(params).__name__}"
        )
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters for {count} prompts: give one for all or one for each")
    return list(params)


def as_ids(prompt: object) -> list[int]:
    """Token ids as Python integers; what is not an integer is left for the engine to name."""
    if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
        raise RequestError(f"a prompt must be a text or a list of token ids, not {type(prompt).__name__}")
    return [int(i) if isinstance(i, np.integer) else i for i in prompt]
