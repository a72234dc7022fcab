"""One engine with one model in one process, timed on request: JSON lines on standard input and output.

    python worker.py exactlm|llama.cpp MODEL THREADS [STREAMS]

STREAMS: how many sequences at most are decoded together; 1 if not given.
Runs under the interpreter of its engine, so it needs nothing but that engine. Both engines decode greedily, choose
every token from their own logits, and start each request with an empty KV cache.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import time
from typing import Any, Protocol

CONTEXT = 1024
STREAM_LENGTHS = 16, 200  # tokens: the shortest and the longest prompt of several streams
STREAM_CONTEXT = 384  # tokens that a stream has room for
TURN = itertools.count()
# "cpu": seconds of processor time, which other programs disturb least; only meaningful with one thread.
read_clock = time.process_time if os.environ.get("BENCHMARK_CLOCK") == "cpu" else time.perf_counter


def make_prompt(count: int) -> list[int]:
    """Token ids, other ones at each call, so that no prefix is cached; call n is the same in both engines."""
    first = next(TURN)
    return [(i * 37 + first * 11 + 5) % 40000 + 100 for i in range(count)]


def make_prompts(num_streams: int) -> list[list[int]]:
    """Prompts of evenly spread lengths, the long ones not all at one end."""
    low, high = STREAM_LENGTHS
    lengths = [low + (high - low) * i // max(num_streams - 1, 1) for i in range(num_streams)]
    return [make_prompt(length) for length in lengths[::2] + lengths[1::2]]


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

    def decode_streams(self, num_streams: int, count: int) -> float:
        """Seconds for the next `count` tokens of each stream, from when all have their first."""

    def answer_streams(self, num_streams: int, count: int) -> float:
        """Seconds from the prompts of all streams to the last of `count` tokens of each."""


class ExactLm:
    """This project through its public interface: the time includes scheduling, text and digest of every token."""

    def __init__(self, model: str, threads: int, num_streams: int) -> None:
        from exactlm import LLM, SamplingParams, __version__

        wait()
        self._params = SamplingParams
        begin = read_clock()
        self._llm = LLM(model, threads=threads, max_batch=max(64, num_streams))
        c = self._llm.config
        code_bytes = 2 if c.kv_cache == "int16" else 1
        self.facts = {
            "engine": f"exactlm {__version__} ({self._llm.isa})",
            "load_s": read_clock() - begin,
            "kv_bytes_per_token": 2 * c.num_layers * c.num_kv_heads * (c.head_dim * code_bytes + 4),
        }

    def prefill(self, count: int) -> float:
        begin = read_clock()
        self._llm.generate(make_prompt(count), self._params(max_tokens=1, ignore_eos=True))
        return read_clock() - begin

    def decode(self, count: int, prompt: int = 32) -> float:
        begin, seen = 0.0, 0
        for delta in self._llm.stream(make_prompt(prompt), self._params(max_tokens=count + 1, ignore_eos=True)):
            begin = begin or read_clock()
            seen += len(delta.token_ids)
        seconds = read_clock() - begin
        assert seen == count + 1, seen
        return seconds

    def decode_streams(self, num_streams: int, count: int) -> float:
        params = self._params(max_tokens=STREAM_CONTEXT - STREAM_LENGTHS[1], ignore_eos=True)
        tickets = [self._llm.submit(prompt, params) for prompt in make_prompts(num_streams)]
        started: set[int] = set()
        while len(started) < num_streams:
            self._llm.step()
            started |= {i for i, ticket in enumerate(tickets) if ticket.poll()}
        begin, seen = read_clock(), 0
        for _ in range(count):
            self._llm.step()
            seen += sum(len(delta.token_ids) for ticket in tickets for delta in ticket.poll())
        seconds = read_clock() - begin
        for ticket in tickets:
            ticket.cancel()
        assert seen == num_streams * count, seen
        return seconds

    def answer_streams(self, num_streams: int, count: int) -> float:
        begin = read_clock()
        self._llm.generate(make_prompts(num_streams), self._params(max_tokens=count, ignore_eos=True))
        return read_clock() - begin


class LlamaCpp:
    """llama.cpp through the C functions of llama-cpp-python: only the loop is Python. Batch 1 chooses with its own
    greedy sampler, several streams with NumPy's argmax, which is faster."""

    def __init__(self, model: str, threads: int, num_streams: int) -> None:
        import llama_cpp
        import numpy as np
        from llama_cpp import llama_cpp as c

        wait()
        self._c, self._np, self._silent = c, np, c.llama_log_callback(lambda *_: None)
        begin = read_clock()
        c.llama_backend_init()
        c.llama_log_set(self._silent, ctypes.c_void_p(0))
        self._model = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = CONTEXT, 512, 512, threads, threads
        if num_streams > 1:
            # The fastest of the four on this task: flash attention off, and a cache of its own for each stream.
            p.n_seq_max, p.n_ctx, p.n_batch = num_streams, num_streams * STREAM_CONTEXT, 2048
            p.flash_attn_type = int(os.environ.get("PEER_FLASH_ATTENTION", c.LLAMA_FLASH_ATTN_TYPE_DISABLED))
            p.kv_unified = os.environ.get("PEER_KV_UNIFIED") == "1"
        self._context = c.llama_init_from_model(self._model, p)
        assert self._context, f"llama.cpp cannot open {model}"
        self._memory = c.llama_get_memory(self._context)
        self._num_tokens = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self._sampler = c.llama_sampler_init_greedy()
        self.facts = {
            "engine": f"llama-cpp-python {llama_cpp.__version__}",
            "system": llama_cpp.llama_print_system_info().decode(),
            "load_s": read_clock() - begin,
        }

    def prefill(self, count: int) -> float:
        ids = make_prompt(count)
        begin = read_clock()
        self._c.llama_memory_clear(self._memory, True)
        self._step(ids, 0)
        return read_clock() - begin

    def decode(self, count: int, prompt: int = 32) -> float:
        self._c.llama_memory_clear(self._memory, True)
        token = self._step(make_prompt(prompt), 0)
        begin = read_clock()
        for i in range(count):
            token = self._step([token], prompt + i)
        return read_clock() - begin

    def decode_streams(self, num_streams: int, count: int) -> float:
        return self._answer(num_streams, count)[1]

    def answer_streams(self, num_streams: int, count: int) -> float:
        return sum(self._answer(num_streams, count - 1))

    def _answer(self, num_streams: int, count: int) -> tuple[float, float]:
        """Seconds to the first token of every stream, and for the `count` tokens of each after it."""
        prompts = make_prompts(num_streams)
        begin = read_clock()
        self._c.llama_memory_clear(self._memory, True)
        batch = self._c.llama_batch_init(2048, 0, 1)
        rows = [(s, i, token) for s, ids in enumerate(prompts) for i, token in enumerate(ids)]
        chosen = [0] * num_streams
        for at in range(0, len(rows), 2048):
            for stream, token in self._decode_rows(batch, rows[at : at + 2048], [len(ids) - 1 for ids in prompts]):
                chosen[stream] = token
        first = read_clock()
        for step in range(count):
            places = [len(ids) + step for ids in prompts]
            step_rows = list(zip(range(num_streams), places, chosen, strict=True))
            chosen = [token for _, token in self._decode_rows(batch, step_rows, places)]
        end = read_clock()
        self._c.llama_batch_free(batch)
        return first - begin, end - first

    def _decode_rows(self, batch: Any, rows: list[tuple[int, int, int]], last: list[int]) -> list[tuple[int, int]]:
        """Runs (stream, position, token) rows; (stream, next token) for those at the `last` position of theirs."""
        batch.n_tokens = len(rows)
        for i, (stream, position, token) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, stream
            batch.logits[i] = position == last[stream]
        status = self._c.llama_decode(self._context, batch)
        assert status == 0, status
        return [(stream, self._best(i)) for i, (stream, at, _) in enumerate(rows) if at == last[stream]]

    def _best(self, row: int) -> int:
        logits = self._c.llama_get_logits_ith(self._context, row)
        return int(self._np.ctypeslib.as_array(logits, (self._num_tokens,)).argmax())

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
    kind, model, threads, *rest = sys.argv[1:]
    num_streams = int(rest[0]) if rest else 1
    engine: Engine = {"exactlm": ExactLm, "llama.cpp": LlamaCpp}[kind](model, int(threads), num_streams)
    print(json.dumps(engine.facts), flush=True)
    for line in sys.stdin:
        task, *counts = json.loads(line)
        print(json.dumps(getattr(engine, task)(*counts)), flush=True)


if __name__ == "__main__":
    main()
