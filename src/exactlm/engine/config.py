"""Capacity of an engine. Not one of these may change a bit of any answer; the invariance tests sweep them all."""

from __future__ import annotations

from dataclasses import dataclass

from exactlm.errors import ConfigError

DEFAULT_KV_TOKENS = 65536


@dataclass(frozen=True)
class EngineConfig:
    """threads, isa: None for all processors and the fastest instruction set. max_batch: sequences in a step.
    chunk_tokens: tokens in a step. kv_tokens: tokens the KV cache holds, all sequences together; None for one
    full context, at least 65,536 (memory is taken as it is used)."""

    threads: int | None = None
    isa: str | None = None
    max_batch: int = 64
    chunk_tokens: int = 512
    kv_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("max_batch", 1), ("chunk_tokens", 1), ("kv_tokens", 32)):
            value = getattr(self, name)
            if value is None and name == "kv_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 1 << 30:
                raise ConfigError(f"{name}={value!r}: use a whole number from {low} up")

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most: every running sequence can advance by one."""
        return max(self.chunk_tokens, self.max_batch)
