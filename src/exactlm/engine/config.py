"""Capacity of an engine. Not one of these may change a bit of any answer; the invariance tests sweep them all."""

from __future__ import annotations

from dataclasses import dataclass

from exactlm.engine.speculation import METHODS
from exactlm.errors import ConfigError

DEFAULT_KV_TOKENS = 65536


@dataclass(frozen=True)
class EngineConfig:
    """threads, isa: None for all processors and the fastest instruction set. max_batch: sequences in a step.
    chunk_tokens: tokens in a step. kv_tokens: tokens the KV cache holds, all sequences together; None for one
    full context, at least 65,536 (memory is taken as it is used). prefix_cache: keep the pages of what was computed
    for prompts that begin the same. speculation: "ngram" drafts tokens from the sequence's own text, "none" does
    not."""

    threads: int | None = None
    isa: str | None = None
    max_batch: int = 64
    chunk_tokens: int = 512
    kv_tokens: int | None = None
    prefix_cache: bool = True
    speculation: str = "none"

    def __post_init__(self) -> None:
        for name, low in (("max_batch", 1), ("chunk_tokens", 1), ("kv_tokens", 32)):
            value = getattr(self, name)
            if value is None and name == "kv_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 1 << 30:
                raise ConfigError(f"{name}={value!r}: use a whole number from {low} up")
        if not isinstance(self.prefix_cache, bool):
            raise ConfigError(f"prefix_cache={self.prefix_cache!r}: use True or False")
        if self.speculation not in METHODS:
            raise ConfigError(f"speculation={self.speculation!r}: use one of {', '.join(METHODS)}")

    @property
    def step_tokens(self) -> int:
        """Tokens of a step at most: every running sequence can advance by one."""
        return max(self.chunk_tokens, self.max_batch)
