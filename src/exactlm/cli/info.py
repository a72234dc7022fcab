"""exactlm info: what a model directory holds, and whether it is what it says."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import track

from exactlm.cli.option import print_json, print_rows
from exactlm.format.reader import ModelDirectory, open_model
from exactlm.models.config import ModelConfig

EPILOG = """examples:
  exactlm info smollm2
  exactlm info smollm2 --no-verify --json

Recomputes the digest of every file and tensor; exit status 1 if one is not what the manifest says."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "info",
        help="show what a model directory holds and check its digests",
        description="Show what a model directory holds and check its digests.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="DIR", help="a model directory made by `exactlm convert`")
    parser.add_argument("--no-verify", action="store_true", help="do not recompute the digests")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    model = open_model(options.model)
    config = ModelConfig.from_dict(model.config, f"{options.model}/config.json")
    damaged: list[str] | None = None if options.no_verify else _verify(model)
    if options.json:
        print_json(
            {
                "fingerprint": model.fingerprint,
                "model_digest": model.model_digest,
                "spec_version": model.manifest["spec_version"],
                "config": config.to_dict(),
                "source": model.manifest["source"],
                "files": model.manifest["files"],
                "tensors": model.manifest["tensors"],
                "damaged": damaged,
            }
        )
    else:
        _print(model, config, damaged)
    return 1 if damaged else 0


def _verify(model: ModelDirectory) -> list[str]:
    total = len(model.manifest["files"]) + len(model.manifest["tensors"])
    console = Console(stderr=True)
    steps = track(
        model.verify(),
        "checking digests",
        total=total,
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    return [name for name, is_sound in steps if not is_sound]


def _print(model: ModelDirectory, config: ModelConfig, damaged: list[str] | None) -> None:
    c = config
    window = c.attention_window or "none"
    scaling = c.rope_scaling.kind if c.rope_scaling else "none"
    rows: list[tuple[str, object]] = [
        ("fingerprint", model.fingerprint),
        ("spec version", model.manifest["spec_version"]),
        (
            "architecture",
            f"{c.model_type}, {c.num_layers} layers, hidden {c.hidden_size}, feed-forward {c.intermediate_size}",
        ),
        (
            "attention",
            f"{c.num_heads} heads, {c.num_kv_heads} key/value heads of {c.head_dim}, window {window}",
        ),
        ("vocabulary", f"{c.num_tokens} tokens, {'tied' if c.tie_word_embeddings else 'own'} head"),
        (
            "context",
            f"{c.max_position_embeddings} tokens, RoPE base {c.rope_theta:g}, scaling {scaling}",
        ),
        ("precision", f"{c.precision}, KV cache {c.kv_cache}"),
        (
            "tensors",
            f"{len(model.manifest['tensors'])}, {model.manifest['files']['model.safetensors']['bytes']:,} bytes",
        ),
        ("source", ", ".join(f"{name} {digest[:16]}" for name, digest in model.manifest["source"]["files"].items())),
        (
            "digests",
            "not checked"
            if damaged is None
            else "DAMAGED: " + ", ".join(damaged)
            if damaged
            else "all as the manifest says",
        ),
    ]
    print_rows(rows)
