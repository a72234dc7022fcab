"""What a request asks of the choice of tokens. Everything here changes the answer, so unknown or unavailable values
are refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from exactlm.errors import RequestError

MAX_LOGPROBS = 1024


@dataclass(frozen=True)
class SamplingParams:
    """Greedy decoding: the most likely token, the lowest id of equals.

    temperature: 0.0. max_tokens: tokens to generate at most, from 1 up; None for all that the context has room for.
    stop: strings that end the text and are not part of it. stop_token_ids: ids that end it. ignore_eos: go on past the
    end-of-text token. logprobs: how many of the most likely tokens to report beside the chosen one; None for none.
    seed: recorded; greedy decoding does not use it.
    """

    temperature: float = 0.0
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    seed: int | None = field(default=None)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if (
            isinstance(self.temperature, bool)
            or not isinstance(self.temperature, (int, float))
            or self.temperature != 0
        ):
            raise RequestError(f"temperature={self.temperature!r}: only 0.0 (greedy) is available")
        if not _is_int(self.max_tokens, 1, 1 << 31, optional=True):
            raise RequestError(
                f"max_tokens={self.max_tokens!r}: use a whole number from 1 up, or None for the rest of the context"
            )
        if not _is_int(self.logprobs, 0, MAX_LOGPROBS, optional=True):
            raise RequestError(f"logprobs={self.logprobs!r}: use a whole number from 0 to {MAX_LOGPROBS}, or None")
        if not _is_int(self.seed, 0, (1 << 64) - 1, optional=True):
            raise RequestError(f"seed={self.seed!r}: use a whole number from 0 to 2^64 - 1, or None")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r}: use True or False")
        if not all(isinstance(s, str) and s for s in stop):
            raise RequestError(f"stop={self.stop!r}: use strings that are not empty")
        if not all(_is_int(i, 0, 1 << 31) for i in self.stop_token_ids):
            raise RequestError(f"stop_token_ids={self.stop_token_ids!r}: use token ids")


def _is_int(value: object, low: int, high: int, *, optional: bool = False) -> bool:
    if value is None:
        return optional
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
