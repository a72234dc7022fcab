"""The entries of a vocabulary in four buffers: some 20 bytes an entry, where a dictionary for each way takes 250.

Knows strings and numbers; nothing of tokenizers.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

_ABSENT = 0xFFFFFFFF


class EntryTable:
    """Entries and their ids, both ways. ids: entry -> id. entries: id -> entry, each of them a key of `ids`; ids are
    from 0 to 2^32 - 1. UnicodeEncodeError for an entry that UTF-8 cannot hold."""

    def __init__(self, ids: Mapping[str, int], entries: Mapping[int, str]) -> None:
        ordered = sorted(ids)  # as UTF-8 they are in order too
        encoded = [entry.encode("utf-8") for entry in ordered]
        places = {entry: place for place, entry in enumerate(ordered)}
        self.num_ids = max(entries, default=-1) + 1
        self._text = b"".join(encoded)
        self._ends = array("I", accumulate(map(len, encoded), initial=0))
        self._ids = array("I", (ids[entry] for entry in ordered))
        self._places = array("I", [_ABSENT]) * self.num_ids  # of an id's entry in that order
        for token_id, entry in entries.items():
            self._places[token_id] = places[entry]

    def get_entry(self, token_id: int) -> str | None:
        """The entry of an id from 0 to num_ids - 1; None where it has none."""
        place = self._places[token_id]
        return None if place == _ABSENT else self._read(place).decode("utf-8")

    def find_id(self, entry: str) -> int | None:
        """The id of an entry; None where there is no such entry."""
        wanted = entry.encode("utf-8", "surrogatepass")
        place = bisect_left(range(len(self._ids)), wanted, key=self._read)
        return self._ids[place] if place < len(self._ids) and self._read(place) == wanted else None

    def list_gaps(self) -> frozenset[int]:
        """Ids below num_ids without an entry."""
        return frozenset(i for i, place in enumerate(self._places) if place == _ABSENT)

    def _read(self, place: int) -> bytes:
        return self._text[self._ends[place] : self._ends[place + 1]]
