"""Finds stop strings in a text that arrives in pieces, and never lets a part of one out.

The stop that is complete first ends the text; of several complete at the same character, the longest. So generation
can end at once, and the result depends on the text alone, not on how it was cut. Knows nothing of tokens.
"""

from collections.abc import Sequence

from exactlm.errors import RequestError


class StopMatcher:
    """Matches `stops` in a stream of texts. RequestError where one is empty or not a text."""

    def __init__(self, stops: Sequence[str] | str | None) -> None:
        self._stops = [stops] if isinstance(stops, str) else list(stops or [])
        for index, stop in enumerate(self._stops):
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop[{index}] = {stop!r:.60}: a stop is a text of at least one character")
        self._max_held = max(map(len, self._stops), default=1) - 1
        self._held = ""
        self._is_stopped = False

    def push(self, delta: str) -> tuple[str, str | None]:
        """Add `delta`; return (text that may be shown, the stop that was hit or None). After a hit all is swallowed."""
        if self._is_stopped:
            return "", None
        text = self._held + delta
        hits = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if hits:
            _, begin, stop = min(hits)
            self._held, self._is_stopped = "", True
            return text[:begin], stop
        cut = len(text) - self._count_held(text)
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        """Return the text still held back, which turned out to be no stop. Push nothing after it."""
        return self._held

    def _count_held(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop begins."""
        for size in range(min(self._max_held, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
