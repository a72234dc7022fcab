"""The worker's loop: arguments KIND MODEL DTYPE THREADS STREAMS CACHE, then a JSON line in, a JSON line out.

The first line out holds `facts`. A question that fails is answered with `error`; the process lives on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from .protocol import Engine


def main() -> None:
    """Runs until standard input ends."""
    kind, model, dtype, threads, streams, cache = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between our lines
    try:
        engine = open_engine(kind, model, dtype, int(threads), int(streams), cache == "1")
        reply: dict[str, Any] = {"facts": engine.facts}
    except Exception as error:
        print(json.dumps({"error": describe(error)}), file=out, flush=True)
        return
    while True:
        print(json.dumps(reply), file=out, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        reply = answer(engine, json.loads(line))


def open_engine(kind: str, model: str, dtype: str, threads: int, streams: int, has_cache: bool) -> Engine:
    """The engine of this kind, its model loaded. Imports only what that needs."""
    if kind == "exactlm":
        from .on_exactlm import ExactLm

        return ExactLm(model, threads, streams, has_cache)
    if kind == "llama.cpp":
        from .on_llama_cpp import LlamaCpp

        return LlamaCpp(model, threads, streams)
    from .on_torch import Torch

    return Torch(model, dtype, threads)


def answer(engine: Engine, asked: dict[str, Any]) -> dict[str, Any]:
    """Answers one batch and says how many seconds it took."""
    ask = engine.choose if asked["kind"] == "choice" else engine.complete
    begin = time.perf_counter()
    try:
        replies = ask(asked["questions"])
    except Exception as error:
        return {"error": describe(error)}
    return {"answers": replies, "seconds": time.perf_counter() - begin}


def describe(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"
