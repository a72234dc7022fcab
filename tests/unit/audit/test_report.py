"""Reports of whatever engines answer can be written."""

from __future__ import annotations

import json
from pathlib import Path

from exactlm.audit.analysis import Analysis
from exactlm.audit.condition import Condition
from exactlm.audit.observation import Observation
from exactlm.audit.prompt import AuditPrompt
from exactlm.audit.report import Report, to_json, write_report


def test_half_a_surrogate_pair_is_told(tmp_path: Path) -> None:
    conditions = [Condition("base", "repeat", "", ((),), role="base"), Condition("load", "copies", "", ((),))]
    seen = [Observation("base", 0, "\ud83d a", ["\ud83d", " a"]), Observation("load", 0, "\ud83d b", ["\ud83d", " b"])]
    report = Report({"engine": "\udc80"}, {}, [AuditPrompt("x", "x")], (), Analysis(conditions, seen, None), {})
    write_report(report, tmp_path / "a.html", to_json(report))
    assert json.loads((tmp_path / "a.json").read_text())["target"] == {"engine": "\udc80"}
    assert "<pre>? <mark>a</mark></pre>" in (tmp_path / "a.html").read_text()
