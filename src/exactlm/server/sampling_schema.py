"""The request fields that chat and plain completions share, and what they become as SamplingParams.

A null is as good as an absent field. Types are strict: true is no number, "7" no seed, 1.5 no count.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from exactlm.engine.sampling_params import MAX_CHOICES, SamplingParams

MAX_TOP_LOGPROBS = 20
_MAX_TOKEN_ID = 1 << 31
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

Ignored = Annotated[Any, Field(description="accepted; cannot change the answer")]
Count = Annotated[int, Field(ge=0, le=_MAX_TOKEN_ID)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
TokenId = Annotated[int, Field(ge=0, lt=_MAX_TOKEN_ID)]


Refused = Annotated[None, Field(description="not supported: only null is accepted, since it would change the answer")]


class Strict(BaseModel):
    """A request object: no field it does not list, no value converted."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(Strict):
    """How to stream."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """A JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema under a name."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """A JSON value that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ExactlmOptions(Strict):
    """What only this server has. receipt: the response has a receipt of each choice (spec/receipts.md)."""

    receipt: bool | None = None


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def _check_bias(value: dict[str, float]) -> dict[str, float]:
    for key in value:
        if not _TOKEN_ID.fullmatch(key) or int(key) >= _MAX_TOKEN_ID:
            raise ValueError(f"{key!r:.40} is not a token id")
    return value


def _check_stop(value: str | list[str]) -> str | list[str]:
    if "" in ([value] if isinstance(value, str) else value):
        raise ValueError("a stop text must not be empty")
    return value


_TEMPERATURES = {"anyOf": [{"const": 0}, {"type": "number", "minimum": 0.001, "maximum": 1000}]}
Temperature = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False), WithJsonSchema(_TEMPERATURES)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Stop = Annotated[
    Annotated[str, Field(min_length=1)] | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=64)],
    AfterValidator(_check_stop),
]


class SamplingFields(Strict):
    """What both kinds of completion take. Absent or null: the value that the documentation names."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MAX_TOKEN_ID)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024), AfterValidator(_check_bias)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | None = None
    return_token_ids: bool | None = None
    exactlm: ExactlmOptions | None = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def wants_receipts(self) -> bool:
        """Whether the response is to have them."""
        return self.exactlm is not None and bool(self.exactlm.receipt)

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    def check_combinations(self) -> None:
        """ValueError where two fields contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true")


# Fields that SamplingParams has under the same name and in the same form.
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_PLAIN = ("n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "regex", "grammar", *_PENALTIES)


def make_params(
    fields: SamplingFields, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams:
    """The sampling parameters of a request; a seed is drawn where one is needed and none was given, so that all
    prompts of the request share the one it reports. RequestError."""
    given: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(fields, name)) is not None}
    if fields.stop is not None:
        given["stop"] = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if fields.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(fields.stop_token_ids)
    if fields.logit_bias:
        given["logit_bias"] = {int(key): value for key, value in fields.logit_bias.items()}
    if isinstance(fields.response_format, JsonObjectFormat):
        given["json_schema"] = {"type": "object"}
    elif isinstance(fields.response_format, JsonSchemaFormat):
        given["json_schema"] = fields.response_format.json_schema.schema_
    limits: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    return SamplingParams(**given, **limits).seeded()
