"""How much faster answers are checked than made: the time of generating them singly over that of verifying them all.

    python benchmarks/verify.py [MODEL] [--answers 50] [--tokens 256] [--threads 2] [--json FILE]

Answers are drawn at temperature 0.8, as a decoded sequence costs the same either way. The prefix cache is forgotten
before verifying.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from exactlm import LLM, SamplingParams
from exactlm.proof.verify import verify_receipts


def main() -> int:
    """Prints the seconds of both and their ratio; exit status 1 if a receipt does not verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=".cache/models/smollm2-135m-int8")
    parser.add_argument("--answers", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    llm = LLM(options.model, threads=options.threads, warmup=1)
    receipts = []
    begin = time.perf_counter()
    for i in range(options.answers):
        params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0.8, seed=i)
        receipts.append(llm.generate(f"Write about the number {i}.", params, receipt=True)[0].outputs[0].receipt)
    generating = time.perf_counter() - begin
    other = LLM(options.model, threads=options.threads, warmup=1)
    begin = time.perf_counter()
    verdicts = list(verify_receipts(other, receipts))
    verifying = time.perf_counter() - begin
    identical = sum(v.is_identical for v in verdicts)
    result = {
        "answers": options.answers,
        "tokens": options.tokens,
        "threads": options.threads,
        "generating_seconds": generating,
        "verifying_seconds": verifying,
        "ratio": generating / verifying,
        "identical": identical,
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if identical == options.answers else 1


if __name__ == "__main__":
    sys.exit(main())
