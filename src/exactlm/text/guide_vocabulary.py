"""A tokenizer's vocabulary as a guide needs it: bytes of every id, ids that end, ids that stand for nothing.

Where decoding drops one leading space (SentencePiece), every token that begins with a space gets a second entry, above
the real ids, without the space: it stands for the token at the beginning of a text. Knows nothing of grammars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exactlm.text.tokenizer import Tokenizer


@dataclass
class TokenList:
    """What llguidance reads from a tokenizer, under the names it looks for."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    tokenizer: Tokenizer
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str) -> list[int]:
        """The ids of `text`."""
        return self.tokenizer.encode(text, add_special_tokens=False)


class GuideVocabulary:
    """The tables of one tokenizer; arrays of int64 ids, and the same as sets for a single id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_tokens = tokenizer.num_tokens
        self.ends = tokenizer.eos_ids
        self.strips_space = tokenizer.strips_space
        spaced = {i: token for i in range(self.num_tokens) if (token := self._leading_space(i))}
        worded = [i for i, token in spaced.items() if token != b" "]
        # None: nothing is left of the token, so a grammar does not see it.
        self.stripped: dict[int, int | None] = dict.fromkeys(spaced)
        self.stripped.update((token_id, self.num_tokens + k) for k, token_id in enumerate(worded))
        self._stripped_bytes = [spaced[i][1:] for i in worded]
        self.end_ids, self.unsampled_ids = _as_array(self.ends), _as_array(tokenizer.unsampled_ids)
        self.space_ids = _as_array(frozenset(spaced) - frozenset(worded))
        self.spaced_ids = np.array(worded, np.int64)
        self.stripped_ids = self.num_tokens + np.arange(len(worded))

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which has no text."""
        return self._tokenizer.is_special(token_id)

    def take_tokens(self) -> TokenList:
        """The list to build llguidance's table from; it may be taken once."""
        tokens = [self._tokenizer.token_bytes(i) for i in range(self.num_tokens)] + self._stripped_bytes
        # llguidance cannot do without an end: an id of its own that no mask shows, for a model that has none.
        end = min(self.ends, default=len(tokens))
        special = [*self._tokenizer.settings.special_ids, *([] if self.ends else [end])]
        return TokenList([*tokens, *([] if self.ends else [b"end"])], special, end, self._tokenizer)

    def _leading_space(self, token_id: int) -> bytes:
        """The token's bytes if it is a text that begins with a space that can be dropped, else nothing."""
        if not self.strips_space or self._tokenizer.is_special(token_id):
            return b""
        token = self._tokenizer.token_bytes(token_id)
        return token if token.startswith(b" ") else b""


def _as_array(ids: frozenset[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(ids), np.int64)
