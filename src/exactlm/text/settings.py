"""What a tokenizer.json does not say: special ids, what is put before and after a text, chat templates.

Stored as `text.json` in canonical JSON, so that converting twice gives the same bytes. Knows nothing of vocabularies.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from exactlm.errors import FormatError


def dump_canonical(value: object) -> str:
    """Return `value` as JSON with sorted keys and no free choice of spacing, ending in a newline."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


@dataclass(frozen=True)
class TextSettings:
    """Settings beside the tokenizer.json; ids are token ids, all lists sorted and without repeats unless stated.

    `eos_token_id`: the one that chat templates write; `eos_token_ids`: every id that ends a generation.
    `prefix_ids`/`suffix_ids`: put before and after a raw text, in order (a BOS usually, or nothing).
    `special_ids`: control tokens: never produced by user text, skipped when decoding.
    `unused_ids`: padding of the vocabulary: must never be sampled.
    `named_templates`: chat templates other than the default one, by name.
    """

    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eos_token_ids: list[int] = field(default_factory=list)
    pad_token_id: int | None = None
    unk_token_id: int | None = None
    prefix_ids: list[int] = field(default_factory=list)
    suffix_ids: list[int] = field(default_factory=list)
    special_ids: list[int] = field(default_factory=list)
    unused_ids: list[int] = field(default_factory=list)
    named_templates: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], name: str) -> "TextSettings":
        """Check and take over `value`; `name` is the file named in a FormatError."""
        if not isinstance(value, Mapping):
            raise FormatError(f"{name}: holds {type(value).__name__}, expected an object; convert the model again")
        known = {item.name for item in fields(cls)}
        if set(value) != known:
            raise FormatError(f"{name}: keys {sorted(set(value) ^ known)} missing or unknown; convert the model again")
        for key, item in value.items():
            if not _has_shape(key, item):
                raise FormatError(f"{name}: {key} = {item!r} has the wrong type; convert the model again")
        return cls(**value)


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _has_shape(key: str, value: object) -> bool:
    if key == "named_templates":
        return isinstance(value, dict) and all(isinstance(item, str) for pair in value.items() for item in pair)
    if key.endswith("_ids"):
        return isinstance(value, list) and all(map(_is_id, value))
    return value is None or _is_id(value)
