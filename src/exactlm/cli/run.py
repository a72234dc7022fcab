"""exactlm run: one prompt, one answer."""

from __future__ import annotations

import argparse
import sys

from exactlm.cli.option import add_generation, add_model, open_llm, print_json, read_params

EPILOG = """examples:
  exactlm run smollm2 "The capital of France is"
  exactlm run smollm2 "Write a haiku about rain." --chat --max-tokens 60
  exactlm run smollm2 "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
  exactlm run smollm2 "2 + 2 =" --json | jq -r .digest
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
    parser.add_argument("--json", action="store_true", help="print ids, text, digest and fingerprint as JSON instead")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    params = read_params(options)
    if options.seed is None and not params.is_greedy:
        params = params.seeded()
        print(f"exactlm: --seed {params.seed} gives this answer again", file=sys.stderr)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    llm = open_llm(options)
    ids = llm.chat_ids([{"role": "user", "content": prompt}]) if options.chat else None
    if options.json:
        result = llm.generate([prompt if ids is None else ids], params)[0]
        answer = result.outputs[0]
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
    for delta in llm.stream(prompt if ids is None else ids, params):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0
