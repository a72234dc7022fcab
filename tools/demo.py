"""The promise, shown: the same prompts under everything that may vary, one digest for each prompt.

python tools/demo.py MODEL_DIR [MODEL_DIR ..]
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from exactlm import LLM, SamplingParams
from exactlm.kernels.select import REFERENCE, available_isas

PROMPTS = (
    "The capital of France is",
    "Is it true that honey never spoils? Answer yes or no:",
    "def is_prime(n):",
    "The party of the first part shall indemnify",
)
TOKENS = 8
SLOW = (REFERENCE, "scalar")


@dataclass(frozen=True)
class Setting:
    """One way to run the prompts. None of these is part of the promise's function."""

    label: str
    options: dict[str, object] = field(default_factory=dict)
    shared: bool = False
    prompts: int = len(PROMPTS)


def settings() -> list[Setting]:
    """Alone, in a batch with strangers, other chunks, other threads, every instruction set of this machine."""
    isas = available_isas()
    rows = [
        Setting("alone, one thread", {"threads": 1}),
        Setting("alone, two threads", {"threads": 2}),
        Setting("alone, three threads, prompt token by token", {"threads": 3, "chunk_tokens": 1}),
        Setting("alone, prompt in chunks of 3", {"threads": 2, "chunk_tokens": 3}),
        Setting("together with 28 other prompts", {"threads": 2}, shared=True),
        Setting(
            "together, chunks of 7, at most 5 at once", {"threads": 2, "chunk_tokens": 7, "max_batch": 5}, shared=True
        ),
    ]
    rows += [Setting(f"instruction set {isa}", {"threads": 2, "isa": isa}) for isa in isas if isa not in SLOW]
    rows.append(Setting("instruction set scalar (portable C++)", {"threads": 2, "isa": "scalar"}))
    rows.append(Setting("NumPy reference: the definition, slow", {"isa": REFERENCE}, prompts=1))
    return rows


def run(model: str, setting: Setting) -> list[str]:
    """One digest per prompt: of the answer (ids and what determined every step's logits) and of the prompt's logits."""
    llm = LLM(model, **setting.options)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    chosen = list(PROMPTS[: setting.prompts])
    if not setting.shared:
        outputs = [llm.generate(p, params)[0] for p in chosen]
    else:
        strangers = [p + " " + "and so on " * n for n in range(7) for p in PROMPTS]
        mixed = chosen + strangers
        order = random.Random(7).sample(range(len(mixed)), len(mixed))
        answers = llm.generate([mixed[i] for i in order], params)
        outputs = [answers[order.index(i)] for i in range(len(chosen))]
    digests = []
    for output in outputs:
        digest = hashlib.sha256(llm.logits(output.prompt_token_ids + output.outputs[0].token_ids[:2]).tobytes())
        digest.update(output.outputs[0].digest.encode())
        digests.append(digest.hexdigest()[:16])
    return digests


def show(console: Console, model: str) -> bool:
    """Runs all settings on one model; prints the table and says whether all digests agree."""
    rows = settings()
    table = Table(title=model)
    for heading in ("setting", *(f"prompt {i + 1}" for i in range(len(PROMPTS))), "seconds"):
        table.add_column(heading, overflow="fold")  # never cut: the digests are what is compared
    results: list[list[str]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for setting in progress.track(rows, description="running"):
            begin = time.perf_counter()
            digests = run(model, setting)
            results.append(digests)
            blanks = [""] * (len(PROMPTS) - len(digests))
            if not console.is_terminal:  # a log shows that it goes on
                print(f"{model}: {setting.label}", file=sys.stderr, flush=True)
            table.add_row(setting.label, *digests, *blanks, f"{time.perf_counter() - begin:.1f}")
    console.print(table)
    is_same = all(digests == results[0][: len(digests)] for digests in results)
    if is_same:
        console.print(
            f"[bold green]IDENTICAL[/]: {len(rows)} settings, one digest per prompt, to the last bit of every logit."
        )
    else:
        console.print("[bold red]NOT IDENTICAL[/]: this must never happen; please report it with the table above.")
    return is_same


def main() -> int:
    """Exit status 0 if everything agreed."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    first = LLM(sys.argv[1])
    question = "What is the capital of France?"
    answer = first.chat([{"role": "user", "content": question}], SamplingParams(max_tokens=40))[0].outputs[0]
    console.print(f"[bold]{question}[/]\n{answer.text}\n[dim]digest {answer.digest}[/]\n")
    results = [show(console, model) for model in sys.argv[1:]]  # all of them, also after a failure
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
