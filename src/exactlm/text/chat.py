"""Renders a conversation with a model's chat template, telling the template's control tokens from the user's text.

Templates run as in transformers, but in a process of their own with limits, and with a clock that stands still unless
the caller sets it. Knows nothing of token ids.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from exactlm.errors import RequestError, TemplateError
from exactlm.text.template_process import PROCESS

# Today's date would make the same prompt give other bytes tomorrow. Llama 3's own template falls back to this one.
DEFAULT_CLOCK = datetime(2024, 7, 26)
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython"))
_MAX_TEMPLATE_CHARS = 2**20


@dataclass(frozen=True)
class RenderedChat:
    """A rendered conversation.

    `text`: exactly what the template wrote. `segments`: the same text cut into (text, is_control); only control tokens
    that the template wrote are control segments, one each. `clock_used`: the template asked for the time, which was
    `clock`.
    """

    text: str
    segments: tuple[tuple[str, bool], ...]
    clock_used: bool
    clock: datetime


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    special_tokens: Mapping[str, Any],
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    clock: datetime | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> RenderedChat:
    """Render `messages` ({"role": .., "content": ..}) with the Jinja `template`.

    `special_tokens`: `Tokenizer.special_tokens`; every string in it is a control token. `template_kwargs`: further
    variables of the template (`enable_thinking`, `documents`, ..). `clock`: what `strftime_now` tells, DEFAULT_CLOCK
    where None. RequestError names a bad message; TemplateError says how the template failed or which limit it hit.
    """
    if not isinstance(template, str) or len(template) > _MAX_TEMPLATE_CHARS:
        raise TemplateError(f"the chat template is not a text of at most {_MAX_TEMPLATE_CHARS} characters")
    variables = {
        "messages": check_messages(messages),
        "tools": _check_tools(tools),
        "add_generation_prompt": add_generation_prompt,
    }
    if taken := sorted(set(template_kwargs or {}) & {*variables, *special_tokens}):
        raise RequestError(f"template_kwargs: {', '.join(taken)} cannot be set this way")
    variables |= {"documents": None, **(template_kwargs or {})}
    haystack = template + _dump(variables, "the template's variables")
    marks = _Marks.choose(_list_control(special_tokens), haystack)
    clock = DEFAULT_CLOCK if clock is None else clock
    reply = PROCESS.render(
        {
            "template": template,
            "marks": {"spelling": marks.spelling, "prefix": marks.prefix, "suffix": marks.suffix},
            "now": clock.isoformat(),
            "special_tokens": dict(special_tokens),
            "variables": variables,
        }
    )
    roles = {str(message["role"]) for message in messages}
    segments = marks.split(reply["text"], roles | set(reply["words"]))
    text = "".join(piece for piece, _ in segments)
    return RenderedChat(text, segments, reply["clock_used"], clock)


@dataclass(frozen=True)
class _Marks:
    """Private spellings, chosen so that no input contains them; the choice depends on the inputs alone."""

    spelling: dict[str, str]  # control token -> what the template's literals hold instead
    prefix: str
    suffix: str

    @classmethod
    def choose(cls, control: Sequence[str], haystack: str) -> "_Marks":
        number = 0
        while any(f"{char}{number}:" in haystack for char in "\ufdd0\ufdd2\ufdd3"):
            number += 1
        spelling = {token: f"\ufdd0{number}:{index}\ufdd1" for index, token in enumerate(control)}
        return cls(spelling, f"\ufdd2{number}:", f"\ufdd3{number}:")

    def split(self, text: str, words: set[str]) -> tuple[tuple[str, bool], ...]:
        """Cut a marked `text` into (text, is_control)."""
        text = self._join_composed(text, words)
        text = text.replace(self.prefix, "").replace(self.suffix, "")
        tokens = {spelling: token for token, spelling in self.spelling.items()}
        pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        pieces = re.split(f"({pattern})", text) if tokens else [text]
        return tuple((tokens.get(piece, piece), piece in tokens) for piece in pieces if piece)

    def _join_composed(self, text: str, words: set[str]) -> str:
        """Recognise '<|' + role + '|>' as the control token it spells, where role is a role or the template's word."""
        pieces = re.split(f"{re.escape(self.prefix)}(\\w{{1,32}}){re.escape(self.suffix)}", text)
        joined = pieces[0]
        for word, rest in zip(pieces[1::2], pieces[2::2], strict=True):
            whole = self._find_composed(joined, word, rest) if word in words else None
            if whole is None:
                joined += word + rest
            else:
                head, tail = whole.split(word, 1)
                joined = joined[: len(joined) - len(head)] + self.spelling[whole] + rest[len(tail) :]
        return joined

    def _find_composed(self, before: str, word: str, after: str) -> str | None:
        fitting = [
            token
            for token in self.spelling
            if word in token and before.endswith(token.split(word, 1)[0]) and after.startswith(token.split(word, 1)[1])
        ]
        return max(fitting, key=len, default=None)


def _list_control(special_tokens: Mapping[str, Any]) -> list[str]:
    """List the control tokens. One that is a mere word ("user") is left out: templates compare such words."""
    found: set[str] = set()
    for value in special_tokens.values():
        found.update(value if isinstance(value, list | tuple) else [value])
    return sorted(token for token in found if isinstance(token, str) and not re.fullmatch(r"\w*", token))


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages as templates expect them; RequestError names the message and what is wrong with it.

    Text parts ({"type": "text", "text": ..}) are joined with newlines.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise RequestError("messages: expected a list of at least one message")
    return [_check_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _check_message(message: object, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise RequestError(f"{name} is a {type(message).__name__}, expected an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"{name}.role = {role!r:.60}: use one of {', '.join(sorted(ROLES))}")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "\n".join(_iterate_texts(content, f"{name}.content"))
    elif content is None and not (role == "assistant" and message.get("tool_calls")):
        raise RequestError(f"{name}.content is missing; only an assistant message with tool_calls may leave it out")
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"{name}.content is a {type(content).__name__}, expected text or a list of text parts")
    checked = {**message, "content": content}
    _dump(checked, name)
    return checked


def _iterate_texts(parts: Iterable[object], name: str) -> Iterable[str]:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text":
            raise RequestError(f"{name}[{index}] has type {kind!r:.60}; only text parts are supported")
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{name}[{index}].text is missing or not a text")
        yield part["text"]


def _check_tools(tools: object) -> list[Any] | None:
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools: expected a list of JSON objects")
    return list(tools) or None


def _dump(value: object, name: str) -> str:
    """Return `value` as JSON text; RequestError where it is not plain JSON in valid Unicode."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} holds an unpaired surrogate U+{ord(error.object[error.start]):04X}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} is not plain JSON: {error}") from None
    return text
