#!/usr/bin/env python3
"""Measures gpufleet, Ansible and pyinfra against real OpenSSH daemons on loopback and prints the figures beside the goals.

Started by run.sh, which is started by `make bench`; docs/benchmarks.md says what the figures mean. Exit code 0 once
everything was measured, whatever the figures; 1 when a measured run did not do what it should have; with --strict also
when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checks
import report
from fleet import Fleet, FleetError
from measure import Meter, Sample, adopt_orphans
from report import Cell, Goal
from workload import TASK_COUNT, TASKS, Workload

LARGE = 5000
SLOW_TIMEOUT_S = 1800
TIMEOUT_S = 300


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures gpufleet beside Ansible and pyinfra.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--gpufleet", type=Path, required=True, help="the binary to measure")
    add("--work", type=Path, required=True, help="folder for the results")
    add("--venv", type=Path, required=True, help="where Ansible and pyinfra are installed")
    add("--playbook", type=Path, required=True, help="playbook to check against a large inventory")
    add("--nodes", type=int, default=100, help="daemons to start")
    add("--few", type=int, default=25, help="nodes of the smaller run, for the memory slope")
    add("--runs", type=int, default=5, help="runs of each gpufleet cell; the median counts")
    add("--pyinfra-runs", type=int, default=3, help="runs of pyinfra")
    add("--ansible-runs", type=int, default=1, help="runs of Ansible")
    add("--quiet", type=float, default=20, metavar="S", help="longest wait for a quiet machine before each run, in seconds")
    add("--strict", action="store_true", help="exit code 1 when a goal is missed")
    add("--keep", action="store_true", help="keep the folder with the fleet and all logs")
    chosen = parser.parse_args()
    if not 1 <= chosen.few < chosen.nodes <= 250:
        parser.error("--nodes takes 2 to 250, and --few less than that")
    return chosen


class Bench:
    """All cells, measured one after the other."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.folder = folder
        self.fleet = Fleet(folder / "fleet", chosen.nodes)
        self.meter = Meter(self.fleet, chosen.quiet)
        self.cells: dict[str, Cell] = {}
        self.binary = str(chosen.gpufleet.resolve())
        self.notes: list[str] = []
        self.number = 0

    def start(self) -> None:
        (self.folder / "fleet").mkdir()
        self.fleet.start()
        self.workload = Workload(self.fleet, self.folder)
        self.workload.ansible_config(min(self.chosen.nodes, 50))
        tools = f"{self.chosen.venv / 'bin'}:" if self.chosen.venv.is_dir() else ""
        self.environment = self.workload.environment(f"{tools}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")

    def stop(self) -> None:
        self.meter.stop()
        self.fleet.stop()
        self.meter.stop()

    def measure(
        self,
        cell: str,
        title: str,
        command: list[str],
        *,
        nodes: int = 0,
        tasks: int = 0,
        expected: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> Path:
        """Measures a command once more for a cell; returns its log."""
        self.number += 1
        log = self.folder / f"{self.number:03d}-{cell}.log"
        sample = self.meter.run(command, self.environment, log, self.folder, timeout_s, short=not nodes)
        if sample.timed_out:
            raise checks.WrongRun(f"{cell} was ended after {timeout_s:.0f} s; see {log}")
        if sample.exit_code != expected:
            tail = log.with_name(log.name + ".err").read_text(errors="replace")[-2000:]
            raise checks.WrongRun(f"{cell} ended with {sample.exit_code}: {' '.join(command)}\n{tail}")
        self.cells.setdefault(cell, Cell(title, nodes, tasks, [])).samples.append(sample)
        self._tell(cell, sample)
        return log

    @staticmethod
    def _tell(cell: str, sample: Sample) -> None:
        print(
            f"  {cell:<8} wall {sample.wall_s:8.3f} s   controller CPU {sample.cpu_s:8.3f} s"
            f"   peak {sample.rss_kib / 1024:6.1f} MiB   noise {100 * sample.noise:3.0f} %",
            file=sys.stderr,
            flush=True,
        )

    def gpufleet_exec(self, cell: str, title: str) -> None:
        inventory = str(self.workload.inventory(self.chosen.nodes))
        command = [self.binary, "exec", "all", "-i", inventory, "--", "true"]
        self.measure(cell, title, command, nodes=self.chosen.nodes)

    def gpufleet_run(self, cell: str, title: str, nodes: int, changed: int = 0) -> None:
        inventory = str(self.workload.inventory(nodes))
        command = [self.binary, "run", str(TASKS / "gpufleet.yaml"), "-i", inventory, "--yes", "--format", "json"]
        log = self.measure(cell, title, command, nodes=nodes, tasks=TASK_COUNT)
        checks.gpufleet(log, nodes, changed)

    def ansible(self) -> None:
        inventory = str(self.workload.inventory(self.chosen.nodes))
        command = [str(self.chosen.venv / "bin/ansible-playbook"), "-i", inventory, str(TASKS / "ansible.yaml")]
        title = f"ansible-core {self.version('ansible-core')}, pipelining, forks {min(self.chosen.nodes, 50)}"
        nodes = self.chosen.nodes
        log = self.measure("ansible", title, command, nodes=nodes, tasks=TASK_COUNT, timeout_s=SLOW_TIMEOUT_S)
        checks.ansible(log, nodes)

    def pyinfra(self) -> None:
        command = [str(self.chosen.venv / "bin/pyinfra"), "-y", str(self.workload.pyinfra_inventory()), str(TASKS / "pyinfra.py")]
        title = f"pyinfra {self.version('pyinfra')}"
        nodes = self.chosen.nodes
        log = self.measure("pyinfra", title, command, nodes=nodes, tasks=TASK_COUNT, timeout_s=SLOW_TIMEOUT_S)
        checks.pyinfra(log, nodes)

    def version(self, package: str) -> str:
        code = f"from importlib.metadata import version; print(version('{package}'))"
        answer = subprocess.run([self.chosen.venv / "bin/python", "-c", code], capture_output=True, text=True, check=False)
        return answer.stdout.strip() or "?"

    def fleet_cells(self) -> None:
        """Everything that needs the daemons. Cells that are compared take turns, so that a busy spell meets all of them."""
        print("pushing the helper", file=sys.stderr)
        for _ in range(min(3, self.chosen.runs)):
            self.fleet.forget_gpufleet()
            self.gpufleet_exec("push", "gpufleet exec -- true, first contact: helper pushed")
        print("bringing the nodes to the wanted state", file=sys.stderr)
        self.gpufleet_run("first", "gpufleet run, 10 tasks, first run: 5 change", self.chosen.nodes, changed=5)
        peers = self.chosen.venv.is_dir()
        for turn in range(self.chosen.runs):
            print(f"turn {turn + 1} of {self.chosen.runs}", file=sys.stderr)
            self.gpufleet_exec("floor", "gpufleet exec -- true (the floor)")
            self.gpufleet_run("run", "gpufleet run, 10 tasks in their wanted state", self.chosen.nodes)
            self.gpufleet_run("few", "the same", self.chosen.few)
            if peers and turn < self.chosen.pyinfra_runs:
                self.pyinfra()
        if peers:
            for _ in range(self.chosen.ansible_runs):
                self.ansible()
            self.notes.append("pyinfra counts a command as a change: 1 of its operations on each node, 0 of the others changed.")
        else:
            self.notes.append("Ansible and pyinfra are not installed, so they were not measured.")

    def start_up_cells(self) -> None:
        print("start-up", file=sys.stderr)
        large = str(self.workload.large_inventory(LARGE))
        for _ in range(self.chosen.runs):
            self.measure("hosts", f"gpufleet hosts all, {LARGE} hosts", [self.binary, "hosts", "all", "-i", large])
        if not self.chosen.playbook.exists():
            self.notes.append(f"there is no {self.chosen.playbook}: its check was not measured.")
            return
        playbook = self.chosen.playbook
        refused = [self.binary, "run", str(playbook), str(self.workload.refused_playbook()), "-i", large]
        title = f"gpufleet run {playbook.name}, {LARGE} hosts, up to the last check before connecting"
        for _ in range(self.chosen.runs):
            log = self.measure("check", title, refused, expected=1)
            if "never_set_anywhere" not in log.with_name(log.name + ".err").read_text():
                raise checks.WrongRun(f"the large inventory was refused for another reason; see {log}.err")

    def help_ms(self) -> list[float]:
        """Start-up, from the request to start the process to its end; no shell in between."""
        taken = []
        for _ in range(20):
            started = time.perf_counter()
            subprocess.run([self.binary, "--help"], stdout=subprocess.DEVNULL, env=self.environment, check=True)
            taken.append(1000 * (time.perf_counter() - started))
        return taken

    def goals(self, help_ms: float) -> list[Goal]:
        def value(cell: str, name: str) -> float | None:
            return self.cells[cell].value(name) if cell in self.cells else None

        def ratio(above: float | None, below: float | None) -> float | None:
            return None if above is None or not below else above / below

        run, few = self.cells["run"], self.cells["few"]
        wall = run.value("wall_s")
        slope = (run.value("rss_kib") - few.value("rss_kib")) / (run.nodes - few.nodes)
        return [
            report.at_most("wall, in walls of the floor", 1.3, ratio(wall, value("floor", "wall_s")), "{:.2f}"),
            report.at_least("times faster than pyinfra", 4, ratio(value("pyinfra", "wall_s"), wall), "{:.1f}"),
            report.at_least("times faster than Ansible", 40, ratio(value("ansible", "wall_s"), wall), "{:.1f}"),
            report.at_most("controller CPU a host-task, ms", 1, run.cpu_per_host_task_ms(), "{:.2f}"),
            report.at_most(f"memory a node, {few.nodes} to {run.nodes} nodes, KiB", 500, slope, "{:.0f}"),
            report.at_most("gpufleet --help, ms", 20, help_ms, "{:.1f}"),
            report.at_most(f"parse and check of {LARGE} hosts, s", 1, value("check", "wall_s"), "{:.3f}"),
        ]


def machine() -> dict[str, object]:
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    sshd = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr.strip()
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "openssh": sshd}


