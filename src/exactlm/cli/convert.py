"""exactlm convert: a checkpoint becomes a model directory."""

from __future__ import annotations

import argparse
from typing import Any

from exactlm.cli.option import print_json, print_rows
from exactlm.convert.converter import KV_CACHES, PRECISIONS, Converter, convert_to_deterministic
from exactlm.format.reader import open_model

EPILOG = """examples:
  exactlm convert ./Llama-2-7b-chat-hf -o ./deterministic-llama
  exactlm convert SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2-int8 --precision int8
  exactlm convert HuggingFaceTB/SmolLM2-135M-Instruct -o smollm2    # needs the extra `hub`

The same source gives the same bytes in every file, on any machine. An interrupted conversion leaves nothing behind."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "convert",
        help="convert a checkpoint (Hugging Face directory, .gguf file or hub id)",
        description="Convert a checkpoint to the deterministic format.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="Hugging Face directory, .gguf file, or hub id")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="model directory to write")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp16",
        help="weights: 16-bit fixed point, or 8-bit in groups of 32 (default: fp16)",
    )
    parser.add_argument(
        "--quant-method",
        choices=("none",),
        default="none",
        help="none: round each weight to the nearest code (default)",
    )
    parser.add_argument("--kv-cache", choices=KV_CACHES, default="int16", help="codes of the KV cache (default: int16)")
    parser.add_argument(
        "--attention-window",
        type=int,
        metavar="N",
        help="tokens each position sees; a smaller window is a different model (default: the model's own)",
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id (default: the hub's)")
    parser.add_argument("--overwrite", action="store_true", help="replace a model that stands at DIR")
    parser.add_argument("--json", action="store_true", help="print the conversion report as JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Runs the command."""
    converter = convert_to_deterministic(
        options.source,
        precision=options.precision,
        quant_method=options.quant_method,
        attention_window=options.attention_window,
        kv_cache=options.kv_cache,
        revision=options.revision,
    )
    path = converter.save_pretrained(options.output, overwrite=options.overwrite)
    fingerprint = open_model(path).fingerprint
    if options.json:
        print_json({"output": str(path), "fingerprint": fingerprint, "report": converter.report})
    else:
        _print(converter, str(path), fingerprint)
    return 0


def _print(converter: Converter, path: str, fingerprint: str) -> None:
    tensors: dict[str, dict[str, Any]] = converter.report["tensors"]
    matrices = {name: entry for name, entry in tensors.items() if "relative_error" in entry}
    worst = max(matrices, key=lambda name: float(matrices[name]["relative_error"]))
    exact = sum(bool(entry["exact"]) for entry in matrices.values())
    print_rows(
        [
            ("model", path),
            ("precision", converter.config.precision),
            ("tensors", f"{len(tensors)}; {exact} of the {len(matrices)} matrices are stored without any rounding"),
            ("largest error", f"{matrices[worst]['relative_error']:.1e} of the tensor's norm ({worst})"),
            ("fingerprint", fingerprint),
        ]
    )
