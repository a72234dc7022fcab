"""What a server's prefix cache lets one see, and leave out, from outside. Knows the requests' fields, no network.

Servers accept fields that they do not know, so a field counts only if the server's own counts show that it is heeded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exactlm.audit.condition import LONG_TEXT, Shot
from exactlm.audit.target import Answer

SALT, SWITCH = "cache_salt", "cache_prompt"  # vLLM's and SGLang's; llama.cpp's own server's
PROBE = Shot(LONG_TEXT * 3, None, 1, logprobs=None)  # some pages of a cache: vLLM's have 16 tokens, exactlm's 32
UNTOLD = "cannot be emptied from outside, and the server does not tell what of a prompt came from it"
UNSEEN = "a prompt asked twice had nothing of it from a cache: there seems to be none"
KEPT = (
    "cannot be emptied from outside, and no field of a request leaves it out: what earlier conditions left in it stays "
    "(see `cached prompt tokens`); how much it holds is chosen when the server starts"
)
HALF = f"`{SWITCH}` leaves it out, but cannot empty it: `after its first half` may find more of the prompt there"


@dataclass(frozen=True)
class CacheControl:
    """is_told: the server tells how many prompt tokens came from its cache. field: that of a request which leaves the
    cache out, None if there is none. reason: why the cache cannot be varied wholly; None if it can."""

    is_told: bool
    field: str | None
    reason: str | None

    @property
    def can_empty(self) -> bool:
        """Whether a condition can begin with nothing cached."""
        return self.field == SALT

    def fields(self, setup: Mapping[str, object], salt: str) -> dict[str, Any]:
        """What a request needs more under a condition's setup. salt: the condition's own."""
        is_off = setup.get("prefix_cache") is False
        if self.field == SWITCH and is_off:
            return {SWITCH: False}
        if self.field == SALT and (is_off or setup.get("empty")):
            return {SALT: new_salt() if is_off else salt}
        return {}


def new_salt() -> str:
    """One that no request had: those of unlike salts share nothing."""
    return uuid.uuid4().hex


def probe_cache(ask: Callable[[Mapping[str, Any]], Answer]) -> CacheControl:
    """Finds out. ask: sends PROBE with more fields."""
    ask({})
    again = ask({})
    if again.error is not None:
        return CacheControl(False, None, f"what it does could not be asked: {again.error}")
    if again.num_cached is None:
        return CacheControl(False, None, UNTOLD)
    if again.num_cached == 0:
        return CacheControl(True, None, UNSEEN)
    for field, reason in ((SALT, None), (SWITCH, HALF)):
        left_out = ask({field: new_salt() if field == SALT else False})
        # Asked once more without it: were it gone from the cache by chance, the field had shown nothing.
        if left_out.error is None and not left_out.num_cached and ask({}).num_cached:
            return CacheControl(True, field, reason)
    return CacheControl(True, None, KEPT)
