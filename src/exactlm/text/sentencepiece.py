"""Builds a tokenizer.json for a SentencePiece BPE vocabulary: pieces, scores and types in, JSON object out.

Shared by GGUF metadata (`tokenizer.ggml.model` = "llama") and `tokenizer.model` files. Knows no file formats.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exactlm.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # the numbers of both file formats
SPACE = "\u2581"


@dataclass(frozen=True)
class Normalization:
    """How text is prepared: a space put in front, runs of spaces squeezed, a character map (SentencePiece's own)."""

    adds_space_prefix: bool = True
    squeezes_spaces: bool = False
    charsmap: bytes = b""


def make_added_token(token_id: int, content: str, *, is_special: bool) -> dict[str, Any]:
    """Return one entry of `added_tokens`."""
    return {
        "id": token_id, "content": content, "special": is_special,
        "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    }  # fmt: skip


def build_sentencepiece(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], normalization: Normalization
) -> dict[str, Any]:
    """Return the tokenizer.json object of a SentencePiece BPE model; the index in `pieces` is the id.

    TokenizerError where pieces repeat, lengths differ or a score is not a number.
    """
    if not len(pieces) == len(scores) == len(types):
        raise TokenizerError(f"{len(pieces)} pieces, {len(scores)} scores, {len(types)} types: counts must be equal")
    vocab = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    if len(vocab) != len(pieces):
        repeated = next(piece for piece_id, piece in enumerate(pieces) if vocab[piece] != piece_id)
        raise TokenizerError(f"the piece {repeated!r} is in the vocabulary twice")
    unknown = next((piece for piece, kind in zip(pieces, types, strict=True) if kind == UNKNOWN), None)
    added = [
        make_added_token(piece_id, piece, is_special=types[piece_id] != USER_DEFINED)
        for piece_id, piece in enumerate(pieces)
        if types[piece_id] in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": _make_normalizer(normalization), "pre_tokenizer": None, "post_processor": None,
        "decoder": _make_decoder(normalization),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": BYTE in types, "ignore_merges": False,
            "vocab": vocab, "merges": _derive_merges(pieces, scores, types),
        },
    }  # fmt: skip


def _derive_merges(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """List every pair of pieces that joins to a piece, best score of the joined piece first.

    Only normal pieces take part: "<s>" written in a text must not merge into the control token.
    """
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces) if types[piece_id] == NORMAL}
    ranked: list[tuple[float, int, int, int]] = []
    for piece, piece_id in ids.items():
        if len(piece) > 1 and not math.isfinite(scores[piece_id]):
            raise TokenizerError(f"the score of piece {piece_id} ({piece!r}) is {scores[piece_id]}, not a number")
        for cut in range(1, len(piece)):
            left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[piece_id], piece_id, left, right))
    ranked.sort()
    return [[pieces[left], pieces[right]] for _, _, left, right in ranked]


def _make_normalizer(normalization: Normalization) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if normalization.charsmap:
        encoded = base64.b64encode(normalization.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if normalization.squeezes_spaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if normalization.adds_space_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": steps}


def _make_decoder(normalization: Normalization) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if normalization.adds_space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
