"""What the server takes on at most: bytes, seconds, answers. Knows nothing of what is asked; needs no extra."""

from __future__ import annotations

from dataclasses import dataclass, fields

from exactlm.errors import ConfigError

RETRY_SECONDS = 1


@dataclass(frozen=True)
class Limits:
    """Capacity of a server; none of these changes an answer.

    max_body_bytes: of a request. read_seconds: for its header, and again for its body. request_seconds: from its
    arrival to its last byte. max_waiting: answers (prompts x n) waiting for a place in the engine's batch.
    grace_seconds: for answers under way when the server is told to stop. ping_seconds: a stream that is silent for so
    long gets a comment, so that proxies keep it.
    """

    max_body_bytes: int = 4 << 20
    read_seconds: float = 30.0
    request_seconds: float = 600.0
    max_waiting: int = 1024
    grace_seconds: float = 30.0
    ping_seconds: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name in ("max_waiting", "grace_seconds") else 1e-3
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= 1 << 40:
                raise ConfigError(f"{field.name}={value!r}: use a number from {low:g} up")
