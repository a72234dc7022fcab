"""Who owns which page of the KV cache, and which pages keep a prefix for the next request that begins the same.

One store belongs to one engine, hence to one model (adapters are merged into it) and one KV type. A page is *free*,
*held* by one or more sequences, or *idle*: held by none, but its tokens are known and a prompt that begins with them
can take it up. Idle pages are given away, the longest idle first, when no free one is left. Knows page numbers and
token ids only; the bytes are in native/kv_cache.h. That cached bytes equal recomputed ones is the promise of
spec/numerics.md 2.5, so nothing here can change an answer.
"""

from __future__ import annotations

from collections import OrderedDict

from exactlm.errors import CapacityError
from exactlm.kernels.api import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """Pages that hold num_tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class Prefix:
    """A page whose 32 tokens, and all tokens before them (`parent`), are known."""

    __slots__ = ("children", "key", "page", "parent")

    def __init__(self, parent: Prefix | None, key: tuple[int, ...], page: int) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.children: dict[tuple[int, ...], Prefix] = {}  # looked up by the ids themselves: equal hashes are compared


class PageStore:
    """Hands out pages, the most recently freed first, so that memory already taken is used again."""

    def __init__(self, num_pages: int, keeps_prefixes: bool = False) -> None:
        self.num_pages, self.keeps_prefixes = num_pages, keeps_prefixes
        self.reset()

    def reset(self) -> None:
        """Makes every page free and forgets every prefix: nobody owns a page any more."""
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._holders = [0] * self.num_pages
        self._root = Prefix(None, (), -1)
        self._prefix_of: dict[int, Prefix] = {}
        # In the order in which they became idle. A parent is held while a child is, so it comes after its children and
        # the first is always a leaf.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def root(self) -> Prefix:
        """The empty prefix."""
        return self._root

    @property
    def num_available(self) -> int:
        """Pages that allocate() can give."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_pages - self.num_available

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages; CapacityError if there are fewer."""
        if count > self.num_available:
            raise CapacityError(f"{count} KV pages are needed, {self.num_available} of {self.num_pages} are free")
        pages = []
        for _ in range(count):
            page = self._free.pop() if self._free else self._forget_oldest()
            self._holders[page] = 1
            pages.append(page)
        return pages

    def release(self, pages: list[int]) -> None:
        """Gives up a sequence's hold of its pages, in the order of its tokens."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._prefix_of:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def match(self, token_ids: list[int], max_tokens: int) -> tuple[list[int], Prefix]:
        """Takes hold of the pages that keep a beginning of token_ids, whole pages within max_tokens only; and the
        prefix that they end."""
        pages, node = [], self._root
        for begin in range(0, max_tokens - PAGE_TOKENS + 1, PAGE_TOKENS):
            child = node.children.get(tuple(token_ids[begin : begin + PAGE_TOKENS])) if node.children else None
            if child is None:
                break
            self._hold(child.page)
            pages.append(child.page)
            node = child
        return pages, node

    def publish(self, parent: Prefix, key: tuple[int, ...], page: int) -> tuple[int, Prefix]:
        """Makes a held, filled page known as the one after `parent` with the tokens `key`. If that prefix is known
        already, its page is taken instead (the same bytes) and this one is free. Returns the page to go on with."""
        known = parent.children.get(key)
        if known is not None:
            self._hold(known.page)
            self.release([page])
            return known.page, known
        node = Prefix(parent, key, page)
        parent.children[key] = node
        self._prefix_of[page] = node
        return page, node

    def check_integrity(self) -> None:
        """Raises CapacityError unless, with nothing running, every page is free or idle exactly once, and every idle
        page can be reached by its prefix."""
        known = sorted([*self._free, *self._idle])
        if known != list(range(self.num_pages)) or any(self._holders):
            distinct = len(set(known))
            lost, doubled = self.num_pages - distinct, len(known) - distinct
            raise CapacityError(f"{lost} KV pages are lost or still held, {doubled} are free twice")
        reached, nodes = set(), [self._root]
        while nodes:
            children = nodes.pop().children.values()
            reached |= {c.page for c in children}
            nodes += children
        if reached != set(self._idle) or reached != set(self._prefix_of):
            raise CapacityError(f"{len(reached ^ set(self._prefix_of))} KV pages are not where their prefix says")

    def _hold(self, page: int) -> None:
        if self._holders[page] == 0:
            del self._idle[page]
        self._holders[page] += 1

    def _forget_oldest(self) -> int:
        page, _ = self._idle.popitem(last=False)
        node = self._prefix_of.pop(page)
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.key]
        return page
