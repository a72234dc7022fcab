"""Drafts of what may follow, found in the sequence's own text (prompt lookup). A draft changes how many tokens a step
decides, never which: it is kept exactly when it is what the sampler chooses."""

from __future__ import annotations

MAX_DRAFT = 12  # tokens of a draft
GRAMS = (3, 2)  # lengths of the endings that are looked up, the longest first
METHODS = ("none", "ngram")


class Drafter:
    """Remembers where each ending of 2 and 3 tokens was last seen in one sequence."""

    def __init__(self) -> None:
        self._follower: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after it
        self._num_seen = 0
        self._length = 4

    def propose(self, ids: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that followed the last earlier occurrence of the ending of ids, which may reach into
        the draft itself; perhaps none."""
        for end in range(max(self._num_seen, 1), len(ids)):
            for size in GRAMS:
                if size <= end:
                    self._follower[tuple(ids[end - size : end])] = end
        self._num_seen = len(ids)
        for size in GRAMS:
            at = self._follower.get(tuple(ids[-size:]))
            if at is not None and size <= len(ids):
                draft: list[int] = []
                for i in range(at, at + min(limit, self._length)):
                    draft.append(ids[i] if i < len(ids) else draft[i - len(ids)])
                return draft
        return []

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Drafts grow while they are accepted whole and shrink when they are not."""
        if num_drafted:
            self._length = min(MAX_DRAFT, 2 * self._length) if num_accepted == num_drafted else num_accepted + 1
