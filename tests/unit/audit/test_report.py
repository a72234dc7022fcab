"""Reports of whatever engines answer can be written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from exactlm.audit.analysis import Analysis, Scorer
from exactlm.audit.condition import Condition
from exactlm.audit.observation import Observation
from exactlm.audit.prompt import AuditPrompt
from exactlm.audit.report import Report, tell_cosine, to_html, to_json, write_report


def test_half_a_surrogate_pair_is_told(tmp_path: Path) -> None:
    conditions = [Condition("base", "repeat", "", ((),), role="base"), Condition("load", "copies", "", ((),))]
    seen = [Observation("base", 0, "\ud83d a", ["\ud83d", " a"]), Observation("load", 0, "\ud83d b", ["\ud83d", " b"])]
    report = Report({"engine": "\udc80"}, {}, [AuditPrompt("x", "x")], (), Analysis(conditions, seen, None), {})
    write_report(report, tmp_path / "a.html", to_json(report))
    assert json.loads((tmp_path / "a.json").read_text())["target"] == {"engine": "\udc80"}
    assert "<pre>? <mark>a</mark></pre>" in (tmp_path / "a.html").read_text()


def page_of(observations: list[Observation], scorer: Scorer | None = None) -> str:
    conditions = [Condition("base", "repeat", "", ((),), role="base"), Condition("load", "copies", "", ((),))]
    prompts = [AuditPrompt(name, name) for name in ("x", "y")]
    return to_html(Report({"engine": "e"}, {}, prompts, (), Analysis(conditions, observations, scorer), {}))


def cells_of(page: str) -> list[dict[str, str]]:
    """The findings' figures by the name of their column, as a reader sees them."""
    table = page[page.index('<table class="findings">') : page.index("</table>")]
    head, *rows = re.findall("<tr>(.*?)</tr>", table, re.S)
    names = re.findall("<th>(.*?)</th>", head, re.S)
    made = []
    for row in rows:
        found = re.findall(r'<td class="figure[^"]*" data-name="([^"]*)">(.*?)</td>', row, re.S)
        assert ["condition", *(name for name, _ in found)] == names  # a narrow page has the names in the cells alone
        made.append({name: " ".join(re.sub("<[^>]*>", " ", value).split()) for name, value in found})
    return made


def test_every_figure_has_its_interval() -> None:
    base = [
        Observation("base", i, "7 b", ["7", " b"], [-1.0, -1.0], "d", max_difference=0.0, cosine=1.0) for i in (0, 1)
    ]
    load = [
        Observation("load", 0, "7 b", ["7", " b"], [-1.0, -1.5], "e", max_difference=0.5, cosine=0.5),
        Observation("load", 0, "5 b", ["5", " b"], [-1.0, -1.0], "f", max_difference=1.0, cosine=0.25),
        Observation("load", 1, "7 b", ["7", " b"], [-1.0, -1.0], "d", max_difference=0.0, cosine=1.0),
    ]
    _, found = cells_of(page_of([*base, *load], Scorer(r"\d")))
    assert found == {
        "answers": "3",
        "failed": "0",
        "texts changed": "1 of 2 9–91 %",
        "numbers changed": "1 of 2 9–91 %",
        "different answers, most": "2 mean 1.5 (1–2)",
        "first differs at": "token 0 mean 0",
        "log-probability spread": "0.5 mean 0.25 (0–0.5)",
        "logits: largest difference": "1 mean 0.5 (0–1)",
        "logits: smallest cosine": "0.25000 mean 0.62500 (0.25000 to 1)",
        "score deviation, largest": "1.2 mean 0.577 (0–1.15)",
    }


def test_where_nothing_is_told_there_are_dashes() -> None:
    _, found = cells_of(page_of([Observation("base", 0, "a"), Observation("load", 0, "a")]))
    assert found["numbers changed"] == found["first differs at"] == found["log-probability spread"] == "–"
    assert "logits: smallest cosine" not in found


@pytest.mark.parametrize(
    ("cosine", "text"),
    [
        (1.0, "1"),
        (1 - 2**-53, "1 − 1.1e-16"),
        (0.9999999999939826, "1 − 6.0e-12"),
        (0.9978328, "0.99783"),
        (0, "0.00000"),
    ],
)
def test_a_cosine_is_1_only_where_it_is(cosine: float, text: str) -> None:
    assert tell_cosine(cosine) == text
