"""An audit's report: JSON for programs, one HTML page for people. Knows findings; does not know how they were made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from exactlm.audit import plot
from exactlm.audit.analysis import Analysis, Finding
from exactlm.audit.comparison import common_length, compare
from exactlm.audit.prompt import AuditPrompt
from exactlm.audit.statistic import Mean, Share
from exactlm.audit.target import Unvaried
from exactlm.errors import ConfigError

REPORT_VERSION = 1
MAX_EXAMPLES = 4


@dataclass(frozen=True)
class Report:
    """What a report tells besides the findings. settings: of the audit, by option."""

    target: dict[str, str]
    settings: dict[str, Any]
    prompts: Sequence[AuditPrompt]
    unvaried: Sequence[Unvaried]
    analysis: Analysis
    notes: dict[str, dict[str, int]]

    @property
    def verdict(self) -> str:
        """One of "same", "numbers" (texts the same, numbers told beside them not), "different", and "incomplete": no
        difference seen, but requests failed."""
        findings = [f for f in self.analysis.findings if f.condition.role in ("base", "load")]
        if any(f.texts.count for f in findings):
            return "different"
        if any(f.numbers.count for f in findings):
            return "numbers"
        is_complete = all(f.num_failed == 0 and f.prompts for f in findings) and findings
        return "same" if is_complete else "incomplete"

    @property
    def num_failed(self) -> int:
        return sum(f.num_failed for f in self.analysis.findings)

    @property
    def is_seed_ignored(self) -> bool:
        """Whether no answer changed with another seed: then equal answers under one seed say nothing."""
        controls = [f for f in self.analysis.findings if f.condition.role == "control" and f.texts.total]
        return bool(controls) and all(f.texts.count == 0 for f in controls)


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "report": REPORT_VERSION,
        "verdict": report.verdict,
        "target": report.target,
        "settings": report.settings,
        "num_failed": report.num_failed,
        "seed_ignored": report.is_seed_ignored,
        "summaries": [asdict(summary) for summary in report.analysis.summaries],
        "conditions": [_plain(finding, report) for finding in report.analysis.findings],
        "unvaried": [asdict_of(entry) for entry in report.unvaried],
        "prompts": [asdict(prompt) for prompt in report.prompts],
    }


def asdict_of(entry: Unvaried) -> dict[str, str]:
    """A named tuple as an object."""
    return dict(entry._asdict())


def _plain(finding: Finding, report: Report) -> dict[str, Any]:
    condition = finding.condition
    values = asdict(finding)
    values["condition"] = {
        "name": condition.name,
        "factor": condition.factor,
        "text": condition.text,
        "group": condition.group,
        "role": condition.role,
        "requests": condition.num_observed,
        "at_once": max(len(wave) for wave in condition.waves),
    }
    return values | {"note": report.notes.get(condition.name, {})}


def write_report(report: Report, html: Path, told: dict[str, Any]) -> None:
    """Writes the page, and the JSON beside it. ConfigError if they cannot be written."""
    page = to_html(report)
    try:
        # An engine may answer with half a surrogate pair: JSON can spell it, a page cannot.
        plain = json.dumps(told, ensure_ascii=False, indent=1) + "\n"
        html.with_suffix(".json").write_text(plain, encoding="utf-8", errors="backslashreplace")
        html.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{html}: the report cannot be written: {error.strerror}") from None


def to_html(report: Report) -> str:
    """One self-contained page: no script, nothing loaded from elsewhere."""
    from jinja2 import Environment  # every command reads this module, this one alone makes a page

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filters = {"count": tell_count, "share": tell_share, "interval": tell_interval, "mean": tell_mean}
    environment.filters |= filters | {"size": tell_size, "cosine": tell_cosine}
    source = files("exactlm.audit").joinpath("report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report,
        findings=report.analysis.findings,
        has_scores=any(f.num_unscored is not None for f in report.analysis.findings),
        has_logits=any(f.cosine is not None for f in report.analysis.findings),
        examples=list_examples(report),
        plots=_draw(report),
    )


def list_examples(report: Report) -> list[dict[str, str]]:
    """Some pairs of answers that should be one: what is common, and the two ways on."""
    examples: list[dict[str, str]] = []
    told: set[int] = set()
    for finding in report.analysis.findings:
        if finding.condition.role not in ("base", "load"):
            continue
        for one in finding.prompts:
            changed = report.analysis.changed_of(finding.condition, one.prompt)
            base = report.analysis.base_of(finding.condition.group, one.prompt)
            if changed is None or base is None or one.prompt in told or len(examples) == MAX_EXAMPLES:
                continue
            told.add(one.prompt)
            cut = common_length(base.text, changed.text)
            where = compare(base, changed)
            examples.append(
                {
                    "prompt": report.prompts[one.prompt].name,
                    "condition": finding.condition.name,
                    "where": f"{where.unit} {where.position}",
                    "common": base.text[:cut],
                    "base": base.text[cut:],
                    "other": changed.text[cut:],
                }
            )
    return examples


def _draw(report: Report) -> list[tuple[str, str]]:
    """Headings and SVG of the plots that have something to show."""
    findings = [f for f in report.analysis.findings if f.condition.role != "control"]
    plots = [("What changed", plot.plot_shares(findings))]
    if any(p.first is not None for f in findings for p in f.prompts):
        plots.append(("Where answers part", plot.plot_first(findings)))
    names = [prompt.name for prompt in report.prompts]
    plots.append(("How many different answers", plot.plot_unique(findings, names)))
    for heading, values in (
        ("Spread of log-probabilities", [f.max_spread for f in findings]),
        ("Difference of logits", [f.max_difference for f in findings]),
        ("Deviation of scores", [f.max_deviation for f in findings]),
    ):
        if any(v is not None for v in values):
            plots.append((heading, plot.plot_sizes(findings, values, f"{heading.lower()}, largest")))
    return plots


def tell_count(share: Share) -> str:
    """ "3 of 8"; a dash where there was nothing to compare."""
    return f"{share.count} of {share.total}" if share.total else "–"


def tell_share(share: Share) -> str:
    """ "3 of 8 (14-69 %)"; a dash where there was nothing to compare."""
    return f"{tell_count(share)} ({tell_interval(share)})" if share.total else "–"


def tell_interval(of: Share | Mean) -> str:
    """ "14-69 %" of a share, "1.00-1.50" of a mean; nothing where there is none."""
    if of.low is None or of.high is None:
        return ""
    if isinstance(of, Share):
        return f"{100 * of.low:.0f}–{100 * of.high:.0f} %"
    return f"{of.low:.3g}–{of.high:.3g}"


def tell_mean(mean: Mean) -> str:
    """ "1.25"; a dash where there was nothing to average."""
    return "–" if mean.mean is None else f"{mean.mean:.3g}"


def tell_size(value: float | None) -> str:
    """ "0" only for exactly 0."""
    return "–" if value is None else "0" if value == 0 else f"{value:.2g}"


def tell_cosine(value: float | None) -> str:
    """ "1" only for exactly 1; near it, how far it is from it."""
    if value is None:
        return "–"
    return "1" if value == 1 else f"1 − {1 - value:.1e}" if value > 1 - 1e-4 else f"{value:.5f}"
