"""The figures as people and programs read them, with the goals beside them. Knows nothing of how they were measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from measure import Sample


@dataclass
class Cell:
    """One thing measured, several times."""

    title: str
    nodes: int
    #: Tasks on each node; 0 where that has no meaning.
    tasks: int
    samples: list[Sample]

    def value(self, name: str) -> float:
        return median(getattr(sample, name) for sample in self.samples)

    def cpu_per_host_task_ms(self) -> float | None:
        return 1000 * self.value("cpu_s") / (self.nodes * self.tasks) if self.tasks else None

    def as_dict(self) -> dict[str, Any]:
        names = ("wall_s", "cpu_s", "node_cpu_s", "rss_kib", "noise")
        return {
            "title": self.title,
            "nodes": self.nodes,
            "tasks": self.tasks,
            "median": {name: self.value(name) for name in names},
            "cpu_per_host_task_ms": self.cpu_per_host_task_ms(),
            "samples": [sample.as_dict() for sample in self.samples],
        }


@dataclass
class Goal:
    """A figure that was promised."""

    what: str
    #: Such as "at most 1.3".
    wanted: str
    measured: float | None
    #: How the figure is shown, such as "{:.2f}".
    shown: str
    met: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_most(what: str, limit: float, measured: float | None, shown: str) -> Goal:
    met = None if measured is None else measured <= limit
    return Goal(what, f"at most {shown.format(limit)}", measured, shown, met)


def at_least(what: str, limit: float, measured: float | None, shown: str) -> Goal:
    met = None if measured is None else measured >= limit
    return Goal(what, f"at least {shown.format(limit)}", measured, shown, met)


def _table(head: list[str], rows: list[list[str]], left: int) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [("-" * width) if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def _number(value: float | None, shown: str) -> str:
    return "" if value is None else shown.format(value)


def cells_table(cells: list[Cell]) -> str:
    head = ["measured", "nodes", "runs", "wall s", "controller CPU s", "ms a host-task", "peak MiB", "node CPU s", "noise %"]
    rows = []
    for cell in cells:
        memory = max(cell.value("rss_kib"), max((sample.tree_kib or 0) for sample in cell.samples))
        rows.append(
            [
                cell.title,
                str(cell.nodes or ""),
                str(len(cell.samples)),
                f"{cell.value('wall_s'):.3f}",
                f"{cell.value('cpu_s'):.3f}",
                _number(cell.cpu_per_host_task_ms(), "{:.2f}"),
                f"{memory / 1024:.0f}",
                f"{cell.value('node_cpu_s'):.2f}" if cell.nodes else "",
                f"{100 * cell.value('noise'):.0f}",
            ]
        )
    return _table(head, rows, 1)


def goals_table(goals: list[Goal]) -> str:
    rows = [
        [
            goal.what,
            goal.wanted,
            "not measured" if goal.measured is None else goal.shown.format(goal.measured),
            {True: "met", False: "MISSED", None: ""}[goal.met],
        ]
        for goal in goals
    ]
    return _table(["goal", "wanted", "measured", ""], rows, 2)
