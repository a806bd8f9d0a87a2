"""Results: a measure of Ebla beside a peer's, the goal it should reach, and whether it does.

    Comparison(measure, ebla, peer, peer_figure, goal) -> ratio, verdict -> a rich table, a Markdown table

The ratio is how many times as fast as the peer Ebla is, for rates and for durations alike. A goal is a bound on
the ratio or on Ebla's own figure. A measure without a goal is there to be looked at and has no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rich.table import Table

from benchmarks.reasons import REASONS

_SMALL_IS_GOOD = ("us", "ms", "s", "MiB", "KiB")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit. Durations and memory are better small, rates are better large."""

    value: float
    unit: str

    @property
    def small_is_good(self) -> bool:
        """Whether less is better."""
        return self.unit in _SMALL_IS_GOOD

    def __str__(self) -> str:
        if self.unit.endswith("/s") and self.unit != "MB/s":
            if self.value >= 1e6:
                return f"{self.value / 1e6:.2f}M {self.unit}"
            if self.value >= 1e4:
                return f"{self.value / 1e3:.0f}k {self.unit}"
        digits = 0 if self.value >= 100 else 1 if self.value >= 10 else 2 if self.value >= 0.1 else 3
        return f"{self.value:,.{digits}f} {self.unit}"


def rate(count: float, seconds: float, unit: str = "rows/s") -> Figure:
    """Return so many things in so many seconds as a rate."""
    return Figure(count / seconds, unit)


def microseconds(seconds: float, count: int = 1) -> Figure:
    """Return the mean time of one of `count` operations."""
    return Figure(seconds / count * 1e6, "us")


def milliseconds(seconds: float, count: int = 1) -> Figure:
    """Return the mean time of one of `count` operations."""
    return Figure(seconds / count * 1e3, "ms")


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that Ebla should keep: on the ratio to the peer, or on its own figure."""

    kind: Literal["ratio at least", "at least", "under"]
    bound: float
    unit: str = "x"

    def met(self, ebla: Figure, ratio: float | None) -> bool:
        """Tell whether the goal is reached."""
        if self.kind == "ratio at least":
            return ratio is not None and ratio >= self.bound
        if self.kind == "at least":
            return ebla.value >= self.bound
        return ebla.value < self.bound

    def __str__(self) -> str:
        sign = "<" if self.kind == "under" else ">="
        if self.kind == "ratio at least":
            return f"{sign} {self.bound:.3g}x"
        return f"{sign} {self.bound:,g} {self.unit}"


def at_least_ratio(bound: float) -> Goal:
    """Ebla should be at least `bound` times as fast as the peer."""
    return Goal("ratio at least", bound)


def within_time(factor: float) -> Goal:
    """Ebla may take at most `factor` times the peer's time."""
    return Goal("ratio at least", 1 / factor)


def at_least(bound: float, unit: str) -> Goal:
    """Ebla's own figure should be at least this."""
    return Goal("at least", bound, unit)


def under(bound: float, unit: str) -> Goal:
    """Ebla's own figure should stay under this."""
    return Goal("under", bound, unit)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table."""

    measure: str
    ebla: Figure
    peer: str = ""
    peer_figure: Figure | None = None
    goal: Goal | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer Ebla is."""
        if self.peer_figure is None:
            return None
        if self.ebla.small_is_good:
            return self.peer_figure.value / self.ebla.value
        return self.ebla.value / self.peer_figure.value

    @property
    def verdict(self) -> str:
        """``pass`` or ``short`` of the goal; empty without a goal."""
        if self.goal is None:
            return ""
        return "pass" if self.goal.met(self.ebla, self.ratio) else "short"

    def cells(self) -> list[str]:
        """Return the line's columns as text."""
        return [
            self.measure,
            str(self.ebla),
            self.peer,
            "" if self.peer_figure is None else str(self.peer_figure),
            "" if self.ratio is None else f"{self.ratio:.{2 if self.ratio >= 0.1 else 3}f}x",
            "" if self.goal is None else str(self.goal),
            self.verdict,
        ]


@dataclass(frozen=True, slots=True)
class Report:
    """What one workload found."""

    workload: str
    conditions: str
    lines: list[Comparison] = field(default_factory=list)

    def remarks(self) -> list[str]:
        """Return the notes, and the reason of every line that falls short."""
        found: dict[str, None] = {}
        for line in self.lines:
            if line.note:
                found[f"{line.measure}: {line.note}"] = None
            if line.verdict == "short":
                reason = REASONS.get((self.workload, line.measure, line.peer), "reason not examined yet")
                against = f" against {line.peer}" if line.peer else ""
                found[f"{line.measure}{against}: short of the goal: {reason}"] = None
        return list(found)


HEADINGS = ("measure", "Ebla", "peer", "peer's figure", "ratio", "goal", "")


def rich_table(report: Report) -> Any:
    """Return the report as a table for the terminal."""
    table = Table(title=f"{report.workload}: {report.conditions}", title_justify="left", caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("Ebla", "peer's figure", "ratio", "goal") else "left")
    colours = {"pass": "green", "short": "red", "": ""}
    for line in report.lines:
        *cells, verdict = line.cells()
        table.add_row(*cells, f"[{colours[verdict]}]{verdict}[/]" if verdict else "")
    remarks = report.remarks()
    if remarks:
        table.caption = "\n".join(f"- {remark}" for remark in remarks)
    return table


def markdown(report: Report, date: str, machine: str) -> str:
    """Return the report as one section of RESULTS.md."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *(line.cells() for line in report.lines)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    remarks = "".join(f"- {remark}\n" for remark in report.remarks())
    return f"## {report.workload}\n\n{date}, {machine}; {report.conditions}\n\n{table}\n" + (
        f"\n{remarks}" if remarks else ""
    )
