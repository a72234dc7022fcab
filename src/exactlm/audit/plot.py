"""The plots of a report, as SVG text for the page. Knows findings only; needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exactlm.audit.analysis import Finding
from exactlm.audit.statistic import Share
from exactlm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT, NUMBER, SAME, GRID = "#b3261e", "#e8a33d", "#1b7f5c", "#d8dce2"
ROW_HEIGHT = 0.3  # inches for a condition


def require_plots() -> None:
    """ConfigError, naming the extra, where matplotlib is not installed. Asked before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"a report needs the extra `audit` ({error}); install it: pip install 'exactlm[audit]'"
        ) from None


def plot_shares(findings: Sequence[Finding]) -> str:
    """Per condition: the share of prompts whose text, and whose numbers, changed, with 95 % intervals."""
    figure, axes = _make_rows(findings)
    for row, finding in enumerate(findings):
        _draw_share(axes, row - 0.18, finding.texts, TEXT)
        _draw_share(axes, row + 0.18, finding.numbers, NUMBER)
    axes.set_xlim(-0.02, 1.04)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("prompts that changed (dot; line: 95 % interval)")
    for colour, label in ((TEXT, "text"), (NUMBER, "any number")):
        axes.plot([], [], "o", color=colour, label=label)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=2, frameon=False, fontsize=9)
    return _render(figure)


def plot_first(findings: Sequence[Finding]) -> str:
    """Per condition: where each changed prompt's answer first parted from the base."""
    figure, axes = _make_rows(findings)
    for row, finding in enumerate(findings):
        firsts = [p.first for p in finding.prompts if p.first is not None]
        axes.plot(firsts, [row] * len(firsts), "|", color=TEXT, markersize=13, markeredgewidth=2)
    units = {p.unit for f in findings for p in f.prompts if p.first is not None}
    axes.set_xlabel(f"first {' or '.join(sorted(units)) or 'token'} that differs, from 0: one line for each prompt")
    axes.set_xlim(left=-0.5)
    return _render(figure)


def plot_sizes(findings: Sequence[Finding], values: Sequence[float | None], label: str) -> str:
    """Per condition: a size on a logarithmic scale; a mark at the left for exactly 0."""
    positive = [v for v in values if v]
    least = min(positive, default=1e-7)
    zero = 10.0 ** (math.floor(math.log10(least)) - 1)
    figure, axes = _make_rows(findings)
    axes.set_xscale("log")
    for row, value in enumerate(values):
        if value:
            axes.barh(row, value, left=0, height=0.5, color=NUMBER)
        elif value is not None:
            axes.plot([zero * 1.3], [row], "D", color=SAME, markersize=5)
    axes.set_xlim(zero, max(positive, default=1) * 3)
    axes.set_xlabel(f"{label} (green: exactly 0)")
    return _render(figure)


def plot_unique(findings: Sequence[Finding], prompts: Sequence[str]) -> str:
    """Different answers, prompt by condition."""
    from matplotlib.colors import LogNorm

    most = max((f.max_unique for f in findings), default=1)
    grid = [[math.nan] * len(prompts) for _ in findings]
    for row, finding in enumerate(findings):
        for p in finding.prompts:
            grid[row][p.prompt] = p.num_unique
    figure, axes = _make_rows(findings)
    axes.imshow(grid, aspect="auto", cmap="YlOrRd", norm=LogNorm(1, max(most, 2) * 1.6))
    if len(prompts) <= 24:
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                if not math.isnan(value):
                    axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(prompts)), prompts, rotation=40, ha="right", fontsize=8)
    axes.grid(visible=False)
    axes.set_xlabel("different answers to one prompt under one condition")
    return _render(figure)


def _draw_share(axes: Axes, row: float, share: Share, colour: str) -> None:
    if share.share is None:
        return
    axes.plot([share.low or 0, share.high or 0], [row, row], color=colour, alpha=0.45, linewidth=2.5)
    axes.plot([share.share], [row], "o", color=colour, markersize=5)


def _make_rows(findings: Sequence[Finding]) -> tuple[Figure, Axes]:
    """Axes with one row for each condition, the first on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 1.1 + ROW_HEIGHT * len(findings)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(findings)), [f.condition.name for f in findings], fontsize=9)
    axes.set_ylim(len(findings) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    return figure, axes


def _render(figure: Figure) -> str:
    """SVG without the XML head, the same bytes for the same findings."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "exactlm", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
