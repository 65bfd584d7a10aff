"""Whether a measured run did what it is measured for: every task on every node, and not one change."""

from __future__ import annotations

import json
import re
from pathlib import Path

from workload import TASK_COUNT

COUNTS = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class WrongRun(Exception):
    """A figure that would be worthless."""


def gpufleet(log: Path, nodes: int, changed: int) -> None:
    """Checks the document of `gpufleet run --format json`, with so many changes on every node."""
    try:
        stats = json.loads(log.read_text())["stats"]
    except (ValueError, KeyError) as error:
        raise WrongRun(f"gpufleet printed no document: {error}; see {log} and {log}.err") from error
    stats = {host: {name: counts[name] for name in COUNTS} for host, counts in stats.items()}
    _all_ok("gpufleet", stats, nodes, log, changed)


def ansible(log: Path, nodes: int) -> None:
    """Checks Ansible's recap."""
    recap = re.findall(r"^(\S+)\s+: (ok=.*)$", log.read_text(errors="replace"), re.M)
    stats = {host: {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in recap}
    _all_ok("ansible", stats, nodes, log)


def _all_ok(tool: str, stats: dict[str, dict[str, int]], nodes: int, log: Path, changed: int = 0) -> None:
    wanted = {**dict.fromkeys(COUNTS, 0), "ok": TASK_COUNT, "changed": changed}
    wrong = [f"{host} {counts}" for host, counts in stats.items() if counts != wanted]
    if len(stats) != nodes or wrong:
        raise WrongRun(f"{tool}: {len(stats)} of {nodes} nodes answered, {len(wrong)} not as wanted {wrong[:2]}; see {log}")


def pyinfra(log: Path, nodes: int) -> None:
    """Checks pyinfra's table of results: one operation of seven changed, which is the command, everywhere."""
    text = ANSI.sub("", log.read_text(errors="replace") + Path(f"{log}.err").read_text(errors="replace"))
    total = re.search(r"Grand total +(\d+) +(\S+) +(\S+) +(\S+)", text)
    if not total or total.groups() != (str(7 * nodes), str(nodes), "-", str(6 * nodes)):
        found = " ".join(total[0].split()) if total else "no table of results"
        raise WrongRun(f"pyinfra: {found}; see {log}.err")
