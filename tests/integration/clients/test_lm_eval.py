"""lm-evaluation-harness, `local-completions`, on 200 items of BoolQ: every log-likelihood is the one of LLM.score,
at batch 1, 4 and 32. In the interpreter EXACTLM_CLIENTS_PYTHON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlm import LLM
from tests.conftest import data_file, model_directory
from tests.integration.clients.conftest import find_python
from tests.integration.load.server import capacity
from tests.integration.server.process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_ITEMS = 200
CHOICES = ["no", "yes"]
TASK = """task: boolq_local
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {file}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{passage}}}}\\nQuestion: {{{{question}}}}?\\nAnswer:"
doc_to_target: target
doc_to_choice: ["no", "yes"]
metric_list:
  - metric: acc
metadata:
  version: 1
"""


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    lines = data_file("boolq_val.jsonl").read_text("utf-8").splitlines()[:NUM_ITEMS]
    rows = [json.loads(line) for line in lines]
    return [{**row, "target": int(row["label"] in (True, "true", 1))} for row in rows]


@pytest.fixture(scope="module")
def task(items: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boolq")
    rows = "".join(json.dumps(item) + "\n" for item in items)
    (folder / "items.jsonl").write_text(rows, encoding="utf-8")
    (folder / "boolq_local.yaml").write_text(TASK.format(file=folder / "items.jsonl"))
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(model_directory("int8"), *capacity(max_batch=32), "--model-name", "smollm2") as started:
        yield started


@pytest.fixture(scope="module")
def expected(items: list[dict[str, Any]]) -> list[list[float]]:
    """Log-likelihood of each choice of each item, summed in the order of its tokens."""
    llm = LLM(model_directory("int8"), threads=1)
    return [[_score(llm, item, " " + choice) for choice in CHOICES] for item in items]


def _score(llm: LLM, item: dict[str, Any], continuation: str) -> float:
    context = f"{item['passage']}\nQuestion: {item['question']}?\nAnswer:"
    ids, begin = llm.tokenizer.encode(context + continuation), len(llm.tokenizer.encode(context))
    return sum(score for score in llm.score(ids)[begin:] if score is not None)


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_log_likelihoods_are_those_of_score_at_every_batch(
    server: ServerProcess, task: Path, expected: list[list[float]], tmp_path: Path, batch: int
) -> None:
    python = find_python("lm_eval", "transformers")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    shutil.copy(model_directory("int8") / "tokenizer.json", tokenizer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    arguments = {
        "model": "smollm2",
        "base_url": f"{server.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(tokenizer),
        "num_concurrent": 4,
        "max_retries": 1,
    }
    command = [python, "-m", "lm_eval", "--model", "local-completions", "--tasks", "boolq_local"]
    command += ["--include_path", str(task), "--batch_size", str(batch), "--log_samples", "--output_path"]
    command += [str(tmp_path / "out"), "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "*"}
    done = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    (file,) = (tmp_path / "out").rglob("samples_boolq_local_*.jsonl")
    samples = sorted(map(json.loads, file.read_text("utf-8").splitlines()), key=lambda sample: sample["doc_id"])
    found = [[float(response[0][0]) for response in sample["resps"]] for sample in samples]
    assert found == expected
