"""Runs prompts through the engine under one setting and digests everything that must not change: logits, KV bytes,
tokens.

Works on the engine and the decoder below the tokenizer, so it also runs where only NumPy is installed.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exactlm.engine.config import EngineConfig
from exactlm.engine.engine import Engine
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Sequence as Request
from exactlm.format.reader import open_model
from exactlm.kernels.api import Kernels
from exactlm.kernels.select import select_kernels
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import Decoder, read_cache
from exactlm.models.weights import load_weights

Prompt = Sequence[int]
NEW_TOKENS = 3


@dataclass(frozen=True)
class Setting:
    """Everything here is capacity: no field may change a digest. `neighbours` others share each step."""

    isa: str | None = None
    threads: int = 1
    chunk_tokens: int = 512
    neighbours: int = 0
    order: int = 0


class RecordingDecoder(Decoder):
    """A decoder that keeps a copy of the logits it hands out."""

    recorded: list[NDArray[np.float32]]

    def logits(self, codes: NDArray[np.int16], scales: NDArray[np.float32]) -> NDArray[np.float32]:
        result = super().logits(codes, scales)
        self.recorded.extend(result.copy())
        return result


def make_engine(path: Path, setting: Setting, wrap: Callable[[Kernels], Kernels] = lambda k: k) -> Engine:
    """An engine for one setting; `wrap` may replace its kernels, as the negative controls do."""
    directory = open_model(path)
    config = ModelConfig.from_dict(directory.config)
    kernels = wrap(select_kernels(setting.isa, setting.threads))
    limits = EngineConfig(max_batch=setting.neighbours + 1, chunk_tokens=setting.chunk_tokens)
    decoder = RecordingDecoder(config, load_weights(directory.tensors, config, kernels), kernels, limits.step_tokens)
    decoder.recorded = []
    return Engine(decoder, frozenset(), frozenset(), limits)


def run(engine: Engine, prompts: Sequence[Prompt], setting: Setting) -> list[str]:
    """One digest for each prompt: logits of NEW_TOKENS steps, KV bytes of every layer, token ids.

    With neighbours, strangers made from the prompts themselves fill the steps up, and all are admitted in shuffled
    order.
    """
    decoder = engine.decoder
    assert isinstance(decoder, RecordingDecoder)
    strangers = [list(reversed(p))[: 1 + 13 * i % len(p)] for i, p in enumerate(prompts)] if setting.neighbours else []
    while setting.neighbours and len(strangers) < setting.neighbours:
        strangers += strangers
    jobs: list[tuple[int, Prompt]] = [*enumerate(prompts), *((-1, s) for s in strangers)]
    random.Random(setting.order).shuffle(jobs)
    queue, active = deque(jobs), {}
    digests: dict[int, str] = {}
    hashes: dict[Request, hashlib._Hash] = {}
    params = SamplingParams(max_tokens=NEW_TOKENS + 1, ignore_eos=True)
    while queue or active:
        while queue and len(active) < engine.config.max_batch:
            index, prompt = queue.popleft()
            request = engine.add(list(prompt), params)
            active[request], hashes[request] = index, hashlib.sha256()
        decoder.recorded.clear()
        before = {request: len(request.output_ids) for request in active}
        ready = [request for request in engine.step() if len(request.output_ids) > before[request]]
        for request, logits in zip(ready, decoder.recorded, strict=True):
            assert np.isfinite(logits).all()
            hashes[request].update(logits.tobytes())
            if len(request.output_ids) == NEW_TOKENS:
                digests[active.pop(request)] = _finish(engine, request, hashes.pop(request))
    engine.pages.check_integrity()
    return [digests[i] for i in range(len(prompts))]


def _finish(engine: Engine, request: Request, digest: hashlib._Hash) -> str:
    for layer in range(engine.decoder.config.num_layers):
        for array in read_cache(engine.decoder, engine.cache, request.pages, request.num_cached, layer):
            digest.update(array.tobytes())
    digest.update(np.array(request.output_ids, np.int64).tobytes())
    engine.cancel(request)
    return digest.hexdigest()


def check_alive(engine: Engine, prompts: Sequence[Prompt], digests: Sequence[str]) -> None:
    """A dead engine is invariant too: demands different answers to different prompts, and logits of plausible
    entropy."""
    assert len(set(digests)) == len({tuple(p) for p in prompts})
    logits = np.concatenate([block.copy() for block in engine.prompt_logits(list(prompts[-1]))]).astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities + 1e-300)).sum(axis=1).mean()
    assert 0.5 < entropy < np.log(logits.shape[1]) * 1.001
    assert logits.std(axis=0).max() > 0


def covering_array(factors: Sequence[Sequence[object]], key: int = 0) -> list[tuple[object, ...]]:
    """Rows in which every pair of values of every two factors occurs, chosen greedily from random candidates."""
    rng = random.Random(key)
    size = len(factors)
    missing = {(i, a, j, b) for i in range(size) for j in range(i + 1, size) for a in factors[i] for b in factors[j]}

    def pairs(row: tuple[object, ...]) -> set[tuple[int, object, int, object]]:
        return {(i, row[i], j, row[j]) for i in range(size) for j in range(i + 1, size)}

    rows = []
    while missing:
        i, a, j, b = min(missing, key=repr)
        candidates = []
        for _ in range(50):
            row = [rng.choice(list(f)) for f in factors]
            row[i], row[j] = a, b
            candidates.append(tuple(row))
        best = max(candidates, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append(best)
    return rows
