"""Receipts of a few answers of a model, one a line: made on one machine, to be verified on another.

python -m tests.golden.receipts MODEL > receipts.jsonl
"""

from __future__ import annotations

import json
import sys

from exactlm import LLM, SamplingParams

PARAMS = [
    SamplingParams(max_tokens=12, ignore_eos=True),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=2**63, top_p=0.95, min_p=0.001, n=2),
    SamplingParams(max_tokens=12, temperature=0.7, seed=5, top_k=40, repetition_penalty=1.1, stop=["zq"]),
]


def main() -> int:
    """Writes them to standard output."""
    llm = LLM(sys.argv[1])
    prompts = ["the thing in the hand", [5, 6, 7] * 12, "an"]
    for result in llm.generate(prompts, PARAMS, receipt=True):
        for answer in result.outputs:
            print(json.dumps(answer.receipt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
