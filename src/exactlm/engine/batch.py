"""Turns the slices of a step into the arrays of models/decoder.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exactlm.engine.scheduler import Slice
from exactlm.kernels.api import I32, I64


@dataclass(frozen=True)
class Row:
    """A place where logits are wanted: those of the token after `position`, which is token `at` of the step.
    `is_choice`: whether a token is chosen there; else the prompt's own next token is scored."""

    piece: Slice
    position: int
    at: int
    is_choice: bool


@dataclass(frozen=True)
class Batch:
    """ids [T], first_token [S+1], positions [T], page_table [S, pages], rows [R]: where logits are wanted, for
    `wanted` [R]."""

    ids: I64
    first_token: I32
    positions: I32
    page_table: I32
    rows: I32
    slices: list[Slice]
    wanted: list[Row]


def make_batch(slices: list[Slice]) -> Batch:
    """Arrays of one step; sequences stand one after another, without padding."""
    ids: list[int] = []
    positions: list[int] = []
    first_token = [0]
    wanted: list[Row] = []
    page_table = np.zeros((len(slices), max(len(s.sequence.pages) for s in slices)), np.int32)
    for i, piece in enumerate(slices):
        sequence, begin = piece.sequence, piece.sequence.num_cached
        end = begin + piece.num_tokens
        last = sequence.num_tokens - 1
        wanted += [Row(piece, p, len(ids) + p - begin, p >= last) for p in range(_first_wanted(piece), end)]
        ids += sequence.token_ids(begin, begin + piece.count)
        ids += piece.drafts
        positions += range(begin, end)
        first_token.append(len(ids))
        page_table[i, : len(sequence.pages)] = sequence.pages
    return Batch(
        np.array(ids, np.int64),
        np.array(first_token, np.int32),
        np.array(positions, np.int32),
        page_table,
        np.array([row.at for row in wanted], np.int32),
        slices,
        wanted,
    )


def _first_wanted(piece: Slice) -> int:
    """Position of the first token of a slice after which logits are wanted; they are wanted from there on."""
    sequence = piece.sequence
    first = sequence.num_tokens - 1
    if sequence.params.prompt_logprobs is not None:
        first = min(first, max(sequence.num_cached, len(sequence.prompt_logprobs)))
    return min(first, sequence.num_cached + piece.num_tokens)
