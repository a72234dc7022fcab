"""Plain completions: prompts as texts or token ids, several at once, with the prompt echoed where asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar

from exactlm.engine.sequence import Logprobs
from exactlm.llm import LLM, RequestOutput
from exactlm.prompt import ReadPrompt
from exactlm.server.answer_format import Asked, Piece
from exactlm.server.completion_schema import CompletionRequest
from exactlm.server.logprob import CompletionLogprobs
from exactlm.server.prompt import check_ids, check_length, encode_text
from exactlm.server.sampling_schema import make_params
from exactlm.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16


class CompletionFormat:
    """The format of POST /v1/completions. `echoes`: the text of each prompt to repeat, None for none."""

    endpoint: ClassVar[str] = "/v1/completions"
    id_prefix: ClassVar[str] = "cmpl-"
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    def __init__(
        self, tokenizer: Tokenizer, num_choices: int, echoes: list[str] | None, has_logprobs: bool, shows_ids: bool
    ) -> None:
        # The prompt's own log-probabilities are handed out with the whole answer.
        self.is_whole = echoes is not None and has_logprobs
        self._tokenizer, self._num_choices, self._echoes = tokenizer, num_choices, echoes
        self._shows_ids = shows_ids
        self._writers: dict[int, CompletionLogprobs] = {}

    @classmethod
    def read(cls, body: dict[str, Any], llm: LLM) -> Asked:
        """The request in a body, tokenised. ApiError, ExactlmError, ValidationError."""
        fields = CompletionRequest.model_validate(body)
        max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
        scored = fields.logprobs if fields.echo else None
        params = make_params(fields, max_tokens=max_tokens, logprobs=fields.logprobs, prompt_logprobs=scored)
        prompts, echoes = list[ReadPrompt](), list[str]()
        is_one = isinstance(fields.prompt, str) or isinstance(fields.prompt[0], int)
        for index, prompt in enumerate(fields.prompts):
            param = "prompt" if is_one else f"prompt[{index}]"
            if isinstance(prompt, str):
                prompts.append(ReadPrompt(encode_text(llm, prompt, param), prompt))
            else:
                check_ids(llm, prompt, param)
                prompts.append(ReadPrompt(prompt))
            check_length(llm, len(prompts[-1].token_ids), max_tokens, param)
            if fields.echo:
                echoes.append(prompt if isinstance(prompt, str) else llm.tokenizer.decode(prompt, False))
        has_logprobs, shows_ids = fields.logprobs is not None, bool(fields.return_token_ids)
        made = cls(llm.tokenizer, params.n, echoes if fields.echo else None, has_logprobs, shows_ids)
        return Asked(prompts, params, bool(fields.stream), fields.wants_usage, fields.wants_receipts, made)

    def make_opening(self, index: int) -> str | None:
        """The echoed prompt, if any."""
        if self._echoes is None:
            return None
        text = self._echoes[index // self._num_choices]
        return f'{{"index":{index},"text":{encode_basestring_ascii(text)},"logprobs":null,"finish_reason":null}}'

    def make_chunk(self, index: int, piece: Piece) -> str | None:
        """The next piece of an answer."""
        is_last = piece.finish_reason is not None
        if not (piece.text or piece.logprobs or is_last or (self._shows_ids and piece.token_ids)):
            return None
        logprobs, reason = "null", "null"
        if piece.logprobs:
            writer = self._writers.setdefault(index, CompletionLogprobs(self._tokenizer))
            logprobs = json.dumps(writer.add(piece.token_ids, piece.logprobs))
        if is_last:
            reason = f'"{piece.finish_reason}","stop_reason":{json.dumps(piece.stop_reason)}'
        ids = f',"token_ids":{json.dumps(piece.token_ids)}' if self._shows_ids else ""
        text = encode_basestring_ascii(piece.text)
        return f'{{"index":{index},"text":{text},"logprobs":{logprobs},"finish_reason":{reason}{ids}}}'

    def make_choices(self, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """Whole answers, each behind its prompt where that is echoed."""
        choices = []
        for place, output in enumerate(outputs):
            echo = self._echoes[place] if self._echoes is not None else ""
            for answer in output.outputs:
                choice: dict[str, Any] = {
                    "index": place * self._num_choices + answer.index,
                    "text": echo + answer.text,
                    "logprobs": None,
                    "finish_reason": answer.finish_reason,
                    "stop_reason": answer.stop_reason,
                }
                if answer.logprobs is not None:
                    choice["logprobs"] = self._make_logprobs(output, answer.token_ids, answer.logprobs, echo)
                if self._shows_ids:
                    choice |= {"token_ids": answer.token_ids, "prompt_token_ids": output.prompt_token_ids}
                choices.append(choice)
        return choices

    def _make_logprobs(
        self, output: RequestOutput, token_ids: list[int], logprobs: list[Logprobs], echo: str
    ) -> dict[str, Any]:
        writer = CompletionLogprobs(self._tokenizer)
        made: dict[str, list[Any]] = {}
        if output.prompt_logprobs is not None:
            made = writer.add_prompt(output.prompt_token_ids, output.prompt_logprobs, echo)
        answered = writer.add(token_ids, logprobs)
        return {name: made.get(name, []) + values for name, values in answered.items()}
