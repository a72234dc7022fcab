"""What a request asks of the choice of tokens. Everything here changes the answer, so what is unknown, out of range or
of another type is refused. spec/sampling.md 1.3."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from exactlm.engine.generation_config import sampling_fields
from exactlm.errors import RequestError

MAX_LOGPROBS = 1024
MAX_CHOICES = 128
SEED_BITS = 53  # of a drawn seed: every JSON reader keeps such a number whole


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen (spec/sampling.md); the default is greedy: the most likely token, the lowest id of equals.

    n: answers to give. temperature: 0 for greedy, or 0.001 to 1000. top_k: the most likely tokens that stay, 0 or -1
    for all. top_p: the smallest set of most likely tokens with this share of the probability. min_p: tokens with less
    than this share of the most likely one's probability leave. repetition_penalty: divides (negative: multiplies)
    logits of tokens in prompt or answer. presence_penalty, frequency_penalty: subtracted once, or for each occurrence,
    from logits of tokens in the answer. logit_bias: id -> what to add. seed: 0 to 2^64 - 1; None draws one when
    temperature is not 0, and the result tells it.

    max_tokens: tokens to generate at most; None for all that the context has room for. stop: strings that end the text
    and are not part of it. stop_token_ids: ids that end it. ignore_eos: go on past the end-of-text token.
    logprobs, prompt_logprobs: how many of the most likely tokens to report beside each chosen token, or beside each
    token of the prompt; None for none.
    json_schema (an object, its text, or True for any JSON value), regex, grammar (Lark): at most one; only such text
    can be generated. Needs the extra `server`.
    """

    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: Mapping[str, Any] | str | bool | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _as_strings("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _as_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _as_bias(self.logit_bias))
        object.__setattr__(self, "json_schema", _as_schema(self.json_schema))
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_number("temperature", self.temperature, 0.0, 1000.0)
        if 0 < self.temperature < 0.001:
            raise RequestError(f"temperature={self.temperature!r}: use 0 for greedy, or 0.001 to 1000")
        _check_int("top_k", self.top_k, -1, 1 << 31)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.001, 1000.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("seed", self.seed, 0, (1 << 64) - 1, optional=True)
        _check_int("max_tokens", self.max_tokens, 0, 1 << 31, optional=True)
        _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS, optional=True)
        _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS, optional=True)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r}: use True or False")
        self._check_guide()

    @classmethod
    def from_generation_config(cls, config: Mapping[str, object]) -> SamplingParams:
        """Parameters of a Hugging Face generation config. RequestError for what is unknown or not available here
        (beams other than 1, say)."""
        fields: dict[str, Any] = sampling_fields(config)
        return cls(**fields)

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """logit_bias as pairs, by id."""
        return self.logit_bias  # type: ignore[return-value]  # __post_init__ made it so

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_guided(self) -> bool:
        return self.json_schema is not None or self.regex is not None or self.grammar is not None

    @property
    def goes_past_end(self) -> bool:
        """Whether an end-of-text token does not end the answer; a constrained one has nothing to say after it."""
        return self.ignore_eos and not self.is_guided

    @property
    def has_penalty(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def seeded(self) -> SamplingParams:
        """The same, with a seed drawn if one is needed and none was given. spec/sampling.md 1.4."""
        is_complete = self.seed is not None or self.is_greedy
        return self if is_complete else replace(self, seed=secrets.randbits(SEED_BITS))

    def _check_guide(self) -> None:
        given = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)}: give at most one")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise RequestError(f"{name}={getattr(self, name)!r:.60}: use a text")


def _check_int(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        upper = {(1 << 64) - 1: "2^64 - 1", 1 << 31: "2^31"}.get(high, str(high))
        raise RequestError(f"{name}={value!r:.60}: use a whole number from {low} to {upper}{', or None' * optional}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise RequestError(f"{name}={value!r:.60}: use a number from {low:g} to {high:g}")


def _as_strings(name: str, value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, (tuple, list)) or not all(isinstance(s, str) and s for s in strings):
        raise RequestError(f"{name}={value!r:.60}: use strings that are not empty")
    return tuple(strings)


def _as_ids(name: str, value: object) -> tuple[int, ...]:
    is_list = isinstance(value, (tuple, list))
    if not is_list or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 31 for i in value):  # type: ignore[attr-defined]
        raise RequestError(f"{name}={value!r:.60}: use a list of token ids")
    return tuple(value)  # type: ignore[arg-type]


def _as_schema(value: object) -> str | None:
    """A schema as text: what the caller does to the object later is no part of the request."""
    if isinstance(value, (str, type(None))):
        return value
    if not isinstance(value, (bool, Mapping)):
        raise RequestError(f"json_schema={value!r:.60}: use an object, its JSON text, or True")
    try:
        return json.dumps(value if isinstance(value, bool) else dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"json_schema is not plain JSON: {error}") from None


def _as_bias(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, (Mapping, tuple, list, type(None))):
        raise RequestError(f"logit_bias={value!r:.60}: use a mapping of token id to number")
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value or ())
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise RequestError(f"logit_bias={value!r:.60}: use a mapping of token id to number")
        _check_int("logit_bias: token id", pair[0], 0, 1 << 31)
        _check_number(f"logit_bias[{pair[0]}]", pair[1], -100.0, 100.0)
        if not math.isfinite(pair[1]):
            raise RequestError(f"logit_bias[{pair[0]}]={pair[1]!r}: use a finite number")
    if len({i for i, _ in pairs}) != len(pairs):
        raise RequestError("logit_bias: a token id is named twice")
    return tuple(sorted((i, float(b)) for i, b in pairs))
