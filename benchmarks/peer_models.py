"""Makes the GGUF files that llama.cpp is timed with: the same weights as ours, dequantised once, as Q8_0 and as F16.

Only matrices change their type; names, metadata, tokenizer and vectors are those of the source file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / ".cache" / "source" / "SmolLM2-135M-Instruct.Q4_1.gguf"
# Written by the writer itself, or true of the source's types only.
OWN_KEYS = ("general.architecture", "general.file_type", "general.quantization_version")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "peer")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16):
        target = a.out / f"smollm2-135m-{kind.name}.gguf"
        write_model(GGUFReader(a.source), target, kind)
        print(f"{target} {target.stat().st_size} bytes")


def write_model(source: GGUFReader, target: Path, kind: GGMLQuantizationType) -> None:
    """Write `source` with every matrix stored as `kind`."""
    writer = GGUFWriter(target, source.fields["general.architecture"].contents())
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key in OWN_KEYS:
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in source.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if len(tensor.shape) == 2:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
