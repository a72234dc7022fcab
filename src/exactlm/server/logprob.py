"""Log-probabilities in OpenAI's two formats. Tokens that are a part of a character show their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exactlm.engine.sequence import Logprobs
from exactlm.text.stream import StreamDecoder
from exactlm.text.tokenizer import Tokenizer

_FLOOR = -9999.0  # OpenAI's value for what cannot come; minus infinity is not JSON


def name_token(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token, or its bytes as OpenAI writes them (`bytes:\\xe2\\x80`) where they are no whole text."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def make_chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[Logprobs], num_top: int
) -> dict[str, Any]:
    """`logprobs` of a chat choice: one entry for each token, with its true bytes and the `num_top` likeliest."""
    content = []
    for token_id, known in zip(token_ids, logprobs, strict=True):
        top = [_describe(tokenizer, other, value) for other, value in list(known.items())[:num_top]]
        content.append({**_describe(tokenizer, token_id, known[token_id]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _describe(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, Any]:
    data = list(tokenizer.token_bytes(token_id))
    return {"token": name_token(tokenizer, token_id), "logprob": max(value, _FLOOR), "bytes": data}


class CompletionLogprobs:
    """`logprobs` of a plain completion's choice, in one piece or several: the offsets go on from piece to piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._offset = 0

    def add_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[Logprobs | None], text: str
    ) -> dict[str, list[Any]]:
        """The prompt's tokens, the first without a value; the answer's offsets follow `text`."""
        decoder, self._decoder = self._decoder, StreamDecoder(self._tokenizer, skip_special_tokens=False)
        made = self.add(token_ids, logprobs)
        self._decoder, self._offset = decoder, len(text)
        return made

    def add(self, token_ids: Sequence[int], logprobs: Sequence[Logprobs | None]) -> dict[str, list[Any]]:
        """The next tokens of the answer. Offsets count characters of the text as it would be without stop texts."""
        made: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, known in zip(token_ids, logprobs, strict=True):
            made["tokens"].append(name_token(self._tokenizer, token_id))
            made["token_logprobs"].append(None if known is None else max(known[token_id], _FLOOR))
            made["top_logprobs"].append(None if known is None else self._name_all(known))
            made["text_offset"].append(self._offset)
            self._offset += len(self._decoder.push(token_id))
        return made

    def _name_all(self, known: Logprobs) -> dict[str, float]:
        """By text, as the format asks; a text that stands for two tokens gets the second one's id behind it."""
        named: dict[str, float] = {}
        for token_id, value in known.items():
            name = name_token(self._tokenizer, token_id)
            named[name if name not in named else f"{name} (token_id:{token_id})"] = max(value, _FLOOR)
        return named
