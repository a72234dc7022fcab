"""The shapes of responses, for the OpenAPI document alone: answers are written without passing through these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every refusal and failure."""

    error: ErrorDetail


class Usage(BaseModel):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Timings(BaseModel):
    """Seconds from the request's arrival, monotonic clock."""

    queued: float | None
    prefill: float | None
    first_token: float | None
    done: float | None


class Extension(BaseModel):
    """What makes the answer checkable: a digest for each choice, and the seed; receipts if the request asked."""

    digests: list[str]
    seed: int | None
    timings: Timings
    receipts: list[dict[str, Any]] | None = None


class TopLogprob(BaseModel):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A chosen token and its likeliest alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for each token."""

    content: list[TokenLogprob]
    refusal: None


class ChatMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class _Whole(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    exactlm: Extension


class ChatResponse(_Whole):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionLogprobLists(BaseModel):
    """Lists with one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer; index = prompt x n + choice."""

    index: int
    text: str
    logprobs: CompletionLogprobLists | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(_Whole):
    """A plain completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelCard(BaseModel):
    """The model served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    exactlm: dict[str, Any]


class ModelList(BaseModel):
    """The models served: one."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    """A text."""

    prompt: str


class StatusResponse(BaseModel):
    """How the server is."""

    status: str
