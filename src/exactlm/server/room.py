"""The answers under way, and the limit of their number. Knows nothing of what is asked."""

from __future__ import annotations

import threading

from exactlm.server.errors import ApiError
from exactlm.server.limit import RETRY_SECONDS


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
