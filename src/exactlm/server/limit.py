"""What the server takes on at most: bytes, seconds, answers. Knows nothing of what is asked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

from exactlm.errors import ConfigError
from exactlm.server.errors import ApiError

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


class Room:
    """Counts the answers under way and keeps them below a limit. Thread-safe."""

    def __init__(self, max_answers: int) -> None:
        self.max_answers = max_answers
        self._lock = threading.Lock()
        self._num_answers = 0

    def check(self) -> None:
        """ApiError 429 if not one answer more has room."""
        if self._num_answers >= self.max_answers:
            raise self._refuse(1)

    def enter(self, count: int) -> None:
        """Takes room for `count` answers: ApiError 429 if there is none now, 400 if there never is."""
        if count > self.max_answers:
            message = f"the request asks for {count} answers (prompts x n); this server has room for {self.max_answers}"
            raise ApiError(400, message, param="n")
        with self._lock:
            if self._num_answers + count > self.max_answers:
                raise self._refuse(count)
            self._num_answers += count

    def leave(self, count: int) -> None:
        """Gives the room back."""
        with self._lock:
            self._num_answers -= count

    def _refuse(self, count: int) -> ApiError:
        message = (
            f"the queue is full: {self._num_answers} of at most {self.max_answers} answers are under way and {count} "
            f"more are asked for; try again in a moment"
        )
        return ApiError(429, message, code="queue_full", headers={"Retry-After": str(RETRY_SECONDS)})
