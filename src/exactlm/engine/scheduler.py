"""Which sequences advance in a step, and by how many tokens. Its choices change speed, never a bit."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field

from exactlm.engine.config import EngineConfig
from exactlm.engine.kv_cache import PageStore, pages_for
from exactlm.engine.sequence import Sequence
from exactlm.kernels.api import PAGE_TOKENS

_LOG = logging.getLogger("exactlm.engine")


@dataclass(frozen=True)
class Slice:
    """The next `count` tokens of a sequence, and drafts of what may follow them."""

    sequence: Sequence
    count: int
    drafts: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.count + len(self.drafts)

    @property
    def is_last(self) -> bool:
        """Whether a choice follows: nothing of the sequence is pending after this slice."""
        return self.count == self.sequence.num_pending


class Scheduler:
    """First come, first served. Pages are taken as tokens need them; when none is left, the sequence that came last
    gives up its own and is computed again later. The oldest can always go on, so every sequence ends."""

    def __init__(self, config: EngineConfig, pages: PageStore, num_tokens: int) -> None:
        """num_tokens: of the vocabulary."""
        self._config, self._pages, self._num_tokens = config, pages, num_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.reset_counts()

    def reset_counts(self) -> None:
        """Preemptions, prompt tokens that were admitted, and those of them that the prefix cache had: none yet."""
        self.num_preemptions, self.num_prompt_tokens, self.num_reused = 0, 0, 0

    def schedule(self) -> list[Slice]:
        """The slices of the next step: first those that generate, then prompts in pieces, up to the token budget."""
        self._admit()
        budget = self._config.step_tokens
        slices: dict[Sequence, Slice] = {}
        # stable: order of arrival within each kind
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            count = min(sequence.num_pending, budget, self._config.chunk_tokens)
            if count > 0 and sequence in self.running and self._reserve(sequence, count, slices):
                slices[sequence] = Slice(sequence, count)
                budget -= count
        self._draft(slices, budget)
        return list(slices.values())

    def _draft(self, slices: dict[Sequence, Slice], budget: int) -> None:
        for sequence, piece in slices.items():
            if not piece.is_last or sequence.drafter is None:
                continue
            limit = min(budget, sequence.max_tokens - len(sequence.output_ids) - 1)
            if limit > 0:
                drafts = sequence.drafter.propose(sequence.token_ids(0, sequence.num_tokens), limit)
                wrong = (i for i, token in enumerate(drafts) if not 0 <= token < self._num_tokens)
                drafts = drafts[: next(wrong, limit)]  # a source may claim what no token is: it cannot be right
                drafts = drafts[: self._room_for(sequence, len(drafts))]
                slices[sequence] = Slice(sequence, piece.count, drafts)
                budget -= len(drafts)

    def _room_for(self, sequence: Sequence, num_drafts: int) -> int:
        """How many of so many drafts have a page; they take pages that are left, from nobody."""
        missing = pages_for(sequence.num_tokens + num_drafts) - len(sequence.pages)
        if missing > 0:
            sequence.pages += self._pages.allocate(min(missing, self._pages.num_available))
        return min(num_drafts, len(sequence.pages) * PAGE_TOKENS - sequence.num_tokens)

    def _admit(self) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self._config.max_batch:
                return
            if self._waits_for_leader(sequence):
                continue
            pages, prefix = self._pages.match(sequence.token_ids(0, sequence.num_tokens), sequence.num_skippable)
            # one page for each of the others, so that who was just admitted is not the next to be sent back
            needed = pages_for(sequence.num_tokens) - len(pages) + len(self.running)
            if needed > self._pages.num_available and self.running:
                self._pages.release(pages)
                return
            self.waiting.remove(sequence)
            sequence.pages, sequence.prefix, sequence.num_published = pages, prefix, len(pages)
            sequence.num_cached = len(pages) * PAGE_TOKENS
            if sequence.timings.started is None:
                sequence.timings.started = time.monotonic()
                sequence.num_reused = sequence.num_cached
                self.num_prompt_tokens += len(sequence.prompt_ids)
                self.num_reused += sequence.num_reused
            self.running.append(sequence)

    def _waits_for_leader(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        if leader is None or leader.is_finished or not self._pages.keeps_prefixes:
            return False
        return len(sequence.prompt_ids) > PAGE_TOKENS and not leader.output_ids

    def _reserve(self, sequence: Sequence, count: int, slices: dict[Sequence, Slice]) -> bool:
        """Takes the pages of the next `count` tokens, sending back who came later; False if this one had to go."""
        missing = pages_for(sequence.num_cached + count) - len(sequence.pages)
        while missing > self._pages.num_available:
            last = max(self.running, key=lambda s: s.arrival)
            self.preempt(last)
            slices.pop(last, None)
            if last is sequence:
                return False
        if missing > 0:
            sequence.pages += self._pages.allocate(missing)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to wait, in order of arrival. What it had computed may stay as a prefix."""
        self.num_preemptions += 1
        _LOG.debug(
            "no page is left: answer %d is computed again later, %d tokens", sequence.arrival, sequence.num_cached
        )
        self.running.remove(sequence)
        self._give_up_pages(sequence)
        at = sum(s.arrival < sequence.arrival for s in self.waiting)
        self.waiting.insert(at, sequence)

    def make_room(self, num_pages: int) -> None:
        """Sends back who came last until so many pages are available."""
        while num_pages > self._pages.num_available and self.running:
            self.preempt(max(self.running, key=lambda s: s.arrival))

    def publish(self, sequence: Sequence) -> None:
        """Lets others take up the pages of a running sequence that are full."""
        if not self._pages.keeps_prefixes:
            return
        while (sequence.num_published + 1) * PAGE_TOKENS <= sequence.num_cached:
            at = sequence.num_published
            assert sequence.prefix is not None
            key = tuple(sequence.token_ids(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS))
            sequence.pages[at], sequence.prefix = self._pages.publish(sequence.prefix, key, sequence.pages[at])
            sequence.num_published += 1

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        self._give_up_pages(sequence)

    def _give_up_pages(self, sequence: Sequence) -> None:
        self._pages.release(sequence.pages)
        sequence.pages, sequence.prefix, sequence.num_published, sequence.num_cached = [], None, 0, 0

    def clear(self) -> None:
        """Forgets every sequence, whatever state it is in."""
        self.waiting.clear()
        self.running.clear()
