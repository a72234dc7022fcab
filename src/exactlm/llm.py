"""The facade: a model directory becomes an LLM with generate, chat, stream, logits and score."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.engine.config import EngineConfig
from exactlm.engine.engine import Engine
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Logprobs
from exactlm.engine.sequence import Sequence as Request
from exactlm.errors import FormatError, RequestError, TemplateError
from exactlm.format.reader import ModelDirectory, open_model
from exactlm.kernels.select import select_kernels
from exactlm.models.config import ModelConfig
from exactlm.models.decoder import Decoder
from exactlm.models.weights import load_weights
from exactlm.text.chat import render_chat
from exactlm.text.stop import StopMatcher
from exactlm.text.stream import StreamDecoder
from exactlm.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. `digest` is the SHA-256 of spec/numerics.md 11.3; `logprobs` has one id -> natural log for each
    token, if asked for."""

    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[Logprobs] | None
    digest: str


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


@dataclass(frozen=True)
class StreamDelta:
    """The next piece of a streamed answer; the last one has a finish_reason and the digest."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    digest: str | None = None


class _Answer:
    """Turns a request's tokens into text as they are committed, and ends it at a stop string."""

    def __init__(self, tokenizer: Tokenizer, request: Request, prompt: str | None) -> None:
        self.request, self.prompt, self.text = request, prompt, ""
        self.is_done = False
        self._tokenizer = tokenizer
        self._decoder, self._matcher = StreamDecoder(tokenizer), StopMatcher(request.params.stop)
        self._fresh = ""  # text that is certain and not yet handed out
        self._is_stopped = False
        request.is_ended_by = self._take

    def _take(self, token: int) -> bool:
        """Takes in a committed token; True if the text has reached a stop string."""
        if self._tokenizer.is_special(token):  # a control token has no text
            return False
        return self._push(self._decoder.push(token))

    def _push(self, text: str) -> bool:
        emitted, hit = self._matcher.push(text)
        self._fresh += emitted
        self._is_stopped = hit is not None
        return self._is_stopped

    def advance(self) -> str:
        """The text that has become certain since the last call; raises the request's error."""
        if self.request.error is not None:
            raise self.request.error
        if self.request.is_finished and not self.is_done:
            self.is_done = True
            if not self._is_stopped:
                if self._push(self._decoder.finish()):
                    self.request.finish_reason = "stop"
                else:
                    self._fresh += self._matcher.finish()
        delta, self._fresh = self._fresh, ""
        self.text += delta
        return delta

    def output(self) -> RequestOutput:
        r = self.request
        logprobs = r.logprobs if r.params.logprobs is not None else None
        answer = CompletionOutput(self.text, list(r.output_ids), r.finish_reason or "", logprobs, r.digest.hexdigest())
        return RequestOutput(self.prompt, r.prompt_ids, [answer])


class LLM:
    """A model made by `exactlm convert`, ready to answer.

    path: the model directory. The other arguments are capacity: none of them can change a bit of any answer. threads:
    None for EXACTLM_THREADS or all processors. isa: None for EXACTLM_ISA or the fastest ("reference" is the NumPy
    definition). max_batch: sequences in a step. chunk_tokens: tokens in a step. kv_tokens: tokens that the KV cache
    holds. verify: first check that every weight has the digest of the manifest, which the fingerprint stands for.
    Raises FormatError, ConfigError, IsaError, CapacityError.
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
    ) -> None:
        limits = EngineConfig(threads, isa, max_batch, chunk_tokens, kv_tokens)
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
        weights = load_weights(directory.tensors, self.config, kernels)
        decoder = Decoder(self.config, weights, kernels, limits.step_tokens)
        excluded = self.tokenizer.unsampled_ids & frozenset(range(self.config.num_tokens))
        self._engine = Engine(decoder, self.tokenizer.eos_ids, excluded, limits)
        self._lock = threading.Lock()
        self._dropped: deque[Request] = deque()
        _give_back_freed_memory()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answers of prompts (texts or lists of token ids), in their order, run together in shared steps.

        params: one for all or one for each; None for the defaults. Raises RequestError, CapacityError, NumericError;
        then nothing is left running.
        """
        many = [self._read_prompt(p) for p in _as_list(prompts)]
        each = _as_params(params, len(many))
        answers: list[_Answer] = []
        try:
            with self._turn():
                for (text, ids), p in zip(many, each, strict=True):
                    answers.append(_Answer(self.tokenizer, self._engine.add(ids, p), text))
            while not all(a.is_done for a in answers):
                with self._turn():
                    if not all(a.request.is_finished for a in answers):
                        self._engine.step()
                    for answer in answers:
                        answer.advance()
        finally:
            self._drop(answers)
        return [a.output() for a in answers]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """The answer of one prompt in pieces; the pieces' texts joined are the text that generate gives. Closing the
        iterator cancels."""
        text, ids = self._read_prompt(prompt)
        (given,) = _as_params(params, 1)
        answer = None
        try:
            with self._turn():
                answer = _Answer(self.tokenizer, self._engine.add(ids, given), text)
            told = 0  # tokens handed out: other callers' steps may have added several
            while not answer.is_done:
                with self._turn():
                    if not answer.request.is_finished:
                        self._engine.step()
                    delta = answer.advance()
                    new = answer.request.output_ids[told:]
                told += len(new)
                if answer.is_done:
                    yield StreamDelta(delta, new, answer.request.finish_reason, answer.request.digest.hexdigest())
                elif delta or new:
                    yield StreamDelta(delta, new)
        finally:
            self._drop([answer] if answer is not None else [])

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers of one conversation or several: messages of {"role": .., "content": ..}, rendered by the model's
        chat template."""
        many = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return self.generate([self.chat_ids(m) for m in many], params)  # type: ignore[arg-type]

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation; control tokens come from the template only, never from the messages' content."""
        if self.tokenizer.chat_template is None:
            raise TemplateError("this model has no chat template; use generate() with a prompt of your own")
        rendered = render_chat(self.tokenizer.chat_template, messages, special_tokens=self.tokenizer.special_tokens)
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
                for row in self._engine.decoder.log_probabilities(len(block))[: len(ids) - len(scores)]:
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

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """This caller's turn at the engine, after what others have dropped is gone."""
        with self._lock:
            self._cancel_dropped()
            yield

    def _drop(self, answers: list[_Answer]) -> None:
        """Cancels what is not finished, now or in the next turn. Never waits: the garbage collector may close a stream
        inside a step of the same thread."""
        self._dropped.extend(a.request for a in answers if not a.request.is_finished)
        if self._dropped and self._lock.acquire(blocking=False):
            try:
                self._cancel_dropped()
            finally:
                self._lock.release()

    def _cancel_dropped(self) -> None:
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
