"""A vocabulary in flat buffers answers like the dictionaries that it was made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlm.text.entry_table import EntryTable

ENTRY = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.dictionaries(ENTRY, st.integers(0, 60)), ENTRY)
def test_equals_dictionaries(ids: dict[str, int], other: str) -> None:
    entries = {token_id: entry for entry, token_id in ids.items()}
    table = EntryTable(ids, entries)
    assert table.num_ids == max(entries, default=-1) + 1
    assert [table.get_entry(i) for i in range(table.num_ids)] == [entries.get(i) for i in range(table.num_ids)]
    assert table.list_gaps() == frozenset(range(table.num_ids)) - entries.keys()
    for entry in [*ids, other, other + "a", ""]:
        assert table.find_id(entry) == ids.get(entry)


def test_an_empty_entry_is_not_a_gap() -> None:
    table = EntryTable({"": 2, "b": 0}, {2: "", 0: "b"})
    assert (table.get_entry(2), table.get_entry(1), table.find_id("")) == ("", None, 2)


def test_lone_surrogates() -> None:
    with pytest.raises(UnicodeEncodeError):
        EntryTable({"\ud800": 0}, {0: "\ud800"})
    assert EntryTable({"a": 0}, {0: "a"}).find_id("\ud800") is None
