"""The facade: a model directory becomes an LLM with generate, chat, stream, logits and score."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import threading
import time
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
from exactlm.engine.sampling_params import MAX_CHOICES, SamplingParams
from exactlm.engine.sequence import DraftSource
from exactlm.engine.sequence import Sequence as Request
from exactlm.engine.stats import EngineStats
from exactlm.errors import ConfigError, FormatError, RequestError
from exactlm.format.memory_lock import lock_tensors
from exactlm.format.reader import open_model
from exactlm.identity import Identity
from exactlm.kernels.select import select_kernels
from exactlm.log import configure_log
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import Decoder
from exactlm.models.weights import load_weights
from exactlm.prompt import Messages, Prompt, ReadPrompt, as_ids, as_list, as_params, read_chat, read_prompt
from exactlm.receipt import check_receiptable
from exactlm.text.guide import Guide, GuideFactory
from exactlm.text.tokenizer import Tokenizer

_LOG = logging.getLogger("exactlm.llm")

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "StreamDelta", "Ticket"]


class LLM:
    """A model made by `exactlm convert`, ready to answer.

    path: the model directory. The other arguments are capacity: none of them can change a bit of any answer. threads:
    None for EXACTLM_THREADS or all processors. isa: None for EXACTLM_ISA or the fastest ("reference" is the NumPy
    definition). max_batch: sequences in a step. chunk_tokens: tokens in a step. kv_tokens: tokens that the KV cache
    holds. verify: first check that every weight has the digest of the manifest, which the fingerprint stands for;
    else this is done before the first receipt, and takes a second for each gigabyte or so.
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
        configure_log()
        begin = time.monotonic()
        limits = EngineConfig(threads, isa, max_batch, chunk_tokens, kv_tokens, prefix_cache, speculation)
        if not isinstance(warmup, int) or isinstance(warmup, bool) or not 0 <= warmup <= 1000:
            raise ConfigError(f"warmup={warmup!r}: use a number of runs from 0 to 1000")
        kernels = select_kernels(isa, threads)
        directory = open_model(path)
        self.config = ModelConfig.from_dict(directory.config)
        self.tokenizer = Tokenizer.load(directory.path)
        if self.tokenizer.num_tokens != self.config.num_tokens:
            raise FormatError(
                f"{directory.path}: config.json says {self.config.num_tokens} tokens, "
                f"tokenizer.json has {self.tokenizer.num_tokens}"
            )
        directory.check_unchanged()
        self.fingerprint = directory.fingerprint
        self._identity = Identity(directory)
        if verify:
            self._identity.vouch()
        self.isa, self.threads = kernels.isa, kernels.num_threads
        if mlock:
            lock_tensors(directory.tensors)
        weights = load_weights(directory.tensors, self.config, kernels)
        decoder = Decoder(self.config, weights, kernels, limits.step_tokens)
        self._excluded = self.tokenizer.unsampled_ids & frozenset(range(self.config.num_tokens))
        self._engine = Engine(decoder, self.tokenizer.eos_ids, self._excluded, limits)
        self._guides: GuideFactory | None = None
        self._guide_lock = threading.Lock()
        # Always `with self._lock:` itself, which no interrupt can leave half entered; a wrapper in Python could be.
        self._lock = threading.Lock()
        self._submitted: deque[Request] = deque()
        self._dropped: deque[Request] = deque()
        self._warm_up(warmup)
        _give_back_freed_memory()
        _LOG.info(
            "%s loaded in %.2f s: %s, %d threads, KV cache of %d tokens, fingerprint %.16s",
            path, time.monotonic() - begin, self.isa, self.threads, self._engine.cache_tokens, self.fingerprint,
        )  # fmt: skip

    @property
    def identity(self) -> dict[str, str | None]:
        """What a receipt says of this model: spec/receipts.md 2, `model`."""
        return dict(self._identity.members)

    @property
    def context_tokens(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._engine.context_tokens

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        receipt: bool = False,
    ) -> list[RequestOutput]:
        """Answers of prompts (texts or lists of token ids), in their order, run together in shared steps.

        params: one for all or one for each; None for the defaults. receipt: make one for each answer
        (spec/receipts.md). Raises RequestError, CapacityError, NumericError, for a receipt also FormatError where a
        weight is damaged; then nothing is left running.
        """
        many = [read_prompt(self.tokenizer, p) for p in as_list(prompts)]
        each = as_params(params, len(many))
        made = [self._prepare(prompt, p, receipt) for prompt, p in zip(many, each, strict=True)]
        try:
            for ticket in made:
                self._submit(ticket)
            while not all(t.is_done for t in made):
                with self._lock:
                    self._take_in()
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
        (given,) = as_params(params, 1)
        ticket = self._prepare(read_prompt(self.tokenizer, prompt), given)
        try:
            self._submit(ticket)
            while not ticket.is_done:
                with self._lock:
                    self._take_in()
                    if not all(a.sequence.is_finished for a in ticket.answers):
                        self._engine.step()
                yield from ticket.poll()
        finally:
            ticket.cancel()

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        receipt: bool = False,
        drafters: Sequence[DraftSource] = (),
        choice: int = 0,
    ) -> Ticket:
        """Queues a request for whoever calls step(), and returns at once. Raises RequestError, CapacityError.

        drafters: one for each answer, instead of the engine's own; no draft can change an answer. choice: index of
        the first answer.
        """
        (given,) = as_params(params, 1)
        ticket = self._prepare(read_prompt(self.tokenizer, prompt), given, receipt, drafters, choice)
        self._submit(ticket)
        return ticket

    def step(self) -> bool:
        """One step of the engine for everybody's requests; False if there was nothing to do."""
        with self._lock:
            self._take_in()
            return bool(self._engine.step())

    def stats(self) -> EngineStats:
        """What the engine has done and holds."""
        stats = replace(self._engine.stats())
        stats.num_waiting += len(self._submitted)
        return stats

    def check_integrity(self) -> None:
        """CapacityError if, with nothing running, a page of the KV cache is lost or free twice."""
        with self._lock:
            self._take_in()
            self._engine.check_integrity()

    def generate_plain(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """What generate gives, made alone by the plainest loop: token by token, without scheduler, prefix cache or
        drafts, and with the NumPy sampler. Slow; for checking the engine against."""
        (given,) = as_params(params, 1)
        ticket = self._prepare(read_prompt(self.tokenizer, prompt), given)
        if given.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs: not available here; use score()")
        with self._lock:
            self._take_in()
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
                s.finish_reason, s.stop_token = reason, made.stop_token
                answer.advance()
        return ticket.output()

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        receipt: bool = False,
    ) -> list[RequestOutput]:
        """Answers of one conversation or several: messages of {"role": .., "content": ..}, rendered by the model's
        chat template."""
        many = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return self.generate([self.read_chat(m) for m in many], params, receipt)  # type: ignore[arg-type]

    def read_chat(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> ReadPrompt:
        """A conversation as a prompt; control tokens come from the template only, never from the messages' content.

        tools, template_kwargs: what the template is told besides. RequestError for a bad message, TemplateError.
        """
        return read_chat(self.tokenizer, messages, tools, add_generation_prompt, template_kwargs)

    def chat_ids(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of read_chat."""
        return self.read_chat(messages, tools, add_generation_prompt, template_kwargs).token_ids

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [T, V], the exact bits, of every position of a sequence of T token ids."""
        ids = as_ids(token_ids)
        with self._lock:
            self._take_in()
            return np.concatenate([block.copy() for block in self._engine.prompt_logits(ids)])

    def score(self, token_ids: Sequence[int]) -> list[float | None]:
        """Log-probability (natural) of every token given those before it; None for the first. spec/numerics.md 10.4."""
        ids = as_ids(token_ids)
        scores: list[float | None] = [None]
        with self._lock:
            self._take_in()
            for block in self._engine.prompt_logits(ids):
                for row in self._engine.decoder.log_probabilities(0, len(block))[: len(ids) - len(scores)]:
                    scores.append(float(row[ids[len(scores)]]))
        return scores

    def _prepare(
        self,
        prompt: ReadPrompt,
        params: SamplingParams,
        receipt: bool = False,
        drafters: Sequence[DraftSource] = (),
        first_choice: int = 0,
    ) -> Ticket:
        """A request that is not yet submitted. RequestError, CapacityError; FormatError for a damaged weight."""
        self._engine.admission.check(prompt.token_ids, params)
        if not 0 <= first_choice <= MAX_CHOICES - params.n:
            raise RequestError(f"choice={first_choice!r}: with n={params.n}, use 0 to {MAX_CHOICES - params.n}")
        if drafters and len(drafters) != params.n:
            raise RequestError(f"{len(drafters)} drafters for n={params.n} answers: give one for each")
        if receipt:
            check_receiptable(prompt, params)
        identity = self._identity.vouch() if receipt else None
        params = params.seeded()
        answers: list[Answer] = []
        guide = self._make_guide(params) if params.is_guided else None
        for i in range(params.n):
            leader = answers[0].sequence if answers else None
            fork = guide.fork() if guide is not None and i > 0 else guide
            drafter, choice = drafters[i] if drafters else None, first_choice + i
            sequence = self._engine.make(prompt.token_ids, params, choice, leader, fork, receipt, drafter)
            answers.append(Answer(self.tokenizer, sequence))
        return Ticket(prompt, answers, self._lock, self._drop, self._cut, identity)

    def _make_guide(self, params: SamplingParams) -> Guide:
        with self._guide_lock:
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

    def _drop(self, answers: list[Answer]) -> None:
        """Cancels what is not finished, now or in the next turn. Waits for nothing but a step that another thread
        begins at this moment: the garbage collector may close a stream inside a step of the same thread."""
        self._dropped.extend(a.sequence for a in answers if not a.sequence.is_finished)
        if self._dropped and not self._lock.locked():
            with self._lock:  # not acquire(blocking=False): an interrupt on its return would leave it locked for ever
                self._take_in()

    def _cut(self, answers: list[Answer]) -> None:
        """Ends what is not finished with the tokens that it has. The lock is held."""
        self._take_in()
        for answer in answers:
            self._engine.cut(answer.sequence)

    def _take_in(self) -> None:
        """What others have submitted or dropped. Each leaves its list last: an interrupt in between loses none."""
        while self._submitted:
            self._engine.enqueue(self._submitted[0])
            self._submitted.popleft()
        while self._dropped:
            self._engine.cancel(self._dropped[0])
            self._dropped.popleft()


def _give_back_freed_memory() -> None:
    """Reading a tokenizer leaves tens of megabytes freed but still held by the process; glibc can return them."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
