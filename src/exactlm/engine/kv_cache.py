"""Who owns which page of the KV cache. Knows page numbers only; the bytes are in native/kv_cache.h."""

from __future__ import annotations

from exactlm.errors import CapacityError
from exactlm.kernels.api import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """Pages that hold num_tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class PageAllocator:
    """Hands out pages, the most recently freed first, so that memory already taken is used again."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free: list[int] = []
        self.reset()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages; CapacityError if there are fewer."""
        if count > len(self._free):
            raise CapacityError(f"{count} KV pages are needed, {len(self._free)} of {self.num_pages} are free")
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Gives pages back."""
        self._free.extend(reversed(pages))

    def reset(self) -> None:
        """Makes every page free: nobody owns one any more."""
        self._free = list(range(self.num_pages - 1, -1, -1))

    def check_integrity(self) -> None:
        """Raises CapacityError unless, with nothing running, every page is free exactly once."""
        if sorted(self._free) != list(range(self.num_pages)):
            known = len(set(self._free))
            raise CapacityError(f"{self.num_pages - known} KV pages are lost, {len(self._free) - known} are free twice")
