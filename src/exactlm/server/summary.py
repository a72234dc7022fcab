"""What a finished request reports beside its text: digests, seed, timings, counts. The same in the response and the
log."""

from __future__ import annotations

import time
from typing import Any

from exactlm.server.exchange import Exchange
from exactlm.server.recorder import list_receipts


def make_response_extension(exchange: Exchange, has_receipts: bool) -> dict[str, Any]:
    """The `exactlm` object of a response: with one receipt for each choice, if the request asked for them."""
    extension = make_extension(exchange)
    return {**extension, "receipts": list_receipts(exchange.outputs)} if has_receipts else extension


def make_extension(exchange: Exchange) -> dict[str, Any]:
    """The `exactlm` object without receipts: one digest for each choice, the seed, and seconds from the request's
    arrival to when it was queued, its prefill began, its first token and its last token came (monotonic clock)."""
    return {
        "digests": [answer.digest for output in exchange.outputs for answer in output.outputs],
        "seed": next((output.seed for output in exchange.outputs), None),
        "timings": make_timings(exchange),
    }


def make_timings(exchange: Exchange) -> dict[str, float | None]:
    """The instants that were reached; None for the others."""
    known = [ticket.timings for ticket in exchange.tickets]
    queued = [t.queued for t in known if t.queued is not None]
    started = [t.started for t in known if t.started is not None]
    first = [t.first_token for t in known if t.first_token is not None]
    done = [t.done for t in known if t.done is not None]
    is_over = bool(known) and len(done) == len(known)
    return {
        "queued": _since(exchange, min(queued, default=None)),
        "prefill": _since(exchange, min(started, default=None)),
        "first_token": _since(exchange, min(first, default=None)),
        "done": _since(exchange, max(done) if is_over else None),
    }


def make_usage(exchange: Exchange) -> dict[str, Any]:
    """OpenAI's counts of tokens; a prompt counts once, whatever n is."""
    prompt = sum(len(output.prompt_token_ids) for output in exchange.outputs)
    answered = sum(len(answer.token_ids) for output in exchange.outputs for answer in output.outputs)
    cached = sum(output.num_cached_tokens for output in exchange.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def describe_exchange(exchange: Exchange) -> str:
    """One line for people: what became of a request. No text of it."""
    told = f"{exchange.id} {exchange.endpoint} {exchange.status}"
    if exchange.outputs:
        usage = make_usage(exchange)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        told += f", {usage['prompt_tokens']} tokens of prompt ({cached} cached), {usage['completion_tokens']} of answer"
    if exchange.error is not None:
        told += f", {exchange.error.detail['code'] or exchange.error.detail['type']}"
    return f"{told}, {time.monotonic() - exchange.arrival:.3f} s"


def _since(exchange: Exchange, instant: float | None) -> float | None:
    return None if instant is None else round(max(instant - exchange.arrival, 0.0), 6)
