"""Rotary scaling of a model, and how Hugging Face writes it.

There: `rope_scaling` with `type` or `rope_type`, or `rope_parameters`, which also holds the base. What the numbers do
is in spec/numerics.md 6.5 and rope.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from exactlm.errors import ConfigError, UnsupportedError

YARN = ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
KEYS = {  # kind -> (required keys, optional keys)
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (("factor",), (*YARN, "truncate")),
}


@dataclass(frozen=True)
class RopeScaling:
    """kind: linear, dynamic, llama3, yarn, or divisors (GGUF's rope_freqs)."""

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
        """From our own config.json; ConfigError names what is wrong."""
        names = {f.name for f in fields(cls)}
        if not isinstance(value, Mapping) or names != set(value):
            wanted = ", ".join(sorted(names))
            raise ConfigError(f"{file}: rope_scaling={value!r:.200}: must be an object of {wanted}")
        given = {k: v for k, v in value.items() if k != "kind" and v is not None}
        if value["kind"] == "divisors":
            if given.keys() != {"factor", "divisors"} or given["factor"] != 1:
                raise ConfigError(f"{file}: rope scaling 'divisors' takes divisors and a factor of 1, nothing else")
            return from_divisors(value["divisors"], file)
        return make_scaling(value["kind"], given, file)


def from_divisors(values: Any, file: str) -> RopeScaling:
    """Scaling that divides each frequency by a number of its own."""
    if not isinstance(values, (list, tuple)) or not all(is_number(v) and v > 0 for v in values):
        wanted = "positive numbers, one for each pair of the head dimension"
        raise ConfigError(f"{file}: rope divisors={values!r:.100}: must be {wanted}")
    return RopeScaling(kind="divisors", factor=1.0, divisors=tuple(float(v) for v in values))


def parse_rope(config: Mapping[str, Any], file: str, default_theta: float) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) of a Hugging Face configuration; ConfigError if a value is bad or contradicts another."""
    values = _merge(config, file)
    inner, outer = values.pop("rope_theta", None), config.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(f"{file}: rope_theta is {outer!r:.50} and, inside rope_parameters, {inner!r:.50}")
    given = inner if outer is None else outer
    theta = default_theta if given is None else given
    if not is_number(theta) or theta <= 0:
        raise ConfigError(f"{file}: rope_theta={theta!r:.100}: must be a positive number")
    if values.pop("partial_rotary_factor", 1) != 1:
        raise UnsupportedError(f"{file}: partial_rotary_factor other than 1 is not implemented")
    kinds = [values.pop(key) for key in ("type", "rope_type") if key in values]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise ConfigError(f"{file}: rope scaling says both type={kinds[0]!r:.50} and rope_type={kinds[1]!r:.50}")
    if not kinds and values:
        raise ConfigError(f"{file}: rope_scaling={values!r:.200}: has neither 'type' nor 'rope_type'")
    kind = kinds[0] if kinds else "default"
    if kind == "default":
        if values:
            raise ConfigError(f"{file}: rope type 'default' does not take {sorted(values)[0]!r:.100}")
        return float(theta), None
    if kind == "dynamic" and values.pop("original_max_position_embeddings", None) not in (
        None,
        config.get("max_position_embeddings"),
    ):
        what = "original_max_position_embeddings that differs from max_position_embeddings"
        raise UnsupportedError(f"{file}: rope scaling 'dynamic' with {what} is not implemented")
    return float(theta), make_scaling(kind, values, file)


def make_scaling(kind: Any, values: Mapping[str, Any], file: str) -> RopeScaling:
    """A scaling of the given numbers; UnsupportedError for another kind, ConfigError for a missing or odd number."""
    if not isinstance(kind, str) or kind not in KEYS:
        raise UnsupportedError(f"{file}: rope scaling {kind!r:.100} is not implemented; these are: {', '.join(KEYS)}")
    required, optional = KEYS[kind]
    for key in required:
        if key not in values:
            raise ConfigError(f"{file}: rope scaling {kind!r} needs key {key!r}, and no default is invented for it")
    numbers: dict[str, Any] = {}
    for key, value in values.items():
        if key not in (*required, *optional):
            raise ConfigError(f"{file}: rope scaling {kind!r} does not take key {key!r:.100}")
        numbers[key] = _check_value(key, value, file)
    if kind == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        raise ConfigError(f"{file}: rope scaling: high_freq_factor={high} must exceed low_freq_factor={low}")
    return RopeScaling(kind=kind, **numbers)


def _merge(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """What rope_scaling and rope_parameters say together, nulls left out."""
    merged: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = config.get(name)
        if part is not None and not isinstance(part, Mapping):
            raise ConfigError(f"{file}: {name}={part!r:.100}: must be an object or null")
        for key, value in (part or {}).items():
            if value is not None and merged.setdefault(key, value) != value:
                both = f"{merged[key]!r:.50} and {value!r:.50}"
                raise ConfigError(f"{file}: rope_scaling and rope_parameters disagree on {key!r:.50}: {both}")
    return merged


def _check_value(key: str, value: Any, file: str) -> float | int | bool:
    where = f"{file}: rope scaling: {key}={value!r:.100}"
    if key == "truncate":
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: must be true or false")
        return value
    if not is_number(value) or value < 0 or (value == 0 and not key.startswith("mscale")):
        raise ConfigError(f"{where}: must be a positive number")
    if key != "original_max_position_embeddings":
        return float(value)
    if value != int(value) or value >= 1 << 31:
        raise ConfigError(f"{where}: must be a whole number below 2^31")
    return int(value)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not a truth value, that fp64 can hold."""
    return type(value) in (int, float) and abs(value) <= 1.7976931348623157e308
