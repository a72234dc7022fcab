"""exactlm keygen: a key that signs receipts."""

from __future__ import annotations

import argparse

from exactlm.signature import write_key

EPILOG = """examples:
  exactlm keygen receipts.pem
  exactlm run smollm2 "The capital of France is" --receipt answer.json --sign-key receipts.pem

What is printed is the public key: give it to those who check (exactlm verify --public-key). The file is the private
one: keep it."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "keygen",
        help="make a key that signs receipts",
        description="Make an Ed25519 key that signs receipts; print its public half.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="where to write the private key; must not exist yet")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    print(write_key(options.file))
    return 0
