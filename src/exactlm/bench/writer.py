"""Has a model write essays: its answers to the "writing" prompts of MT-bench, drawn with stated seeds. Each depends on
the model, its prompt and its seed alone, so they may be written in any order and in several goes.

Knows nothing of what becomes of the essays.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exactlm.bench.data import DataSource, read_rows
from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ConfigError
from exactlm.format.digest import sha256_json
from exactlm.journal import JournalFile
from exactlm.llm import LLM, Ticket

NUM_VARIANTS = 10  # essays for each prompt
MAX_TOKENS = 200
TEMPERATURE = 0.8
NUM_STREAMS = 16  # essays under way at once: so many an interruption costs at most
SOURCE = "mt_bench_question.jsonl"


@dataclass(frozen=True)
class Assignment:
    """One essay to be written."""

    prompt: str
    seed: int


def read_assignments(data: DataSource) -> list[Assignment]:
    """NUM_VARIANTS for every writing prompt, in the data's order, seeds from 0. ConfigError where a row is of another
    form, or none is a writing prompt."""
    try:
        given = [row["turns"][0] for row in data.read(SOURCE) if row["category"] == "writing"]
    except (LookupError, TypeError) as error:
        raise ConfigError(f"{SOURCE}: a row is not as the essays need it: {error!r:.200}") from None
    if not given or not all(isinstance(prompt, str) for prompt in given):
        raise ConfigError(f"{SOURCE}: the essays need rows of category 'writing' with a text as first of 'turns'")
    prompts = [prompt for prompt in given for _ in range(NUM_VARIANTS)]
    return [Assignment(prompt, seed) for seed, prompt in enumerate(prompts)]


def digest_assignments(assignments: Sequence[Assignment], fingerprint: str) -> str:
    """SHA-256 of everything that the essays depend on: it stands for their texts, written or not."""
    sampling = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS}
    return sha256_json({"model": fingerprint, "essays": [vars(a) for a in assignments], **sampling})


def write_essays(
    open_llm: Callable[[], LLM], assignments: Mapping[int, Assignment]
) -> Generator[tuple[int, str], None, None]:
    """Each essay under the index of its assignment, as soon as it is finished. open_llm: is called if there is any."""
    if not assignments:
        return
    llm, waiting, running = open_llm(), deque(assignments.items()), dict[int, Ticket]()
    try:
        while waiting or running:
            while waiting and len(running) < NUM_STREAMS:
                index, given = waiting.popleft()
                params = SamplingParams(temperature=TEMPERATURE, seed=given.seed, max_tokens=MAX_TOKENS)
                running[index] = llm.submit(llm.read_chat([{"role": "user", "content": given.prompt}]), params)
            llm.step()
            for index, ticket in list(running.items()):
                ticket.poll()
                if ticket.is_done:
                    yield index, running.pop(index).output().outputs[0].text
    finally:
        for ticket in running.values():
            ticket.cancel()


class _PartFile(JournalFile):
    """Is removed by the run that has written all essays; one that waited at its door may then lock what has gone."""

    @property
    def is_at_path(self) -> bool:
        """Whether the path leads to the file that is open: the lock of another file keeps nobody out."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


class EssayFile:
    """The essays of one model as JSON lines, in the order of the assignments: the first so many of them.

    It only ever holds whole lines. Essays that are finished while it is made stand in a journal beside it, `.part`,
    until all are there: a run may end at any moment, and the next one goes on. Two runs cannot write it at once.
    """

    def __init__(self, path: Path, assignments: Sequence[Assignment], fingerprint: str) -> None:
        self.path, self.digest = path, digest_assignments(assignments, fingerprint)
        self._assignments = assignments

    def complete(self, count: int, open_llm: Callable[[], LLM], tell: Callable[[int], None]) -> None:
        """Writes what is missing of the first `count` essays. open_llm: is called where any is missing. tell: is
        called with the number of essays that are there besides. ConfigError where a file is of other prompts or of
        another run, or is being written."""
        advice = "wait for it, give another --out, or move the file away"
        header = {"essays": self.path.name, "assignments_sha256": self.digest}
        while len(self._read()) < count:
            with contextlib.closing(_PartFile(self.path.with_suffix(".part"), header, advice)) as journal:
                if not journal.is_at_path:
                    continue
                if len(self._read()) < count:  # another run may have come first, and have written more
                    self._write_missing(journal, count, open_llm, tell)
                if len(self._read()) == len(self._assignments):
                    journal.path.unlink(missing_ok=True)

    def _write_missing(
        self, journal: JournalFile, count: int, open_llm: Callable[[], LLM], tell: Callable[[int], None]
    ) -> None:
        ready = self._read_part(journal) | dict(enumerate(self._read()))
        missing = {i: self._assignments[i] for i in range(count) if i not in ready}
        tell(count - len(missing))
        with contextlib.closing(write_essays(open_llm, missing)) as written:
            for index, essay in written:
                journal.append([{"index": index, "essay": essay}])
                ready[index] = essay
                tell(1)
        self._save([ready[i] for i in range(count)])

    def _read(self) -> list[str]:
        """Essays that the file holds."""
        if not self.path.exists():
            return []
        rows = read_rows(self.path)
        prompts = [a.prompt for a in self._assignments[: len(rows)]]
        if [row.get("prompt") for row in rows] != prompts or not all(isinstance(row.get("essay"), str) for row in rows):
            raise ConfigError(
                f"{self.path}: holds other essays than this model writes for the prompts of {SOURCE}: move it away or "
                "give another --out; --essays FILE grades essays of your own"
            )
        return [row["essay"] for row in rows]

    def _read_part(self, journal: JournalFile) -> dict[int, str]:
        try:
            return {int(line["index"]): str(line["essay"]) for line in journal.lines}
        except (KeyError, TypeError, ValueError) as error:
            raise journal.refuse(f"holds what is no essay ({error!r:.100})") from None

    def _save(self, essays: Sequence[str]) -> None:
        lines = [json.dumps({"prompt": a.prompt, "essay": e}) for a, e in zip(self._assignments, essays, strict=False)]
        whole = self.path.with_name(f".{self.path.name}.whole")
        with whole.open("w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before the journal, which holds the same, may go
        whole.replace(self.path)
