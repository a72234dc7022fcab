"""exactlm run: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from exactlm.cli.option import add_generation, add_model, open_llm, print_json, read_input, read_params
from exactlm.errors import ConfigError, ReceiptError
from exactlm.prompt import Prompt
from exactlm.receipt import Receipt
from exactlm.signature import read_key, sign

EPILOG = """examples:
  exactlm run smollm2 "The capital of France is"
  exactlm run smollm2 "Write a haiku about rain." --chat --max-tokens 60
  exactlm run smollm2 "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
  exactlm run smollm2 "2 + 2 =" --json | jq -r .digest
  exactlm run smollm2 "Who signs?" --receipt answer.json && exactlm verify answer.json smollm2
  cat contract.txt | exactlm run smollm2 - --max-tokens 100"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "run",
        help="answer one prompt",
        description="Answer one prompt. The text goes to standard output as it is made.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt, or - to read it from standard input")
    add_generation(parser, 128)
    parser.add_argument(
        "--chat", action="store_true", help="wrap the prompt in the model's chat template, as a user's message"
    )
    parser.add_argument("--receipt", metavar="FILE", help="write a receipt of the answer, for `exactlm verify`")
    parser.add_argument("--sign-key", metavar="FILE", help="sign the receipt with this key, made by `exactlm keygen`")
    parser.add_argument("--json", action="store_true", help="print ids, text, digest and fingerprint as JSON instead")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    params = read_params(options)
    if options.sign_key and not options.receipt:
        raise ConfigError("--sign-key signs a receipt: give --receipt FILE too")
    key = read_key(options.sign_key) if options.sign_key else None
    if options.seed is None and not params.is_greedy:
        params = params.seeded()
        print(f"exactlm: --seed {params.seed} gives this answer again", file=sys.stderr)
    prompt = read_input(sys.stdin.read) if options.prompt == "-" else options.prompt
    llm = open_llm(options)
    asked: Prompt = llm.read_chat([{"role": "user", "content": prompt}]) if options.chat else prompt
    if options.json or options.receipt:
        result = llm.generate([asked], params, receipt=options.receipt is not None)[0]
        answer = result.outputs[0]
        if answer.receipt is not None:
            _write_receipt(options.receipt, answer.receipt, key)
            print(f"exactlm run: receipt written to {options.receipt}", file=sys.stderr)
        if not options.json:
            print(answer.text)
            _tell_cut(answer.finish_reason, options)
            return 0
        print_json(
            {
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "seed": result.seed,
                "digest": answer.digest,
                "prompt_token_ids": result.prompt_token_ids,
                "fingerprint": llm.fingerprint,
            }
        )
        return 0
    reason = None
    for delta in llm.stream(asked, params):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        reason = delta.finish_reason
    sys.stdout.write("\n")
    _tell_cut(reason, options)
    return 0


def _tell_cut(finish_reason: str | None, options: argparse.Namespace) -> None:
    """A constrained text that was cut is not what was asked for."""
    if finish_reason == "length" and (options.regex or options.json_schema or options.grammar):
        print(f"exactlm run: cut at --max-tokens {options.max_tokens}: the text is not complete", file=sys.stderr)


def _write_receipt(path: str, receipt: Receipt, key: Any) -> None:
    """Writes it whole or not at all: a receipt that is half there would be worse than none."""
    signed = sign(receipt, key) if key is not None else receipt
    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(json.dumps(signed, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise ReceiptError(f"{path}: the receipt cannot be written: {error.strerror}") from None
