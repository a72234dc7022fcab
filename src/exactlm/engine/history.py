"""The tokens a sequence's penalties look at, with their counts. spec/sampling.md 3.2 to 3.4."""

from __future__ import annotations

import numpy as np

from exactlm.kernels.api import I32, I64


class History:
    """Distinct ids of prompt and answer, and how often each is in the answer."""

    def __init__(self, prompt_ids: list[int]) -> None:
        distinct = sorted(set(prompt_ids))
        self._slot = {i: at for at, i in enumerate(distinct)}
        self._ids = np.zeros(len(distinct) + 64, np.int64)
        self._ids[: len(distinct)] = distinct
        self._counts = np.zeros(len(self._ids), np.int32)

    def add(self, token_id: int) -> None:
        """Takes in a token of the answer."""
        at = self._slot.setdefault(token_id, len(self._slot))
        if at == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[at] = token_id
        self._counts[at] += 1

    @property
    def ids(self) -> I64:
        return self._ids[: len(self._slot)]

    @property
    def counts(self) -> I32:
        return self._counts[: len(self._slot)]
