"""One of our own model directories under audit: the same requests, and all that the engine can be told besides."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from exactlm.answer import Ticket
from exactlm.audit.condition import (
    Condition,
    Shot,
    Wave,
    Workload,
    cold_condition,
    common_conditions,
    request_conditions,
    seed_conditions,
    shuffled,
    together,
)  # fmt: skip
from exactlm.audit.target import Answer, Unvaried, gather_unvaried
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ExactlmError
from exactlm.kernels.select import REFERENCE, available_isas
from exactlm.llm import LLM
from exactlm.prompt import Prompt, ReadPrompt

BATCH = 16
NOT_VARIED = (
    ("isa", "other machines: copy the model there and compare the digests; the NumPy reference is left to the tests"),
    ("padding", "there is none: a batch is rows beside each other"),
    ("dtype", "part of the model: a directory has one precision"),
)


class ModelTarget:
    """path: a model directory. is_chat: prompts are a user's messages. Raises what LLM raises."""

    keeps_logits = False  # digests stand for the logits

    def __init__(
        self, path: str, threads: int | None = None, isa: str | None = None, verify: bool = False, is_chat: bool = False
    ) -> None:
        self._path, self._is_chat = path, is_chat
        self._usual: dict[str, Any] = {"threads": threads, "isa": isa}
        self._setup: dict[str, Any] = {}
        self._num_cached = 0
        self._llm = LLM(path, verify=verify, **self._usual)
        self.fingerprint, self.isa, self.threads = self._llm.fingerprint, self._llm.isa, self._llm.threads

    def describe(self) -> dict[str, str]:
        base = f"{self.threads} threads, {self.isa}"
        return {"kind": "exactlm", "engine": "exactlm", "model": self.fingerprint, "base": base}

    def conditions(self, load: Workload) -> list[Condition]:
        return [
            *common_conditions(load, can_empty=True),
            cold_condition(load, "the prefix cache switched off"),
            *request_conditions(load),
            *self._own_conditions(load),
            *seed_conditions(load),
        ]

    def unvaried(self) -> list[Unvaried]:
        return gather_unvaried(NOT_VARIED)

    def prepare(self, condition: Condition) -> None:
        setup = {k: v for k, v in condition.setup.items() if k not in ("plain", "empty")}
        if setup.get("kv_tokens") == "small":
            setup["kv_tokens"] = self._small_cache(condition)
        if setup != self._setup or condition.setup.get("empty"):
            self._llm = LLM(self._path, **{**self._usual, **setup})
            self._setup = setup
        self._is_plain, self._num_cached = bool(condition.setup.get("plain")), 0
        self._is_cache_told = condition.factor == "cache"
        self._before = self._llm.stats()

    def fire(self, wave: Wave) -> list[Answer]:
        answers = [self._answer_plainly(shot) for shot in wave] if self._is_plain else self._answer(wave)
        self._num_cached += sum(a.num_cached or 0 for s, a in zip(wave, answers, strict=True) if s.prompt is not None)
        return answers

    def is_alive(self) -> bool:
        return True

    def note(self) -> dict[str, int]:
        now, before = self._llm.stats(), self._before
        counts = {
            "preemptions": now.num_preemptions - before.num_preemptions,
            "cached prompt tokens": self._num_cached,
            "accepted drafts": now.num_accepted_tokens - before.num_accepted_tokens,
        }
        return {n: count for n, count in counts.items() if count or (self._is_cache_told and n.startswith("cached"))}

    def close(self) -> None:
        del self._llm

    def _answer(self, wave: Wave) -> list[Answer]:
        """Answers of requests that share the engine's steps."""
        begin = time.monotonic()
        tickets: list[Ticket | Answer] = [Answer() for _ in wave]
        waiting = sorted(range(len(wave)), key=lambda i: wave[i].delay)
        while waiting or any(isinstance(t, Ticket) and not t.is_done for t in tickets):
            while waiting and time.monotonic() - begin >= wave[waiting[0]].delay:
                i = waiting.pop(0)
                tickets[i] = self._submit(wave[i])
            if not self._llm.step() and waiting:
                time.sleep(0.001)
            tickets = [self._poll(t, wave[i].is_streamed) for i, t in enumerate(tickets)]
        return [_read(t, time.monotonic() - begin) if isinstance(t, Ticket) else t for t in tickets]

    def _own_conditions(self, load: Workload) -> list[Condition]:
        shots = shuffled(load.each(), "own")
        batch = together(shots, BATCH)
        once = tuple((shot,) for shot in load.each(1))
        small = max(1, self.threads // 2) if self.threads > 1 else 2
        many = 7 if 7 not in (small, self.threads) else 5
        compiled = [isa for isa in available_isas() if isa not in (REFERENCE, self.isa)]
        machines: list[tuple[str, str, str, dict[str, object]]] = [
            (isa, "isa", f"{BATCH} at once with the kernels for {isa}", {"isa": isa}) for isa in compiled
        ]
        told: list[tuple[str, str, str, dict[str, object]]] = [
            (f"{small} threads", "threads", f"{BATCH} at once with another number of threads", {"threads": small}),
            (f"{many} threads", "threads", f"{BATCH} at once with a third number of threads", {"threads": many}),
            *machines,
            ("chunks of 1", "chunk", "prompts read one token a step", {"chunk_tokens": 1, "max_batch": 1}),
            ("chunks of 7", "chunk", f"{BATCH} at once, 7 tokens a step", {"chunk_tokens": 7, "max_batch": 7}),
            ("no prefix cache", "cache", f"{BATCH} at once, nothing shared", {"prefix_cache": False}),
            ("full memory", "memory", f"{BATCH} at once in a KV cache too small for them", {"kv_tokens": "small"}),
            ("n-gram drafts", "speculation", f"{BATCH} at once with speculation", {"speculation": "ngram"}),
        ]
        made = [Condition(name, factor, text, batch, setup=setup) for name, factor, text, setup in told]
        plain = Condition("plain loop", "chunk", "no scheduler, no cache, NumPy sampler", once, setup={"plain": True})
        return [*made, plain]

    def _small_cache(self, condition: Condition) -> int:
        """Room for about two of the longest requests: more of them must be preempted."""
        ids = [len(_ids_of(self._llm, self._prompt(shot))) + shot.max_tokens for w in condition.waves for shot in w]
        page = 32
        return max(2 * max(ids), 4 * page) // page * page + page

    def _prompt(self, shot: Shot) -> Prompt:
        return self._llm.read_chat([{"role": "user", "content": shot.text}]) if self._is_chat else shot.text

    def _submit(self, shot: Shot) -> Ticket | Answer:
        try:
            return self._llm.submit(self._prompt(shot), _params(shot))
        except ExactlmError as error:
            return Answer(error=f"{type(error).__name__}: {error}")

    def _poll(self, ticket: Ticket | Answer, is_streamed: bool) -> Ticket | Answer:
        """Streams are read as they come; other answers once they are whole."""
        if isinstance(ticket, Answer) or ticket.is_done:
            return ticket
        try:
            if is_streamed or all(a.sequence.is_finished for a in ticket.answers):
                ticket.poll()
        except ExactlmError as error:
            return Answer(error=f"{type(error).__name__}: {error}")
        return ticket

    def _answer_plainly(self, shot: Shot) -> Answer:
        begin = time.monotonic()
        try:
            output = self._llm.generate_plain(self._prompt(shot), _params(shot)).outputs[0]
        except ExactlmError as error:
            return Answer(error=f"{type(error).__name__}: {error}")
        return _make(output, time.monotonic() - begin)


def _params(shot: Shot) -> SamplingParams:
    return SamplingParams(
        max_tokens=shot.max_tokens, temperature=shot.temperature, seed=shot.seed, logprobs=shot.logprobs
    )


def _ids_of(llm: LLM, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        return llm.tokenizer.encode(prompt)
    return prompt.token_ids if isinstance(prompt, ReadPrompt) else list(prompt)


def _read(ticket: Ticket, seconds: float) -> Answer:
    output = ticket.output()
    return replace(_make(output.outputs[0], seconds), num_cached=output.num_cached_tokens)


def _make(output: Any, seconds: float) -> Answer:
    ids = output.token_ids
    values = [step[i] for step, i in zip(output.logprobs, ids, strict=True)] if output.logprobs is not None else None
    return Answer(output.text, list(ids), values, output.digest, output.finish_reason, seconds=round(seconds, 4))
