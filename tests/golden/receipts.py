"""Receipts of a few answers of a model, made on one machine and verified on another.

python -m tests.golden.receipts make FILE MODEL          with the fastest instruction set
python -m tests.golden.receipts check FILE MODEL ISA     exit status 1 if one is not identical
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from exactlm import LLM, SamplingParams
from exactlm.proof.verify import verify_receipts
from exactlm.receipt import read_receipts

PARAMS = [
    SamplingParams(max_tokens=12, ignore_eos=True),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=2**63, top_p=0.95, min_p=0.001, n=2),
    SamplingParams(max_tokens=12, temperature=0.7, seed=5, top_k=40, repetition_penalty=1.1, stop=["zq"]),
]


def main() -> int:
    """See the module's text."""
    mode, file, model, *isa = sys.argv[1:]
    if mode == "make":
        prompts = ["the thing in the hand", [5, 6, 7] * 12, "an"]
        results = LLM(model).generate(prompts, PARAMS, receipt=True)
        Path(file).write_text("".join(json.dumps(a.receipt) + "\n" for r in results for a in r.outputs))
        return 0
    verdicts = list(verify_receipts(LLM(model, isa=isa[0], threads=3, chunk_tokens=5), read_receipts(file)))
    identical = sum(v.is_identical for v in verdicts)
    sys.stdout.write(f"receipts of {Path(model).name} {isa[0]}: {identical} of {len(verdicts)} identical\n")
    return 0 if identical == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
