"""What a model and an engine's capacity allow a request to be. Says no before anything is queued or computed."""

from __future__ import annotations

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import CapacityError, RequestError
from exactlm.models.config import ModelConfig

MAX_CONTEXT = 131072  # tokens: the bounds of spec/numerics.md 8 are proved up to here


def count_context(config: ModelConfig) -> int:
    """Tokens a sequence may have: the trained window, which dynamic RoPE scaling stretches by its factor."""
    scaling = config.rope_scaling
    factor = scaling.factor if scaling is not None and scaling.kind == "dynamic" else 1.0
    return int(min(config.max_position_embeddings * max(factor, 1.0), MAX_CONTEXT))


class Admission:
    """The limits of one engine. num_tokens: of the vocabulary; context_tokens: of a prompt and its answer together;
    cache_tokens: of the KV cache."""

    def __init__(self, num_tokens: int, context_tokens: int, cache_tokens: int) -> None:
        self.num_tokens, self.context_tokens, self.cache_tokens = num_tokens, context_tokens, cache_tokens

    def check(self, prompt_ids: list[int], params: SamplingParams) -> int:
        """The tokens that a request may generate.

        RequestError if the prompt is empty, out of the vocabulary or too long, or a parameter names an id that is not
        there; CapacityError if it can never fit.
        """
        self._check_ids(prompt_ids)
        limit = self.num_tokens
        for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", [i for i, _ in params.bias])):
            if wrong := [i for i in ids if i >= limit]:
                raise RequestError(f"{name}: id {wrong[0]} is not one of this model's, which run from 0 to {limit - 1}")
        room = self.context_tokens - len(prompt_ids)
        wanted = 1 if params.max_tokens is None else params.max_tokens
        if room < wanted:
            raise RequestError(
                f"the prompt has {_tokens(len(prompt_ids))} and max_tokens is {params.max_tokens}: "
                f"together more than the model's context of {self.context_tokens}"
            )
        max_tokens = room if params.max_tokens is None else params.max_tokens
        self._check_room(len(prompt_ids) + max_tokens)
        return max_tokens

    def check_scored(self, token_ids: list[int]) -> None:
        """The same for ids whose logits alone are wanted."""
        self._check_ids(token_ids)
        if len(token_ids) > self.context_tokens:
            raise RequestError(f"{len(token_ids)} tokens are more than the model's context of {self.context_tokens}")
        self._check_room(len(token_ids))

    def _check_ids(self, ids: list[int]) -> None:
        if not ids:
            raise RequestError("the prompt has no tokens; give at least one")
        limit = self.num_tokens
        for at, i in enumerate(ids):
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < limit:
                raise RequestError(f"token {at} of the prompt is {i!r}; ids of this model run from 0 to {limit - 1}")

    def _check_room(self, num_tokens: int) -> None:
        if num_tokens > self.cache_tokens:
            raise CapacityError(
                f"{num_tokens} tokens are needed, the KV cache holds {self.cache_tokens}: "
                "raise kv_tokens or lower max_tokens"
            )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
