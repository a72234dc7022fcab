"""Essay grading: a rubric judge gives each essay 1 to 5, as the expected value of its own next-token distribution.

Essays come from a JSON-lines file with prompt, essay and an optional human score. Where there is none, the model that
is measured can write them: its answers to the "writing" prompts of MT-bench, drawn with stated seeds.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from exactlm.bench.data import DataSource, read_rows
from exactlm.bench.question import Answer, Choice
from exactlm.bench.task.base import Item, Task, Verdict, most_likely
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ConfigError
from exactlm.llm import LLM

GRADES = ("1", "2", "3", "4", "5")
NUM_VARIANTS = 10  # essays for each prompt
ESSAY_TOKENS = 200


class Essays(Task):
    """label: the most likely grade. value: the expected grade, 1 to 5. Human scores, where given, are only kept."""

    name = "essays"
    template = (
        "Grade the essay from 1 (poor) to 5 (excellent). Rubric: does it do what the task asks; is it clear and well "
        "organised; is the language correct.\n\nTask: {prompt}\n\nEssay: {essay}\n\nGrade (1-5): "
    )

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Item]:
        items = []
        for index, row in enumerate(read_rows(self._path)):
            for key in ("prompt", "essay"):
                if not isinstance(row.get(key), str):
                    raise ConfigError(f"{self._path}: essay {index} has no text {key!r}")
            prompt = self.template.format(prompt=row["prompt"], essay=row["essay"])
            items.append(Item(str(index), Choice(prompt, GRADES), row.get("score")))
        return items

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.scores is not None
        best = max(answer.scores)
        weights = [math.exp(score - best) for score in answer.scores]
        value = math.fsum(w * g for g, w in enumerate(weights, 1)) / math.fsum(weights)
        return Verdict(GRADES[most_likely(answer)], value)


def write_essays(llm: LLM, data: DataSource, path: Path) -> None:
    """Writes NUM_VARIANTS essays for every writing prompt, seeds from 0, temperature 0.8: the same bytes everywhere."""
    rows = [r for r in data.read("mt_bench_question.jsonl") if r["category"] == "writing"]
    prompts = [row["turns"][0] for row in rows for _ in range(NUM_VARIANTS)]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=ESSAY_TOKENS) for i in range(len(prompts))]
    outputs = llm.chat([[{"role": "user", "content": p}] for p in prompts], params)
    lines = [json.dumps({"prompt": p, "essay": o.outputs[0].text}) for p, o in zip(prompts, outputs, strict=True)]
    part = path.with_name(f".{path.name}.part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)
