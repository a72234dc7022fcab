"""The float oracle: a program that writes transformers' float32 logits for given token ids. Knows nothing of exactlm.

    python oracle.py MODEL_DIR IDS.npy OUT.npy [--gguf-file NAME] [--decode]

IDS: int64 [N, T], N sequences. OUT: float32 [N, T, V]. --decode: one token at a time with transformers' KV cache, as
dynamic RoPE scaling is defined here; otherwise each sequence in one pass.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("ids", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf-file")
    parser.add_argument("--decode", action="store_true")
    a = parser.parse_args()
    source = {"gguf_file": a.gguf_file} if a.gguf_file else {}
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, **source).eval()
    ids = np.load(a.ids)
    shape = (*ids.shape, model.config.vocab_size)
    out = np.lib.format.open_memmap(a.out, mode="w+", dtype=np.float32, shape=shape)
    with torch.inference_mode():
        for i, row in enumerate(ids):
            out[i] = decode(model, row) if a.decode else model(torch.from_numpy(row)[None]).logits[0].numpy()
    out.flush()


def decode(model, row):
    """Logits [T, V] of one sequence, token by token."""
    cache, steps = None, []
    for token in row:
        step = model(torch.tensor([[int(token)]]), past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        steps.append(step.logits[0, 0].numpy())
    return np.stack(steps)


if __name__ == "__main__":
    main()
