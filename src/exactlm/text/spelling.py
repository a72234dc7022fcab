"""What each token id stands for, in bytes, as told by a tokenizer.json.

Two families: byte-level (each character of an entry is a byte) and SentencePiece ("▁" is a space, "<0x0A>" a byte).
Knows nothing of encoding.
"""

import re
from collections.abc import Collection
from typing import Any

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text.alphabet import BYTE_TO_CHAR, spell_bytes
from exactlm.text.entry_table import EntryTable
from exactlm.text.sentencepiece import SPACE

_MAX_TOKENS = 2**24
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling:
    """Bytes of every token. `strips_space`: one leading space of a decoded text is dropped."""

    def __init__(self, document: dict[str, Any], special_ids: Collection[int]) -> None:
        vocab = document["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], index) for index, entry in enumerate(vocab))
        ids: dict[str, int] = dict(pairs)
        contents = {token_id: content for content, token_id in ids.items()}
        added: dict[int, str] = {token["id"]: token["content"] for token in document.get("added_tokens", [])}
        contents.update(added)
        ids.update((content, token_id) for token_id, content in added.items())
        for content, token_id in ids.items():
            if type(content) is not str or type(token_id) is not int or not 0 <= token_id < _MAX_TOKENS:
                raise TokenizerError(f"tokenizer.json: entry {content!r:.60} has id {token_id!r:.60}")
        self._table = EntryTable(ids, contents)
        self.num_tokens = self._table.num_ids
        self._added, self._special = frozenset(added), frozenset(special_ids)
        # One string: kept one by one, they would keep the memory that the document lay in.
        self._characters = "".join(content for content in ids if len(content) == 1)
        self.is_byte_level, self.strips_space = _read_decoder(document.get("decoder"))
        self._has_byte_pieces = bool(document["model"].get("byte_fallback"))
        self._missing_bytes = self._list_missing_bytes(ids)

    @property
    def undefined_ids(self) -> frozenset[int]:
        """Ids below `num_tokens` without an entry."""
        return self._table.list_gaps()

    def get_content(self, token_id: int) -> str:
        """Return the vocabulary entry of `token_id`, as written in the file."""
        self._check(token_id)
        return self._table.get_entry(token_id) or ""

    def find_id(self, content: str) -> int | None:
        """Return the id of the entry written `content`."""
        return self._table.find_id(content)

    def get_bytes(self, token_id: int) -> bytes:
        """Return the bytes of `token_id`; TokenizerError where it is outside the vocabulary."""
        content = self.get_content(token_id)
        if token_id in self._special:
            return content.encode("utf-8")
        if self.is_byte_level:
            return content.encode("utf-8") if token_id in self._added else spell_bytes(content)
        match = _BYTE_PIECE.fullmatch(content) if self._has_byte_pieces and token_id not in self._added else None
        if match:
            return bytes.fromhex(match.group(1))
        return content.replace(SPACE, " ").encode("utf-8")

    def list_lost_bytes(self, text: str) -> list[tuple[int, int]]:
        """List (offset, value) of the UTF-8 bytes of `text` for which the vocabulary has no token."""
        data = text.encode("utf-8")
        missing = self._missing_bytes
        if self.is_byte_level:
            return [(offset, value) for offset, value in enumerate(data) if value in missing]
        lost, offset = [], 0
        for char in text:
            encoded = char.encode("utf-8")
            if (SPACE if char == " " else char) not in self._characters and missing.intersection(encoded):
                lost += [(offset + index, value) for index, value in enumerate(encoded)]
            offset += len(encoded)
        return lost

    def _list_missing_bytes(self, entries: Collection[str]) -> frozenset[int]:
        if self.is_byte_level:
            return frozenset(value for value, char in enumerate(BYTE_TO_CHAR) if char not in entries)
        return frozenset(
            value for value in range(256) if not self._has_byte_pieces or f"<0x{value:02X}>" not in entries
        )

    def _check(self, token_id: int) -> None:
        if isinstance(token_id, bool) or not hasattr(token_id, "__index__"):
            raise TokenizerError(f"token id {token_id!r:.60} is a {type(token_id).__name__}, expected an integer")
        if not 0 <= token_id < self.num_tokens:
            raise TokenizerError(f"token id {token_id} is outside the vocabulary (0 to {self.num_tokens - 1})")


def _read_decoder(decoder: dict[str, Any] | None) -> tuple[bool, bool]:
    """Return (is_byte_level, strips_space) of the `decoder` object; UnsupportedError names another kind."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse", "ByteFallback"}:
        return True, False
    if "Metaspace" in kinds and set(kinds) <= {"Metaspace", "ByteFallback", "Fuse"}:
        step = steps[kinds.index("Metaspace")]
        scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
        if step.get("replacement", SPACE) == SPACE:
            return False, scheme != "never"
    is_spaced = any(
        step.get("type") == "Replace" and step.get("pattern") == {"String": SPACE} and step.get("content") == " "
        for step in steps
    )
    strips = [step for step in steps if step.get("type") == "Strip"]
    is_plain = all((step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0) for step in strips)
    if is_spaced and is_plain and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return False, bool(strips)
    raise UnsupportedError(f"tokenizer.json: decoder {kinds} is not implemented; known: ByteLevel, SentencePiece's")
