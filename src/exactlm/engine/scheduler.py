"""Which sequences advance in a step, and by how many tokens. Its choices change speed, never a bit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from exactlm.engine.config import EngineConfig
from exactlm.engine.kv_cache import PageAllocator, pages_for
from exactlm.engine.sequence import Sequence


@dataclass(frozen=True)
class Slice:
    """The next `count` tokens of a sequence."""

    sequence: Sequence
    count: int

    @property
    def is_last(self) -> bool:
        """Whether logits follow: nothing of the sequence is pending after this slice."""
        return self.count == self.sequence.num_pending


class Scheduler:
    """First come, first served. A sequence is admitted when the pages for all it may ever need are free, so none is
    ever evicted."""

    def __init__(self, config: EngineConfig, pages: PageAllocator) -> None:
        self._config, self._pages = config, pages
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def schedule(self) -> list[Slice]:
        """The slices of the next step: first those that generate, then prompts in pieces, up to the token budget."""
        self._admit()
        budget = self._config.step_tokens
        slices = []
        for sequence in sorted(
            self.running, key=lambda s: s.num_pending > 1
        ):  # stable: order of arrival within each kind
            count = min(sequence.num_pending, budget, self._config.chunk_tokens)
            if count > 0:
                slices.append(Slice(sequence, count))
                budget -= count
        return slices

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._config.max_batch:
            sequence = self.waiting[0]
            needed = pages_for(len(sequence.prompt_ids) + sequence.max_tokens)
            if needed > self._pages.num_free:
                return
            sequence.pages = self._pages.allocate(needed)
            self.running.append(self.waiting.popleft())

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        self._pages.free(sequence.pages)
        sequence.pages = []

    def clear(self) -> None:
        """Forgets every sequence, whatever state it is in."""
        self.waiting.clear()
        self.running.clear()
