"""The body of a plain completion, as OpenAI defines it, with vLLM's extensions. Knows no tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from exactlm.engine.sampling_params import MAX_CHOICES
from exactlm.server.sampling_schema import Refused, SamplingFields, TopLogprobs

Prompt = str | list[int]

_ID = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PROMPT_SCHEMA = {"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}


def _check_prompt(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("expected a text, a list of texts, a list of token ids or a list of such lists, not empty")
    kind = type(value[0])
    if kind not in (str, int, list):
        raise ValueError(f"[0] is a {kind.__name__}; expected a text, a token id or a list of token ids")
    _check_kind(value, kind, "")
    if kind is list:
        for index, ids in enumerate(value):
            if not ids:
                raise ValueError(f"[{index}] is empty")
            _check_kind(ids, int, f"[{index}]")
    return value


def _check_kind(items: list[Any], kind: type, place: str) -> None:
    for index, item in enumerate(items):
        if type(item) is not kind:
            raise ValueError(f"{place}[{index}] = {item!r:.40} is a {type(item).__name__}; {kind.__name__} expected")


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: Annotated[Any, AfterValidator(_check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Refused = None

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        self.check_combinations()
        if self.best_of is not None and self.best_of != self.num_choices:
            raise ValueError(f"best_of is {self.best_of} but n is {self.num_choices}: no answer is chosen for you")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, each a text or token ids."""
        value = self.prompt
        return [value] if isinstance(value, str) or isinstance(value[0], int) else value
