"""Rotary scaling as Hugging Face writes it: `rope_scaling` with `type` or `rope_type`, or `rope_parameters`, which also holds the base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from exactlm.errors import ConfigError, UnsupportedError

NUMBERS = {  # kind -> (required keys, optional keys)
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}


@dataclass(frozen=True)
class RopeScaling:
    """kind: linear, dynamic, llama3, yarn, or divisors (GGUF's rope_freqs). spec/numerics.md 6.5 says what the numbers do."""

    kind: str
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    divisors: tuple[float, ...] | None = None

    @classmethod
    def from_dict(cls, value: Any, file: str) -> RopeScaling:
        """From our own config.json."""
        names = {f.name for f in fields(cls)}
        if not isinstance(value, Mapping) or names != set(value):
            raise ConfigError(f"{file}: rope_scaling={value!r:.200}: must be an object of {', '.join(sorted(names))}")
        if value["kind"] == "divisors":
            return from_divisors(value["divisors"], file)
        return _make(str(value["kind"]), {k: v for k, v in value.items() if k != "kind" and v is not None}, file)


def from_divisors(values: Any, file: str) -> RopeScaling:
    """Scaling that divides each frequency by a number of its own."""
    if not isinstance(values, (list, tuple)) or not all(_is_number(v) and v > 0 for v in values):
        raise ConfigError(f"{file}: rope divisors={values!r:.100}: must be positive numbers, one for each pair of the head dimension")
    return RopeScaling(kind="divisors", factor=1.0, divisors=tuple(float(v) for v in values))


def parse_rope(config: Mapping[str, Any], file: str) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) of a Hugging Face configuration; ConfigError if a value is missing, unknown or contradicts another."""
    parameters = config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    for key, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{file}: {key}={value!r}: must be an object or null")
    theta = config.get("rope_theta")
    merged: dict[str, Any] = {}
    for source in (scaling or {}, parameters or {}):
        for key, value in source.items():
            if key in merged and merged[key] != value:
                raise ConfigError(f"{file}: rope_scaling and rope_parameters disagree on {key}: {merged[key]!r} and {value!r}")
            merged[key] = value
    inner = merged.pop("rope_theta", None)
    if theta is not None and inner is not None and theta != inner:
        raise ConfigError(f"{file}: rope_theta is {theta!r} and, inside rope_parameters, {inner!r}")
    theta = inner if theta is None else theta
    if theta is None:
        raise ConfigError(f"{file}: key 'rope_theta' is missing, and no default is invented for it")
    if not _is_number(theta) or theta <= 0:
        raise ConfigError(f"{file}: rope_theta={theta!r}: must be a positive number")
    kinds = {merged.pop(key) for key in ("type", "rope_type") if key in merged}
    if len(kinds) > 1:
        raise ConfigError(f"{file}: rope scaling says both {' and '.join(sorted(map(repr, kinds)))}")
    if not kinds and merged:
        raise ConfigError(f"{file}: rope_scaling={merged!r}: has neither 'type' nor 'rope_type'")
    kind = kinds.pop() if kinds else "default"
    if kind == "default":
        if odd := [k for k, v in merged.items() if k != "partial_rotary_factor" and v is not None]:
            raise ConfigError(f"{file}: rope type 'default' does not take {odd[0]!r}")
        _check_partial(merged, file)
        return float(theta), None
    _check_partial(merged, file)
    return float(theta), _make(kind, {k: v for k, v in merged.items() if v is not None}, file)


def _check_partial(merged: dict[str, Any], file: str) -> None:
    if merged.pop("partial_rotary_factor", 1) not in (1, 1.0, None):
        raise UnsupportedError(f"{file}: partial_rotary_factor other than 1 is not implemented")


def _make(kind: str, values: dict[str, Any], file: str) -> RopeScaling:
    if kind not in NUMBERS:
        raise UnsupportedError(f"{file}: rope scaling {kind!r} is not implemented; these are: {', '.join(NUMBERS)}")
    required, optional = NUMBERS[kind]
    for key in required:
        if key not in values:
            raise ConfigError(f"{file}: rope scaling {kind!r} needs key {key!r}, and no default is invented for it")
    for key, value in values.items():
        if key not in (*required, *optional):
            raise ConfigError(f"{file}: rope scaling {kind!r} does not take key {key!r}")
        if key == "truncate":
            if not isinstance(value, bool):
                raise ConfigError(f"{file}: rope scaling: truncate={value!r}: must be true or false")
        elif not _is_number(value) or value < 0 or (value == 0 and not key.startswith("mscale")):
            raise ConfigError(f"{file}: rope scaling: {key}={value!r}: must be a positive number")
    if kind == "llama3" and values["high_freq_factor"] <= values["low_freq_factor"]:
        raise ConfigError(f"{file}: rope scaling: high_freq_factor={values['high_freq_factor']} must exceed low_freq_factor={values['low_freq_factor']}")
    original = values.pop("original_max_position_embeddings", None)
    if original is not None and int(original) != original:
        raise ConfigError(f"{file}: rope scaling: original_max_position_embeddings={original!r}: must be a whole number")
    numbers = {k: v if k == "truncate" else float(v) for k, v in values.items()}
    return RopeScaling(kind=kind, original_max_position_embeddings=None if original is None else int(original), **numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")