def measure_all(chosen: argparse.Namespace, folder: Path) -> int:
    bench = Bench(chosen, folder)
    try:
        print(f"starting {chosen.nodes} daemons", file=sys.stderr)
        bench.start()
        bench.fleet_cells()
        bench.start_up_cells()
        taken = bench.help_ms()
    finally:
        bench.stop()
    help_ms = statistics.median(taken)
    goals = bench.goals(help_ms)
    about = machine()
    order = ["floor", "run", "few", "pyinfra", "ansible", "push", "first", "hosts", "check"]
    cells = [bench.cells[name] for name in order if name in bench.cells]
    text = "\n\n".join(
        [
            f"{about['cores']} cores of {about['cpu']}, shared by the controller and the nodes; {about['openssh']}.",
            report.cells_table(cells),
            report.goals_table(goals),
            *([" ".join(bench.notes)] if bench.notes else []),
        ]
    )
    print(text, flush=True)
    document = {
        "machine": about,
        "cells": {name: bench.cells[name].as_dict() for name in order if name in bench.cells},
        "help_ms": {"median": round(help_ms, 2), "all": [round(value, 2) for value in taken]},
        "goals": [goal.as_dict() for goal in goals],
        "notes": bench.notes,
        "private_mounts": bench.fleet.private_mounts,
    }
    (chosen.work / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    (chosen.work / "results.md").write_text(text + "\n")
    return 1 if chosen.strict and any(goal.met is not True for goal in goals) else 0


def main() -> int:
    chosen = arguments()
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    # Why not below the results: paths of control sockets may have 108 characters, and node folders must be owned all the way up.
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        code = measure_all(chosen, folder)
    except (checks.WrongRun, FleetError) as error:
        print(f"error: {error}", file=sys.stderr)
        kept = chosen.work / "failed"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, symlinks=True, ignore=shutil.ignore_patterns("fleet", "wanted"))
        print(f"help: the logs lie under {kept}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
