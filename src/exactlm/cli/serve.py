"""exactlm serve: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from exactlm.cli.option import add_model
from exactlm.engine.config import DEFAULT_KV_TOKENS, EngineConfig
from exactlm.engine.speculation import METHODS
from exactlm.errors import ConfigError
from exactlm.llm import LLM
from exactlm.log import configure_log
from exactlm.server.limit import Limits
from exactlm.signature import read_key

if TYPE_CHECKING:
    from exactlm.server.recorder import Recorder
    from exactlm.server.service import ServerConfig

EPILOG = """examples:
  exactlm serve smollm2
  exactlm serve smollm2 --port 8080 --api-key-file keys.txt --request-log requests.jsonl
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"prompt": "The capital of France is", "max_tokens": 12}'

environment: EXACTLM_API_KEY is a key that clients must send, if it is set. EXACTLM_LOG=info tells of every request.
SIGTERM or Ctrl-C ends the server after the answers under way, a second one at once."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's API",
        description="Serve a model over HTTP, as OpenAI's API.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="port; 0 for one that is free (default: 8000)"
    )
    parser.add_argument(
        "--model-name",
        "--served-model-name",
        metavar="NAME",
        help="the model's name for clients (default: that of DIR)",
    )
    _add_access(parser)
    _add_engine(parser)
    _add_limits(parser)
    parser.add_argument("--request-log", metavar="FILE", help="append one line of JSON for each request")
    parser.add_argument("--log-text", action="store_true", help="write prompts and answers into the request log too")
    parser.add_argument(
        "--ledger",
        metavar="WHERE",
        help="append a receipt of every answer, and of what a stream came to that ends early, to this file or "
        "postgresql:// database; left out are answers that end early without being streamed or without a token, and "
        "what a kill interrupts; the log names the request of any other that fails",
    )
    parser.add_argument("--sign-key", metavar="FILE", help="sign receipts with a key of `exactlm keygen`")
    parser.set_defaults(execute=execute)


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help="a key that clients must send; may be repeated; other users of this machine can see it",
    )  # fmt: skip
    parser.add_argument("--api-key-file", metavar="FILE", help="a file of such keys, one a line")
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="ORIGIN",
        help="let web pages of this origin use the server; may be repeated; * for all (default: none)",
    )  # fmt: skip


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """Capacity of the engine: none of these can change an answer."""
    config = EngineConfig()
    for name, value, text in (
        ("max-batch", config.max_batch, "answers that advance together"),
        ("chunk-tokens", config.chunk_tokens, "tokens of a step at most"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"{text} (default: {value})")
    parser.add_argument(
        "--kv-tokens", type=int, metavar="N",
        help=f"tokens that the KV cache holds (default: a context, at least {DEFAULT_KV_TOKENS})",
    )  # fmt: skip
    parser.add_argument("--no-prefix-cache", action="store_true", help="do not keep what prompts share")
    parser.add_argument(
        "--speculation", default=config.speculation, choices=METHODS,
        help=f"ngram: decide several tokens in a step where the text repeats itself (default: {config.speculation})",
    )  # fmt: skip
    parser.add_argument("--mlock", action="store_true", help="keep the weights in memory")
    parser.add_argument(
        "--warmup", type=int, default=1, metavar="N", help="blank inferences before the server is ready (default: 1)"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = Limits()
    for name, count, text in (
        ("max-body-bytes", limits.max_body_bytes, "bytes of a request at most"),
        ("max-waiting", limits.max_waiting, "answers that may wait for a place in the batch"),
    ):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"{text} (default: {count})")
    for name, seconds, text in (
        ("request-seconds", limits.request_seconds, "time that a request has, from its arrival to its last byte"),
        ("read-seconds", limits.read_seconds, "time that a request's header has to arrive, and again its body"),
        ("grace-seconds", limits.grace_seconds, "time that answers under way have when the server is told to stop"),
    ):
        told = f"{text} (default: {seconds:g})"
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="S", help=told)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        from exactlm.server.process import bind, serve, tell_address
        from exactlm.server.service import Service
    except ImportError as error:
        message = f"serving needs the extra `server` ({error}); install it: pip install 'exactlm[server]'"
        raise ConfigError(message) from None
    configure_log("warning")
    config = read_config(options)
    with bind(options.host, options.port) as bound:
        llm = open_engine(options)
        told = f"{config.model_name} on {tell_address(bound)} ({llm.threads} threads, {llm.isa}, {llm.fingerprint:.16})"
        service = Service(llm, config, options.max_batch)
        serve(service, bound, lambda: print(f"exactlm serve: {told}", file=sys.stderr, flush=True))
    return 0


def read_config(options: argparse.Namespace) -> ServerConfig:
    """How to serve. ConfigError names what is wrong."""
    from exactlm.server.auth import KeyRing, read_keys
    from exactlm.server.request_log import RequestLog
    from exactlm.server.service import ServerConfig

    limits = Limits(
        max_body_bytes=options.max_body_bytes,
        read_seconds=options.read_seconds,
        request_seconds=options.request_seconds,
        max_waiting=options.max_waiting,
        grace_seconds=options.grace_seconds,
    )
    keys = [*options.api_key, *(read_keys(options.api_key_file) if options.api_key_file else [])]
    if "EXACTLM_API_KEY" in os.environ:
        keys.append(os.environ["EXACTLM_API_KEY"])
    if options.log_text and not options.request_log:
        raise ConfigError("--log-text is for the request log: give --request-log FILE too")
    name = options.model_name if options.model_name is not None else Path(options.model).resolve().name
    if not name:
        raise ConfigError("the model has no name for clients: give --model-name NAME")
    ring = KeyRing(keys)
    log = RequestLog(options.request_log, options.log_text) if options.request_log else None
    return ServerConfig(name, limits, ring, tuple(options.cors_origin), log, open_recorder(options))


def open_recorder(options: argparse.Namespace) -> Recorder:
    """The ledger and the key asked for. ConfigError, LedgerError."""
    from exactlm.server.recorder import Recorder

    key = read_key(options.sign_key) if options.sign_key else None
    if not options.ledger:
        return Recorder(None, key)
    from exactlm.proof.ledger import Ledger

    return Recorder(Ledger.open(options.ledger), key)


def open_engine(options: argparse.Namespace) -> LLM:
    """The model with the capacity asked for."""
    return LLM(
        options.model,
        threads=options.threads,
        isa=options.isa,
        verify=options.verify or options.ledger is not None or options.sign_key is not None,
        max_batch=options.max_batch,
        chunk_tokens=options.chunk_tokens,
        kv_tokens=options.kv_tokens,
        prefix_cache=not options.no_prefix_cache,
        speculation=options.speculation,
        mlock=options.mlock,
        warmup=options.warmup,
    )
