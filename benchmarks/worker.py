"""One engine with one model in one process, timed on request: JSON lines on standard input and output.

    python worker.py exactlm|llama.cpp MODEL THREADS

Runs under the interpreter of its engine, so it needs nothing but that engine. Both engines decode greedily, choose
every token from their own logits, and start each request with an empty KV cache.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
from typing import Any, Protocol

CONTEXT = 1024
TURN = itertools.count()


def make_prompt(count: int) -> list[int]:
    """Token ids, other ones at each call, so that no prefix is cached; call n is the same in both engines."""
    first = next(TURN)
    return [(i * 37 + first * 11 + 5) % 40000 + 100 for i in range(count)]


def wait() -> None:
    """Says that the engine is imported and no model loaded, and waits to be told to go on."""
    print(json.dumps("imported"), flush=True)
    sys.stdin.readline()


class Engine(Protocol):
    """What is timed. `facts` goes into the report."""

    facts: dict[str, Any]

    def prefill(self, count: int) -> float:
        """Seconds from a prompt of `count` tokens to its first answer token."""

    def decode(self, count: int, prompt: int = 32) -> float:
        """Seconds for the `count` tokens that follow the first answer token, batch 1."""


class ExactLm:
    """This project through its public interface: the time includes scheduling, text and digest of every token."""

    def __init__(self, model: str, threads: int) -> None:
        from exactlm import LLM, SamplingParams, __version__

        wait()
        self._params = SamplingParams
        begin = time.perf_counter()
        self._llm = LLM(model, threads=threads)
        c = self._llm.config
        code_bytes = 2 if c.kv_cache == "int16" else 1
        self.facts = {
            "engine": f"exactlm {__version__} ({self._llm.isa})",
            "load_s": time.perf_counter() - begin,
            "kv_bytes_per_token": 2 * c.num_layers * c.num_kv_heads * (c.head_dim * code_bytes + 4),
        }

    def prefill(self, count: int) -> float:
        begin = time.perf_counter()
        self._llm.generate(make_prompt(count), self._params(max_tokens=1, ignore_eos=True))
        return time.perf_counter() - begin

    def decode(self, count: int, prompt: int = 32) -> float:
        begin, seen = 0.0, 0
        for delta in self._llm.stream(make_prompt(prompt), self._params(max_tokens=count + 1, ignore_eos=True)):
            begin = begin or time.perf_counter()
            seen += len(delta.token_ids)
        seconds = time.perf_counter() - begin
        assert seen == count + 1, seen
        return seconds


class LlamaCpp:
    """llama.cpp through the C functions of llama-cpp-python and its own greedy sampler: only the loop is Python."""

    def __init__(self, model: str, threads: int) -> None:
        import llama_cpp
        from llama_cpp import llama_cpp as c

        wait()
        self._c, self._silent = c, c.llama_log_callback(lambda *_: None)
        begin = time.perf_counter()
        c.llama_backend_init()
        c.llama_log_set(self._silent, ctypes.c_void_p(0))
        self._model = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = CONTEXT, 512, 512, threads, threads
        self._context = c.llama_init_from_model(self._model, p)
        assert self._context, f"llama.cpp cannot open {model}"
        self._memory = c.llama_get_memory(self._context)
        self._sampler = c.llama_sampler_init_greedy()
        self.facts = {
            "engine": f"llama-cpp-python {llama_cpp.__version__}",
            "system": llama_cpp.llama_print_system_info().decode(),
            "load_s": time.perf_counter() - begin,
        }

    def prefill(self, count: int) -> float:
        ids = make_prompt(count)
        begin = time.perf_counter()
        self._c.llama_memory_clear(self._memory, True)
        self._step(ids, 0)
        return time.perf_counter() - begin

    def decode(self, count: int, prompt: int = 32) -> float:
        self._c.llama_memory_clear(self._memory, True)
        token = self._step(make_prompt(prompt), 0)
        begin = time.perf_counter()
        for i in range(count):
            token = self._step([token], prompt + i)
        return time.perf_counter() - begin

    def _step(self, ids: list[int], position: int) -> int:
        c = self._c
        batch = c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
            batch.logits[i] = i == len(ids) - 1
        status = c.llama_decode(self._context, batch)
        c.llama_batch_free(batch)
        assert status == 0, status
        return int(c.llama_sampler_sample(self._sampler, self._context, -1))


def main() -> None:
    kind, model, threads = sys.argv[1:]
    engine: Engine = {"exactlm": ExactLm, "llama.cpp": LlamaCpp}[kind](model, int(threads))
    print(json.dumps(engine.facts), flush=True)
    for line in sys.stdin:
        task, *counts = json.loads(line)
        seconds = {"prefill": engine.prefill, "decode": engine.decode}[task](*counts)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
