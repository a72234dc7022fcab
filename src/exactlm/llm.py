"""The facade: a model directory becomes an LLM with generate, chat, stream, logits and score."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.answer import Answer, CompletionOutput, RequestOutput, StreamDelta, Ticket
from exactlm.engine.config import EngineConfig
from exactlm.engine.engine import Engine
from exactlm.engine.plain import generate_plain
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Sequence as Request
from exactlm.engine.stats import EngineStats
from exactlm.errors import ConfigError, FormatError, RequestError, TemplateError
from exactlm.format.memory_lock import lock_tensors
from exactlm.format.reader import ModelDirectory, open_model
from exactlm.kernels.select import select_kernels
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import Decoder
from exactlm.models.weights import load_weights
from exactlm.text.chat import render_chat
from exactlm.text.guide import Guide, GuideFactory
from exactlm.text.tokenizer import Tokenizer

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "StreamDelta", "Ticket"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model made by `exactlm convert`, ready to answer.

    path: the model directory. The other arguments are capacity: none of them can change a bit of any answer. threads:
    None for EXACTLM_THREADS or all processors. isa: None for EXACTLM_ISA or the fastest ("reference" is the NumPy
    definition). max_batch: sequences in a step. chunk_tokens: tokens in a step. kv_tokens: tokens that the KV cache
    holds. verify: first check that every weight has the digest of the manifest, which the fingerprint stands for.
    prefix_cache: prompts that begin alike share what was computed. speculation: "ngram" lets a step decide several
    tokens where the text repeats itself. mlock: keep the weights in memory; CapacityError where a limit forbids it.
    warmup: blank inferences before the first request. Raises FormatError, ConfigError, IsaError, CapacityError.
    """

    def __init__(
        self,
        path: str | Path,
        threads: int | None = None,
        isa: str | None = None,
        max_batch: int = 64,
        chunk_tokens: int = 512,
        kv_tokens: int | None = None,
        verify: bool = False,
        prefix_cache: bool = True,
        speculation: str = "none",
        mlock: bool = False,
        warmup: int = 0,
    ) -> None:
        limits = EngineConfig(threads, isa, max_batch, chunk_tokens, kv_tokens, prefix_cache, speculation)
        if not isinstance(warmup, int) or isinstance(warmup, bool) or not 0 <= warmup <= 1000:
            raise ConfigError(f"warmup={warmup!r}: use a number of runs from 0 to 1000")
        kernels = select_kernels(isa, threads)
        directory = open_model(path)
        if verify:
            _check_digests(directory)
        self.config = ModelConfig.from_dict(directory.config)
        self.tokenizer = Tokenizer.load(directory.path)
        if self.tokenizer.num_tokens != self.config.num_tokens:
            raise FormatError(
                f"{directory.path}: config.json says {self.config.num_tokens} tokens, "
                f"tokenizer.json has {self.tokenizer.num_tokens}"
            )
        directory.check_unchanged()
        self.fingerprint = directory.fingerprint
        self.isa, self.threads = kernels.isa, kernels.num_threads
        if mlock:
            lock_tensors(directory.tensors)
        weights = load_weights(directory.tensors, self.config, kernels)
        decoder = Decoder(self.config, weights, kernels, limits.step_tokens)
        self._excluded = self.tokenizer.unsampled_ids & frozenset(range(self.config.num_tokens))
        self._engine = Engine(decoder, self.tokenizer.eos_ids, self._excluded, limits)
        self._guides: GuideFactory | None = None
        self._lock = threading.Lock()
        self._submitted: deque[Request] = deque()
        self._dropped: deque[Request] = deque()
        self._warm_up(warmup)
        _give_back_freed_memory()

    @property
    def context_tokens(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._engine.context_tokens

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answers of prompts (texts or lists of token ids), in their order, run together in shared steps.

        params: one for all or one for each; None for the defaults. Raises RequestError, CapacityError, NumericError;
        then nothing is left running.
        """
        many = [self._read_prompt(p) for p in _as_list(prompts)]
        each = _as_params(params, len(many))
        made = [self._prepare(text, ids, p) for (text, ids), p in zip(many, each, strict=True)]
        try:
            for ticket in made:
                self._submit(ticket)
            while not all(t.is_done for t in made):
                with self._turn():
                    if not all(a.sequence.is_finished for t in made for a in t.answers):
                        self._engine.step()
                for ticket in made:
                    ticket.poll()
        finally:
            for ticket in made:
                ticket.cancel()
        return [t.output() for t in made]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """The answer of one prompt in pieces; the pieces' texts joined are the text that generate gives. With n > 1
        the pieces of the answers come mixed, each with its index. Closing the iterator cancels."""
        (given,) = _as_params(params, 1)
        ticket = self._prepare(*self._read_prompt(prompt), given)
        try:
            self._submit(ticket)
            while not ticket.is_done:
                with self._turn():
                    if not all(a.sequence.is_finished for a in ticket.answers):
                        self._engine.step()
                yield from ticket.poll()
        finally:
            ticket.cancel()

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Ticket:
        """Queues a request for whoever calls step(), and returns at once. Raises RequestError, CapacityError."""
        (given,) = _as_params(params, 1)
        ticket = self._prepare(*self._read_prompt(prompt), given)
        self._submit(ticket)
        return ticket

    def step(self) -> bool:
        """One step of the engine for everybody's requests; False if there was nothing to do."""
        with self._turn():
            return bool(self._engine.step())

    def stats(self) -> EngineStats:
        """What the engine has done and holds."""
        stats = replace(self._engine.stats())
        stats.num_waiting += len(self._submitted)
        return stats

    def check_integrity(self) -> None:
        """CapacityError if, with nothing running, a page of the KV cache is lost or free twice."""
        with self._turn():
            self._engine.check_integrity()

    def generate_plain(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """What generate gives, made alone by the plainest loop: token by token, without scheduler, prefix cache or
        drafts, and with the NumPy sampler. Slow; for checking the engine against."""
        (given,) = _as_params(params, 1)
        ticket = self._prepare(*self._read_prompt(prompt), given)
        if given.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs: not available here; use score()")
        with self._turn():
            for answer in ticket.answers:
                s = answer.sequence
                made, reason = generate_plain(
                    self._engine.decoder,
                    s.prompt_ids,
                    s.params,
                    s.max_tokens,
                    self.tokenizer.eos_ids,
                    self._excluded,
                    s.choice,
                    s.guide,
                    answer.take,
                )
                s.output_ids, s.logprobs, s.digest = made.output_ids, made.logprobs, made.digest
                s.finish_reason = reason
                answer.advance()
        return ticket.output()

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers of one conversation or several: messages of {"role": .., "content": ..}, rendered by the model's
        chat template."""
        many = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return self.generate([self.chat_ids(m) for m in many], params)  # type: ignore[arg-type]

    def chat_ids(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; control tokens come from the template only, never from the messages' content.

        tools, template_kwargs: what the template is told besides. RequestError for a bad message, TemplateError.
        """
        if self.tokenizer.chat_template is None:
            raise TemplateError("this model has no chat template; use generate() with a prompt of your own")
        rendered = render_chat(
            self.tokenizer.chat_template,
            messages,
            special_tokens=self.tokenizer.special_tokens,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            template_kwargs=template_kwargs,
        )
        return self.tokenizer.encode_segments(rendered.segments)

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [T, V], the exact bits, of every position of a sequence of T token ids."""
        ids = _as_ids(token_ids)
        with self._turn():
            return np.concatenate([block.copy() for block in self._engine.prompt_logits(ids)])

    def score(self, token_ids: Sequence[int]) -> list[float | None]:
        """Log-probability (natural) of every token given those before it; None for the first. spec/numerics.md 10.4."""
        ids = _as_ids(token_ids)
        scores: list[float | None] = [None]
        with self._turn():
            for block in self._engine.prompt_logits(ids):
                for row in self._engine.decoder.log_probabilities(0, len(block))[: len(ids) - len(scores)]:
                    scores.append(float(row[ids[len(scores)]]))
        return scores

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text if it was one, token ids). Outside the lock: an iterator of ids may itself use this model."""
        if not isinstance(prompt, str):
            return None, _as_ids(prompt)
        ids = self.tokenizer.encode(prompt)
        if not ids:
            raise RequestError(f"the prompt {prompt!r:.60} has no tokens in this model's vocabulary; give at least one")
        return prompt, ids

    def _prepare(self, text: str | None, ids: list[int], params: SamplingParams) -> Ticket:
        """A request that is not yet submitted. RequestError, CapacityError."""
        self._engine.check(ids, params)
        params = params.seeded()
        answers: list[Answer] = []
        guide = self._make_guide(params) if params.is_guided else None
        for choice in range(params.n):
            leader = answers[0].sequence if answers else None
            fork = guide.fork() if guide is not None else None
            answers.append(Answer(self.tokenizer, self._engine.make(ids, params, choice, leader, fork)))
        return Ticket(text, answers, self._turn, self._drop)

    def _make_guide(self, params: SamplingParams) -> Guide:
        if self._guides is None:
            self._guides = GuideFactory(self.tokenizer)
        return self._guides.make(params.json_schema, params.regex, params.grammar)

    def _submit(self, ticket: Ticket) -> None:
        self._submitted.extend(a.sequence for a in ticket.answers)

    def _warm_up(self, num_runs: int) -> None:
        """Blank inferences: they touch the weights, the arrays of a full step and the KV cache's first pages."""
        blank = [0] * min(self._engine.config.chunk_tokens, self.context_tokens - 2, self._engine.cache_tokens - 2)
        for _ in range(num_runs):
            self.generate([blank], SamplingParams(max_tokens=2, ignore_eos=True))
        self._engine.forget()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """This caller's turn at the engine, after what others have submitted or dropped."""
        with self._lock:
            self._take_in()
            yield

    def _drop(self, answers: list[Answer]) -> None:
        """Cancels what is not finished, now or in the next turn. Never waits: the garbage collector may close a stream
        inside a step of the same thread."""
        self._dropped.extend(a.sequence for a in answers if not a.sequence.is_finished)
        if self._dropped and self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()

    def _take_in(self) -> None:
        while self._submitted:
            self._engine.enqueue(self._submitted.popleft())
        while self._dropped:
            self._engine.cancel(self._dropped.popleft())


def _check_digests(directory: ModelDirectory) -> None:
    for name, is_sound in directory.verify():
        if not is_sound:
            raise FormatError(f"{directory.path}: {name} is not what manifest.json says; convert the checkpoint again")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping, set, frozenset)) or not hasattr(prompts, "__iter__"):
        raise RequestError(f"prompts must be texts or lists of token ids, not {type(prompts).__name__}")
    items: list[Any] = list(prompts)
    return [items] if items and isinstance(items[0], (int, np.integer)) else items


def _as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, (str, Mapping)) or not all(isinstance(p, SamplingParams) for p in params):
        raise RequestError(
            f"sampling parameters must be a SamplingParams or a list of them, not {type(params).__name__}"
        )
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters for {count} prompts: give one for all or one for each")
    return list(params)


def _as_ids(prompt: object) -> list[int]:
    """Token ids as Python integers; what is not an integer is left for the engine to name."""
    if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
        raise RequestError(f"a prompt must be a text or a list of token ids, not {type(prompt).__name__}")
    return [int(i) if isinstance(i, np.integer) else i for i in prompt]


def _give_back_freed_memory() -> None:
    """Reading a tokenizer leaves tens of megabytes freed but still held by the process; glibc can return them."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
