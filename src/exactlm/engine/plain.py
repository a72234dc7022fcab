"""One answer alone, token by token: no scheduler, batch, prefix cache or drafts, and the NumPy sampler. Slow, and what
the engine is judged against. spec/sampling.md."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from exactlm.engine.sampler import top_logprobs
from exactlm.engine.sampling_params import SamplingParams
from exactlm.engine.sequence import Guide, Logprobs, OutputDigest
from exactlm.errors import NumericError, RequestError
from exactlm.kernels.api import F32, I16, PAGE_TOKENS
from exactlm.models.decoder import Decoder
from exactlm.numerics.activation import log_probabilities
from exactlm.numerics.philox import draw
from exactlm.numerics.sampling import adjust, sample, to_fp32, to_q40


class PlainAnswer:
    """One answer while it is being made. `next_token` chooses a token and adds it."""

    def __init__(
        self, decoder: Decoder, prompt_ids: list[int], params: SamplingParams, max_tokens: int, choice: int = 0
    ) -> None:
        self._decoder, self._params, self._choice = decoder, params, choice
        self._num_pages = -(-(len(prompt_ids) + max_tokens) // PAGE_TOKENS)
        self._cache = decoder.make_cache(self._num_pages)
        self.prompt_ids, self.output_ids = prompt_ids, list[int]()
        self.digest = OutputDigest(prompt_ids)
        self.logprobs: list[Logprobs] = []
        self.stop_token: int | None = None  # the token of params.stop_token_ids that ended it

    def next_token(self, excluded_ids: list[int], guide: Guide | None = None) -> int:
        """Runs what is not yet in the cache, chooses, and adds the choice. NumericError for a NaN or infinity."""
        pending = [*self.prompt_ids, *self.output_ids][-1:] if self.output_ids else self.prompt_ids
        begin = len(self.prompt_ids) + len(self.output_ids) - len(pending)
        for at, token in enumerate(pending):
            codes, scales = self._forward(token, begin + at)
        logits = self._decoder.logits(codes, scales)[0, : self._decoder.config.num_tokens].copy()
        token = self._choose(logits, excluded_ids, guide)
        self.digest.add(codes[0, : self._decoder.config.hidden_size], scales[0], token)
        if self._params.logprobs is not None:
            self.logprobs.append(top_logprobs(logits, log_probabilities(logits), token, self._params.logprobs))
        self.output_ids.append(token)
        return token

    def _forward(self, token: int, position: int) -> tuple[I16, F32]:
        pages = np.arange(self._num_pages, dtype=np.int32)[None]
        ids, first, at = np.array([token]), np.array([0, 1], np.int32), np.array([position], np.int32)
        return self._decoder.forward(ids, first, at, pages, np.array([0], np.int32), self._cache)

    def _choose(self, logits: F32, excluded_ids: list[int], guide: Guide | None) -> int:
        p, step = self._params, len(self.output_ids)
        if not np.isfinite(logits).all():
            raise NumericError(f"step {step}: a logit is NaN or infinite")
        seen = sorted({*self.prompt_ids, *self.output_ids})
        x = logits.copy()
        adjust(
            x,
            np.array([i for i, _ in p.bias], np.int64),
            np.array([to_fp32(b) for _, b in p.bias], np.float32),
            np.array(seen, np.int64),
            np.array([self.output_ids.count(i) for i in seen], np.int32),
            p.repetition_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        )
        x[excluded_ids] = -np.inf
        if guide is not None:
            x[~guide.mask()] = -np.inf
        if np.isneginf(x).all():
            raise RequestError(f"step {step}: no token is allowed")
        u = 0
        if not p.is_greedy:
            assert p.seed is not None
            u = draw(p.seed, self._choice, len(self.prompt_ids) + step)
        return sample(x, p.temperature, to_q40(p.min_p), max(p.top_k, 0), to_q40(p.top_p), u)


def generate_plain(
    decoder: Decoder,
    prompt_ids: list[int],
    params: SamplingParams,
    max_tokens: int,
    eos_ids: frozenset[int],
    excluded_ids: frozenset[int],
    choice: int = 0,
    guide: Guide | None = None,
    is_ended_by: Callable[[int], bool] = lambda token: False,
) -> tuple[PlainAnswer, str]:
    """An answer and its finish reason, "stop" or "length". is_ended_by: told each token, True at a stop string."""
    answer = PlainAnswer(decoder, prompt_ids, params, max_tokens, choice)
    while len(answer.output_ids) < max_tokens:
        token = answer.next_token(sorted(excluded_ids), guide)
        is_end_token = token in eos_ids and not params.goes_past_end
        if is_ended_by(token):
            return answer, "stop"
        if token in params.stop_token_ids:
            answer.stop_token = token
        if is_end_token or token in params.stop_token_ids:
            return answer, "stop"
        if guide is not None and len(answer.output_ids) < max_tokens:
            guide.accept(token)
    return answer, "length"
