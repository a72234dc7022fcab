"""The tokenizer: text to token ids and back, over the `tokenizers` library.

Token ids follow the reference tokenizer of the model, with one exception made on purpose: control tokens typed inside
a text stay text unless the caller says otherwise. Knows nothing of models, checkpoints or sampling.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from exactlm.errors import FormatError, TokenizerError
from exactlm.text.control import ControlGuard
from exactlm.text.settings import TextSettings, dump_canonical
from exactlm.text.spelling import Spelling

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "text.json"
TEMPLATE_FILE = "chat_template.jinja"
_OFF = {"post_processor": None, "truncation": None, "padding": None}


def write_text_files(
    directory: str | Path, tokenizer_json: str, settings: Mapping[str, Any], chat_template: str | None
) -> list[str]:
    """Write what `build_from_gguf`/`build_from_directory` returned; returns the names of the files written.

    The bytes depend on the arguments alone.
    """
    files = {TOKENIZER_FILE: tokenizer_json, SETTINGS_FILE: dump_canonical(dict(settings))}
    if chat_template is not None:
        files[TEMPLATE_FILE] = chat_template
    for name, text in files.items():
        (Path(directory) / name).write_bytes(text.encode("utf-8"))
    return sorted(files)


class Tokenizer:
    """A model's tokenizer, its special ids and its chat templates. Immutable; safe to share between threads."""

    def __init__(self, tokenizer_json: str, settings: Mapping[str, Any], chat_template: str | None = None) -> None:
        try:
            document = json.loads(tokenizer_json)
            model_kind = document["model"]["type"]
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise TokenizerError(f"{TOKENIZER_FILE}: not a tokenizer ({error!r:.200})") from None
        if model_kind not in ("BPE", "Unigram"):
            raise TokenizerError(f"{TOKENIZER_FILE}: model type {model_kind!r}; only BPE and Unigram are implemented")
        self.settings = TextSettings.from_dict(settings, SETTINGS_FILE)
        self.chat_template = chat_template
        self._special = frozenset(self.settings.special_ids)
        try:
            self._spelling = Spelling(document, self.settings.special_ids)
            self._guard = ControlGuard(document, self.settings.special_ids, secrets.token_hex(16))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise TokenizerError(f"{TOKENIZER_FILE}: malformed ({error!r:.200}); convert the model again") from None
        self._check_ids()
        # The library's own prefix and suffix are replaced by ours, so that all ways in share one rule.
        self._tokenizer = _make_library_tokenizer({**self._guard.take_document(), **_OFF})

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Load the text files of an exactlm model directory. FormatError names a missing or damaged file."""
        folder = Path(directory)
        tokenizer_json = _read_text(folder / TOKENIZER_FILE)
        try:
            settings = json.loads(_read_text(folder / SETTINGS_FILE))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{folder / SETTINGS_FILE}: not JSON ({error}); convert the model again") from None
        template = folder / TEMPLATE_FILE
        return cls(tokenizer_json, settings, _read_text(template) if template.exists() else None)

    @property
    def num_tokens(self) -> int:
        """One more than the highest token id."""
        return self._spelling.num_tokens

    @property
    def bos_id(self) -> int | None:
        """The id of the beginning-of-sequence token, None where the model has none."""
        return self.settings.bos_token_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a generation."""
        return frozenset(self.settings.eos_token_ids)

    @property
    def unsampled_ids(self) -> frozenset[int]:
        """Ids below `num_tokens` that stand for nothing (vocabulary padding, gaps): never sample these."""
        return frozenset(self.settings.unused_ids) | self._spelling.undefined_ids

    @property
    def special_tokens(self) -> dict[str, str | list[str]]:
        """The texts of the control tokens, by the names that chat templates use ("bos_token", "eos_token", ..).

        "additional_special_tokens" lists all control tokens.
        """
        settings = self.settings
        ids = {"bos_token": settings.bos_token_id, "eos_token": settings.eos_token_id,
               "pad_token": settings.pad_token_id, "unk_token": settings.unk_token_id}  # fmt: skip
        named: dict[str, str | list[str]] = {
            name: self._spelling.get_content(value) for name, value in ids.items() if value is not None
        }
        return {**named, "additional_special_tokens": list(self._guard.control_tokens)}

    def is_special(self, token_id: int) -> bool:
        """Tell whether `token_id` is a control token."""
        return token_id in self._special

    def find_id(self, token: str) -> int | None:
        """Return the id of the vocabulary entry spelled `token`, None where there is none."""
        return self._spelling.find_id(token)

    def encode(
        self, text: str, add_special_tokens: bool = True, allow_control: bool = False, strict: bool = False
    ) -> list[int]:
        """Return the token ids of `text`.

        `add_special_tokens`: put the model's prefix (BOS) and suffix around, unless control tokens are allowed and
        the text already brings them. `allow_control`: control tokens in the text become their ids; otherwise they are
        plain text. A byte without any token is dropped, as the reference tokenizers do, unless `strict`, which raises
        TokenizerError naming the byte. Unpaired surrogates raise TokenizerError naming the position.
        """
        ids = self.encode_segments([(text, allow_control)])
        if strict and (lost := self.lost_bytes(text)):
            offset, value = lost[0]
            raise TokenizerError(
                f"byte 0x{value:02X} at offset {offset} of the text has no token in this vocabulary and would vanish "
                f"({len(lost)} such bytes); remove it or encode without strict"
            )
        if not add_special_tokens:
            return ids
        prefix, suffix = self.settings.prefix_ids, self.settings.suffix_ids
        has_prefix = allow_control and ids[: len(prefix)] == prefix
        has_suffix = allow_control and len(suffix) > 0 and ids[-len(suffix) :] == suffix
        return [*([] if has_prefix else prefix), *ids, *([] if has_suffix else suffix)]

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the ids of the segments (text, is_trusted) taken as one text; nothing is put around it.

        Control tokens are recognised inside trusted segments only; everything else is split and merged as if the
        segments had never been apart.
        """
        parts = []
        for text, is_trusted in segments:
            check_text(text)
            self._guard.check(text)
            parts.append(self._guard.translate(text) if is_trusted else text)
        # In a batch of one the package lets go of the interpreter's lock: other requests go on meanwhile.
        ids: list[int] = self._tokenizer.encode_batch_fast(["".join(parts)], add_special_tokens=False)[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """Return the text of `token_ids`; bytes that are not UTF-8 become U+FFFD.

        `skip_special_tokens` leaves control tokens out. `continuation`: the ids follow other text, so the leading
        space that SentencePiece puts before a text is kept. TokenizerError names an id outside the vocabulary.
        """
        kept = [value for value in token_ids if not (self.is_special(value) and skip_special_tokens)]
        joined = b"".join(map(self.token_bytes, kept))
        if self._spelling.strips_space and not continuation:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", errors="replace")

    @property
    def strips_space(self) -> bool:
        """Whether one leading space of a decoded text is dropped (SentencePiece)."""
        return self._spelling.strips_space

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that `token_id` stands for: perhaps only a part of a character.

        TokenizerError names an id outside the vocabulary. Gaps in the vocabulary stand for no bytes.
        """
        return self._spelling.get_bytes(token_id)

    def lost_bytes(self, text: str) -> list[tuple[int, int]]:
        """List (byte offset, byte value) of every UTF-8 byte of `text` that has no token.

        The reference tokenizers drop such bytes silently, or write the unknown token: different texts can then have
        the same ids. Changes made by a normalizer (Unicode forms, squeezed spaces) are not listed.
        """
        check_text(text)
        return self._spelling.list_lost_bytes(text)

    def _check_ids(self) -> None:
        for name, value in self.settings.to_dict().items():
            ids = value if name.endswith("_ids") else [value] if name.endswith("_id") and value is not None else []
            for token_id in ids:
                if token_id >= self.num_tokens:
                    raise TokenizerError(
                        f"{SETTINGS_FILE}: {name} holds {token_id}, but ids end at {self.num_tokens - 1}"
                    )


def _make_library_tokenizer(document: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises plain Exception, and its panics not even that
        raise TokenizerError(f"{TOKENIZER_FILE}: the tokenizers library refuses it: {error}") from None


def check_text(text: object) -> None:
    """Raise TokenizerError unless `text` is a string that UTF-8 can hold; names the position of what it cannot."""
    if not isinstance(text, str):
        raise TokenizerError(f"expected a text, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has an unpaired surrogate U+{ord(text[error.start]):04X} at position {error.start}; "
            "it is not valid Unicode"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}; is this an exactlm model directory?") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 at byte {error.start}; convert the model again") from None
