"""Turns the slices of a step into the arrays of models/decoder.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exactlm.engine.scheduler import Slice
from exactlm.kernels.api import I32, I64


@dataclass(frozen=True)
class Batch:
    """ids [T], first_token [S+1], positions [T], page_table [S, pages], rows [R]: where logits are wanted, of
    `chosen`."""

    ids: I64
    first_token: I32
    positions: I32
    page_table: I32
    rows: I32
    slices: list[Slice]


def make_batch(slices: list[Slice]) -> Batch:
    """Arrays of one step; sequences stand one after another, without padding."""
    ids: list[int] = []
    positions: list[int] = []
    first_token = [0]
    rows = []
    page_table = np.zeros((len(slices), max(len(s.sequence.pages) for s in slices)), np.int32)
    for i, piece in enumerate(slices):
        sequence, begin = piece.sequence, piece.sequence.num_cached
        ids += sequence.token_ids(begin, begin + piece.count)
        positions += range(begin, begin + piece.count)
        first_token.append(len(ids))
        page_table[i, : len(sequence.pages)] = sequence.pages
        if piece.is_last:
            rows.append(len(ids) - 1)
    return Batch(
        np.array(ids, np.int64),
        np.array(first_token, np.int32),
        np.array(positions, np.int32),
        page_table,
        np.array(rows, np.int32),
        slices,
    )
