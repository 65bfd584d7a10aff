"""What an audit by every check of the catalogue costs, on simulated nodes: `tests/bench/audit.py --help`.

It starts a fleet of the lab with release builds, and audits all nodes and a quarter of them by turns: the slope between
the two is what a further node costs. Then the driver of some nodes hangs, and all are audited once more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import adopt_orphans

NODES, CONTROLLER = "gpufleet-bench-nodes", "gpufleet-bench-controller"
#: Every check, so that all tiers of readings are taken.
BASELINE = "name: everything\nchecks: ['*']\n"


def measured(command: list[str], environment: dict[str, str], log: Path) -> dict[str, float]:
    """Runs a program.

    Returns its wall time, its own CPU with that of its children, what the nodes used meanwhile, in seconds, and its peak in KiB.
    """
    # Why a shell: a program inherits the memory mark of the process that forked it.
    launcher = 'out=$1 group=$2; shift 2; (echo 0 >"$group"; exec "$@" </dev/null >"$out" 2>&1) & echo $!'
    nodes, controller = Group(NODES), Group(CONTROLLER)
    began, started = nodes.seconds(), time.monotonic()
    shell = ["/bin/sh", "-c", launcher, "sh", str(log), str(controller.procs), *command]
    pid = int(subprocess.run(shell, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 3):
        sys.exit(f"the audit ended with {code}:\n{log.read_text()[-2000:]}")
    wall = time.monotonic() - started
    # What the nodes still do about the end of their sessions.
    time.sleep(1)
    cpu = used.ru_utime + used.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "peak_kib": used.ru_maxrss, "nodes_s": nodes.seconds() - began}


class Group:
    """A group of processes whose CPU the kernel adds up; needs root."""

    def __init__(self, name: str) -> None:
        old = Path("/sys/fs/cgroup/cpuacct")
        self.path = (old if old.is_dir() else Path("/sys/fs/cgroup")) / name
        self.path.mkdir(exist_ok=True)
        self.procs = self.path / "cgroup.procs"

    def seconds(self) -> float:
        usage = self.path / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        fields = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6


def helper_cpu(state: Path) -> list[float]:
    """Returns what the helper used on each node of the latest audit, in ms, as its journal has it."""
    journal = max(state.glob("gpufleet/runs/*/journal.jsonl"))
    found = []
    for line in journal.open():
        if "cpu_ms" in line:
            found.extend(values(json.loads(line)))
    return found


def values(tree: Any) -> list[float]:
    if isinstance(tree, dict):
        own = tree.get("cpu_ms")
        return ([float(own)] if isinstance(own, (int, float)) else []) + [v for t in tree.values() for v in values(t)]
    return [v for t in tree for v in values(t)] if isinstance(tree, list) else []


def inside(args: argparse.Namespace, work: Path) -> None:
    """Measures beside the fleet that the environment names."""
    # Without it `wait4` knows no program that a shell left behind.
    adopt_orphans()
    state = work / "state"
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "XDG_CACHE_HOME": str(work / "cache"), "NO_COLOR": "1"}
    baseline = work / "everything.yaml"
    baseline.write_text(BASELINE)
    inventory = os.environ["GPUFLEET_INVENTORY"]
    audit = [str(args.bin / "gpufleet"), "audit", "--baseline", str(baseline), "--deep", "-b", "-i", inventory]
    few = args.nodes // 4

    def run(limit: int, name: str) -> dict[str, float]:
        sample = measured([*audit, "--limit", f"gpu[0:{limit - 1}]"], environment, work / f"{name}.log")
        print(
            f"{name:12} {limit:5} nodes  {sample['wall_s']:7.2f} s wall  "
            f"{1000 * sample['cpu_s'] / limit:6.2f} ms controller CPU a node  {sample['peak_kib'] / 1024:6.0f} MiB peak",
            flush=True,
        )
        return sample

    run(args.nodes, "first contact")
    large, small, helper = [], [], []
    for _ in range(args.rounds):
        small.append(run(few, "a quarter"))
        large.append(run(args.nodes, "all"))
        helper += helper_cpu(state)

    def median(samples: list[dict[str, float]], key: str) -> float:
        return statistics.median(sample[key] for sample in samples)

    further = args.nodes - few
    cpu = (median(large, "cpu_s") - median(small, "cpu_s")) / further * 1000
    memory = (median(large, "peak_kib") - median(small, "peak_kib")) / further
    print(f"controller CPU a further node, ms      {cpu:8.2f}")
    print(f"memory a further node, KiB             {memory:8.0f}")
    nodes = (median(large, "nodes_s") - median(small, "nodes_s")) / further * 1000
    print(f"a node's CPU, SSH server included, ms  {nodes:8.1f}")
    print(f"of it the helper's own, ms             {statistics.median(helper):8.1f}  (most {max(helper):.1f}, {len(helper)} readings)")
    if args.hung:
        lab = [str(args.bin / "gpufleet-lab"), "ctl", "--dir", os.environ["GPUFLEET_LAB_DIR"]]
        for node in range(1, args.hung + 1):
            fault = "{function: nvmlInit_v2, effect: hang}"
            subprocess.run([*lab, f"gpu{node:03}", "fault", "add", fault], check=True)
        hung = run(args.nodes, f"{args.hung} hang")
        print(f"{args.hung} hung drivers cost, s of wall time   {hung['wall_s'] - median(large, 'wall_s'):8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, default=Path("target/release"), help="where gpufleet and gpufleet-lab are")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hung", type=int, default=5, help="nodes whose driver hangs in the last audit")
    parser.add_argument("--work", type=Path, default=Path("target/bench/audit"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.bin, work = args.bin.resolve(), args.work.resolve()
    if args.inside:
        inside(args, work)
        return
    subprocess.run(["rm", "-rf", str(work)], check=True)
    work.mkdir(parents=True)
    Group(NODES).procs.write_text("0")
    lab = [str(args.bin / "gpufleet-lab"), "exec", "--nodes", str(args.nodes), "--gpus-per-node", str(args.gpus)]
    again = [sys.executable, "-B", *sys.argv, "--inside"]
    sys.exit(subprocess.run([*lab, "--", *again]).returncode)


if __name__ == "__main__":
    main()
