"""What an engine has done and holds; for metrics. Nothing here enters an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStats:
    """Gauges: requests waiting and running, KV pages in all, used by running requests, and kept for prefixes; tokens
    and sequences of the last step. The others count since the start; num_cached_tokens are prompt tokens taken from
    the prefix cache, among num_prompt_tokens."""

    num_waiting: int = 0
    num_running: int = 0
    num_pages: int = 0
    num_pages_used: int = 0
    num_pages_cached: int = 0
    last_batch_tokens: int = 0
    last_batch_sequences: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
