"""What callers get back: outputs, pieces of a stream, and the ticket of a request that is on its way.

Turns committed tokens into text; knows nothing of models or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from exactlm.engine.sequence import Logprobs, Sequence, Timings
from exactlm.prompt import ReadPrompt
from exactlm.receipt import Receipt, make_receipt
from exactlm.text.stop import StopMatcher
from exactlm.text.stream import StreamDecoder
from exactlm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. `finish_reason`: "stop", "length" or "cancelled"; `stop_reason`: the stop string or stop token id
    that ended it. `logprobs` has one id -> natural log for each token, if asked for. `digest` is the SHA-256 of
    spec/numerics.md 11.3. `num_accepted_tokens`: how many were drafted by speculation. `receipt`: if asked for,
    spec/receipts.md."""

    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[Logprobs] | None
    digest: str
    index: int = 0
    stop_reason: str | int | None = None
    num_accepted_tokens: int = field(default=0, compare=False)
    receipt: Receipt | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers. `seed`: the one used, None where nothing was drawn and none given. `prompt_logprobs`:
    one entry for each token of the prompt, None for the first. `num_cached_tokens`: of the prompt, taken from the
    prefix cache. It and `timings` depend on the load, and do not count when outputs are compared."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    num_cached_tokens: int = field(default=0, compare=False)
    timings: Timings | None = field(default=None, compare=False)


@dataclass(frozen=True)
class StreamDelta:
    """The next piece of the streamed answer `index`; its last one has a finish_reason and the digest."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    digest: str | None = None
    index: int = 0
    logprobs: list[Logprobs] | None = None
    stop_reason: str | int | None = None


class Answer:
    """Turns one sequence's tokens into text as they are committed, and ends it at a stop string."""

    def __init__(self, tokenizer: Tokenizer, sequence: Sequence) -> None:
        self.sequence, self.text, self.is_done = sequence, "", False
        self._tokenizer = tokenizer
        self._decoder, self._matcher = StreamDecoder(tokenizer), StopMatcher(sequence.params.stop)
        self._fresh = ""  # text that is certain and not yet handed out
        self._told = 0  # tokens handed out
        self._stop: str | None = None
        sequence.is_ended_by = self.take

    def take(self, token: int) -> bool:
        """Takes in a committed token; True if the text has reached a stop string."""
        if self._tokenizer.is_special(token):  # a control token has no text
            return False
        return self._push(self._decoder.push(token))

    def _push(self, text: str) -> bool:
        emitted, self._stop = self._matcher.push(text)
        self._fresh += emitted
        return self._stop is not None

    def advance(self) -> StreamDelta | None:
        """What has become certain since the last call; None if nothing has. Raises the sequence's error."""
        s = self.sequence
        if s.error is not None:
            raise s.error
        if self.is_done:
            return None
        text, begin, end, is_done = self._fresh, self._told, len(s.output_ids), s.is_finished
        if is_done and self._stop is None:  # what is held back was no stop; bytes of half a character come last
            text += self._matcher.finish() + self._decoder.finish()
        if not (is_done or text or end > begin):
            return None
        logprobs = s.logprobs[begin:end] if s.params.logprobs is not None else None
        ids, whole = s.output_ids[begin:end], self.text + text
        delta = StreamDelta(text, ids, index=s.choice, logprobs=logprobs)
        if is_done:
            digest = s.digest.hexdigest()
            delta = StreamDelta(text, ids, s.finish_reason, digest, s.choice, logprobs, self._stop_reason())
        # Together and last, with no call between them: an interrupt before leaves all to be handed out.
        self.text, self._fresh, self._told, self.is_done = whole, "", end, is_done
        return delta

    def _stop_reason(self) -> str | int | None:
        return self._stop if self._stop is not None else self.sequence.stop_token

    def output(self) -> CompletionOutput:
        """What has been handed out so far; the digest is that of all tokens that are committed."""
        s = self.sequence
        return CompletionOutput(
            self.text,
            s.output_ids[: self._told],
            (s.finish_reason or "") if self.is_done else "",
            s.logprobs[: self._told] if s.params.logprobs is not None else None,
            s.digest.hexdigest(),
            s.choice,
            self._stop_reason(),
            s.num_accepted,
        )


class Ticket:
    """A submitted request: its answers come as the engine's steps go on. Safe to use from any thread."""

    def __init__(
        self,
        prompt: ReadPrompt,
        answers: list[Answer],
        lock: AbstractContextManager[object],
        drop: Callable[[list[Answer]], None],
        end: Callable[[list[Answer]], None],
        identity: Mapping[str, str | None] | None = None,
    ) -> None:
        """lock: no step runs while it is held. drop: cancels, now or soon. end: cuts, called while the lock is held.
        identity: of the model, if receipts are to be made."""
        self.prompt, self.answers = prompt, answers
        self._lock, self._drop, self._end, self._identity = lock, drop, end, identity

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.prompt.token_ids

    @property
    def seed(self) -> int | None:
        """The seed used; None where nothing is drawn and none was given."""
        return self.answers[0].sequence.params.seed

    @property
    def is_done(self) -> bool:
        """Whether poll() has handed out everything."""
        return all(a.is_done for a in self.answers)

    @property
    def timings(self) -> Timings:
        """Of the request: queued and started with its first answer, done with its last."""
        each = [a.sequence.timings for a in self.answers]
        done = [t.done for t in each]
        first = [t.first_token for t in each if t.first_token is not None]
        started = [t.started for t in each if t.started is not None]
        last = max((d for d in done if d is not None), default=None) if None not in done else None
        return Timings(each[0].queued, min(started, default=None), min(first, default=None), last)

    def poll(self) -> list[StreamDelta]:
        """What has become certain since the last call, without waiting for more. Raises the request's error."""
        with self._lock:
            return [delta for a in self.answers if (delta := a.advance()) is not None]

    def cancel(self) -> None:
        """Ends the request; its pages are free within one step."""
        self._drop(self.answers)

    def cut(self) -> list[StreamDelta]:
        """Ends the request now with the tokens that it has, as if each answer had been asked for so many: its finish
        reason is "length", and its receipt is that of such a request. An answer without a token is cancelled.

        Returns what poll() had not yet handed out, nothing of an answer that failed. Waits for the step under way.
        """
        with self._lock:
            self._end(self.answers)
            sound = [a for a in self.answers if a.sequence.error is None]
            return [delta for a in sound if (delta := a.advance()) is not None]

    def output(self) -> RequestOutput:
        """The answers as far as they have been polled."""
        if self.is_done:
            return self._output()
        with self._lock:
            return self._output()

    def _output(self) -> RequestOutput:
        first = self.answers[0].sequence
        scored = first.params.prompt_logprobs is not None
        return RequestOutput(
            self.prompt.text,
            self.prompt.token_ids,
            [replace(a.output(), receipt=self._receipt(a)) for a in self.answers],
            self.seed,
            [None, *first.prompt_logprobs] if scored else None,
            first.num_reused,
            self.timings,
        )

    def _receipt(self, answer: Answer) -> Receipt | None:
        s = answer.sequence
        is_whole = answer.is_done and s.finish_reason in ("stop", "length")
        if self._identity is None or s.digest.steps is None or not is_whole:
            return None
        o = answer.output()
        output = {
            "token_ids": o.token_ids,
            "text": o.text,
            "finish_reason": o.finish_reason,
            "stop_reason": o.stop_reason,
            "digest": o.digest,
        }
        return make_receipt(self._identity, self.prompt, s.params, s.max_tokens, s.choice, output, s.digest.steps)
