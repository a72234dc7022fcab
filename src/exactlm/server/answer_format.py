"""The interface of the two response formats, chat and plain completions, and of the request that names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Logprobs
from exactlm.llm import LLM, RequestOutput
from exactlm.prompt import ReadPrompt


@dataclass
class Piece:
    """What has come of one choice: text, tokens, and at its end the reason and what stopped it."""

    text: str
    token_ids: list[int]
    logprobs: list[Logprobs] | None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class Asked:
    """A request that was read, checked and turned into token ids, but not yet submitted."""

    prompts: list[ReadPrompt]
    params: SamplingParams
    is_streaming: bool
    wants_usage: bool
    wants_receipts: bool
    format: AnswerFormat

    @property
    def num_answers(self) -> int:
        """Choices of the response: prompt 0's, then prompt 1's, and so on."""
        return len(self.prompts) * self.params.n


class AnswerFormat(Protocol):
    """How answers are written. One instance for one request."""

    endpoint: ClassVar[str]
    id_prefix: ClassVar[str]
    object: ClassVar[str]  # of a whole response
    chunk_object: ClassVar[str]
    # The choices can only be written whole, at the end.
    is_whole: bool

    @classmethod
    def read(cls, body: dict[str, Any], llm: LLM) -> Asked:
        """The request in a body. ApiError, ExactlmError, pydantic's ValidationError."""

    def make_opening(self, index: int) -> str | None:
        """The first choice object of a stream, if the format has one."""

    def make_chunk(self, index: int, piece: Piece) -> str | None:
        """The next choice object of a stream as JSON; None if the piece has nothing to show."""

    def make_choices(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """All choices, whole."""
