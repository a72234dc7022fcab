"""Digests of models' logits, KV bytes and tokens, written on one machine and checked on another that has only NumPy.

python -m tests.golden.replay write FILE MODEL ..     on this machine, with its fastest instruction set
python -m tests.golden.replay check FILE MODEL ..     elsewhere, every instruction set; exit status 1 on a difference
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from exactlm.format.reader import open_model
from exactlm.kernels.select import REFERENCE, available_isas
from tests.invariance.harness import Setting, check_alive, make_engine, run

SMALL_LAYERS = 8  # models of more layers are real ones: fewer prompts, and not every instruction set


def digests(path: Path, isa: str, threads: int) -> list[str]:
    """One digest per prompt of fixed ids, with neighbours and in chunks."""
    num_layers, limit = open_model(path).config["num_layers"], open_model(path).config["num_tokens"]
    lengths = (1, 7, 33, 70) if num_layers <= SMALL_LAYERS else (1, 3)
    rng = np.random.Generator(np.random.Philox(key=5))
    prompts = [rng.integers(0, limit, n).tolist() for n in lengths]
    setting = Setting(isa, threads, chunk_tokens=16, neighbours=1)
    engine = make_engine(path, setting)
    found = run(engine, prompts, setting)
    check_alive(engine, prompts, found)
    return found


def main() -> int:
    """See the module's text."""
    mode, file, *models = sys.argv[1:]
    if mode == "write":
        pinned = {Path(m).name: digests(Path(m), available_isas()[-1], 2) for m in models}
        Path(file).write_text(json.dumps(pinned, indent=1))
        return 0
    pinned = json.loads(Path(file).read_text())
    different = 0
    for model in map(Path, models):
        is_small = open_model(model).config["num_layers"] <= SMALL_LAYERS
        isas = [isa for isa in available_isas() if is_small or isa not in (REFERENCE, "scalar")]
        for isa in isas:
            is_same = digests(model, isa, 2) == pinned[model.name]
            different += not is_same
            sys.stdout.write(f"{model.name} {isa}: {'identical' if is_same else 'DIFFERENT'}\n")
            sys.stdout.flush()
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
