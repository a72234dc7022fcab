"""Keeps control tokens out of reach of user text.

Every control token of a tokenizer.json is renamed to a private spelling that no text contains; what the caller trusts
is translated to that spelling first. So one tokenizer serves both: "<|im_end|>" typed by a user stays plain text, the
one written by a chat template becomes its id, and the rest of the text is split and merged exactly as before.
Knows nothing of files or templates.
"""

import re
from collections.abc import Collection
from typing import Any

from exactlm.errors import TokenizerError

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # Unicode noncharacters: never assigned, yet allowed inside strings


class ControlGuard:
    """Renames the control tokens `special_ids` of a tokenizer.json `document`.

    `key` is part of the private spelling. It must not be guessable by whoever writes the texts; it never shows in ids.
    """

    def __init__(self, document: dict[str, Any], special_ids: Collection[int], key: str) -> None:
        self._key = key
        content_by_id = _list_contents(document)
        self._spelling = {
            content_by_id[token_id]: f"{_OPEN}{key}:{token_id}{_CLOSE}"
            for token_id in special_ids
            if token_id in content_by_id
        }
        # All added tokens compete for a match, the longest first, as in the tokenizers library.
        added = {token["content"] for token in document.get("added_tokens", [])} | set(self._spelling)
        ordered = sorted(filter(None, added), key=lambda content: (-len(content), content))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._document: dict[str, Any] | None = self._rename(document)

    def take_document(self) -> dict[str, Any]:
        """Return the renamed document, once: kept, it would take some 10 MB for as long as the tokenizer lives."""
        document, self._document = self._document, None
        assert document is not None
        return document

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The control tokens as text, sorted."""
        return tuple(sorted(self._spelling))

    def check(self, text: str) -> None:
        """Raise TokenizerError where `text` holds the private spelling."""
        if f"{_OPEN}{self._key}:" in text:
            raise TokenizerError("the text contains this process's private control spelling; remove it")

    def translate(self, text: str) -> str:
        """Return trusted `text` with every control token in its private spelling."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._spelling.get(match.group(), match.group()), text)

    def _rename(self, document: dict[str, Any]) -> dict[str, Any]:
        guarded = {key: value for key, value in document.items() if key not in ("added_tokens", "model")}
        guarded["added_tokens"] = [self._rename_added(token) for token in document.get("added_tokens", [])]
        model = dict(document["model"])
        content_ids = {token["content"]: token["id"] for token in document.get("added_tokens", [])}
        if isinstance(model["vocab"], dict):
            # Ids of added tokens are pinned by listing them in the vocabulary; otherwise the library renumbers them.
            vocab = {**model["vocab"], **content_ids}
            model["vocab"] = {self._spelling.get(content, content): token_id for content, token_id in vocab.items()}
            model["merges"] = [merge for merge in model["merges"] if not self._touches_control(merge)]
        else:
            model["vocab"] = [[self._spelling.get(content, content), score] for content, score in model["vocab"]]
        if model.get("unk_token") in self._spelling:
            model["unk_token"] = self._spelling[model["unk_token"]]
        guarded["model"] = model
        return guarded

    def _rename_added(self, token: dict[str, Any]) -> dict[str, Any]:
        if token["content"] not in self._spelling:
            return token
        return {**token, "content": self._spelling[token["content"]], "normalized": False, "special": True}

    def _touches_control(self, merge: str | list[str]) -> bool:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        return left in self._spelling or right in self._spelling or left + right in self._spelling


def _list_contents(document: dict[str, Any]) -> dict[int, str]:
    vocab = document["model"]["vocab"]
    if isinstance(vocab, dict):
        contents = {token_id: content for content, token_id in vocab.items()}
    else:
        contents = {token_id: entry[0] for token_id, entry in enumerate(vocab)}
    contents.update((token["id"], token["content"]) for token in document.get("added_tokens", []))
    return contents
