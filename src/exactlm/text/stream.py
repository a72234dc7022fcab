"""Turns token ids into text as they come: pieces that are whole characters and join to exactly the decoded text.

Knows nothing of stop strings or requests.
"""

import codecs

from exactlm.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one sequence of tokens. The pushed and finished texts joined equal `tokenizer.decode` of all ids.

    `skip_special_tokens`, `continuation`: as in `Tokenizer.decode`. Each push costs only its own token's bytes.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._strips_next_space = tokenizer.strips_space and not continuation
        # Holds back at most the three bytes of an unfinished character.
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes: perhaps none. TokenizerError for an id outside the vocabulary."""
        data = self._tokenizer.token_bytes(token_id)
        if not data or (self._skips_special and self._tokenizer.is_special(token_id)):
            return ""
        if self._strips_next_space:
            data, self._strips_next_space = data.removeprefix(b" "), False
        return self._utf8.decode(data)

    def finish(self) -> str:
        """Return what is still held back: U+FFFD where the tokens end inside a character. Push nothing after it."""
        held, _ = self._utf8.getstate()
        return held.decode("utf-8", errors="replace")
