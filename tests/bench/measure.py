"""What one program costs: wall, CPU with all its children, memory.

Owns the process while it is measured. A process that the program leaves behind (Ansible's SSH masters) is counted and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
# Sampling costs CPU that the measured program then lacks: rarely, and not at all for short ones.
SAMPLE_EVERY_S = 2.0


def adopt_orphans() -> None:
    """Makes this process the parent of whatever its descendants leave behind, so that it can count and end it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass
class Sample:
    """One measured program. Seconds and KiB."""

    wall_s: float
    user_s: float
    sys_s: float
    #: Largest resident set of a single process.
    rss_kib: int
    #: Largest sum over all processes, shared pages shared out; sampled, so a lower bound; None for short programs.
    tree_kib: int | None
    #: CPU of the daemons and all that ran under them.
    node_cpu_s: float
    #: Work of others on this machine meanwhile, as a share of all cores.
    noise: float
    exit_code: int
    timed_out: bool

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.sys_s

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cpu_s": round(self.cpu_s, 4)}


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                found.setdefault(int(fields[1]), []).append(int(entry))
    return found


def descendants(of: list[int], known: dict[int, list[int]]) -> list[int]:
    found, queue = [], list(of)
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(known.get(pid, []))
    return found


def busy_seconds() -> float:
    """CPU that everything on this machine used since it started."""
    with open("/proc/stat") as stat:
        fields = list(map(int, stat.readline().split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / CLOCK_TICKS


def _pss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        return int(found[1]) if found else 0
    return 0


class Meter:
    """Measures programs beside a fleet."""

    def __init__(self, fleet: Any, quiet_s: float) -> None:
        self.fleet = fleet
        #: How long to wait for other work on the machine to pause.
        self.quiet_s = quiet_s
        self.running: int | None = None

    def _orphans(self) -> list[int]:
        """Processes that are ours by adoption."""
        known = children()
        return [pid for pid in known.get(os.getpid(), []) if pid not in self.fleet.pids() and pid != self.running]

    def _wait_for_quiet(self, longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline:
            before = busy_seconds()
            time.sleep(0.5)
            if busy_seconds() - before < 0.05 * (os.cpu_count() or 1):
                return

    def run(
        self, command: list[str], environment: dict[str, str], log: Path, folder: Path, timeout_s: float, short: bool
    ) -> Sample:
        """Runs a program to its end; its output goes to `log` (errors to `log`.err)."""
        # A program of some milliseconds finds its gap by itself.
        self._wait_for_quiet(min(self.quiet_s, 2) if short else self.quiet_s)
        node_before, busy_before, own_before = self.fleet.cpu_seconds(), busy_seconds(), time.process_time()
        # Why a shell in between: a program inherits the memory mark of the process that forked it, and this one's is large.
        launcher = 'out=$1; shift; "$@" </dev/null >"$out" 2>"$out.err" & echo $!'
        started = time.monotonic()
        shell = ["/bin/sh", "-c", launcher, "sh", str(log), *command]
        answer = subprocess.run(shell, env=environment, cwd=folder, stdout=subprocess.PIPE, check=True)
        pid = self.running = int(answer.stdout)
        done, peak = threading.Event(), [0]
        sampler = threading.Thread(target=self._sample, args=(pid, done, peak), daemon=True)
        sampler.start()
        expired = threading.Event()
        alarm = threading.Timer(timeout_s, self._expire, args=(pid, expired))
        alarm.start()
        try:
            _, status, used = os.wait4(pid, 0)
            wall = time.monotonic() - started
        except BaseException:
            self.stop()
            raise
        finally:
            alarm.cancel()
            done.set()
        self.running = None
        sampler.join()
        user, system = used.ru_utime, used.ru_stime
        for left in self._end_orphans():
            user, system = user + left.ru_utime, system + left.ru_stime
        # The daemons notice the end of their sessions a moment later.
        time.sleep(0.5)
        node, busy = self.fleet.cpu_seconds() - node_before, busy_seconds() - busy_before
        others = busy - node - user - system - (time.process_time() - own_before)
        return Sample(
            wall_s=round(wall, 4),
            user_s=round(user, 4),
            sys_s=round(system, 4),
            rss_kib=used.ru_maxrss,
            tree_kib=peak[0] or None,
            node_cpu_s=round(node, 2),
            noise=round(max(0.0, others / ((wall + 0.5) * (os.cpu_count() or 1))), 3),
            exit_code=os.waitstatus_to_exitcode(status),
            timed_out=expired.is_set(),
        )

    def _sample(self, pid: int, done: threading.Event, peak: list[int]) -> None:
        while not done.wait(SAMPLE_EVERY_S):
            roots = [pid, *self._orphans()]
            peak[0] = max(peak[0], sum(map(_pss_kib, descendants(roots, children()))))

    def _expire(self, pid: int, expired: threading.Event) -> None:
        expired.set()
        for process in descendants([pid], children()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _end_orphans(self) -> list[resource.struct_rusage]:
        used = []
        for pid in self._orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                used.append(os.wait4(pid, 0)[2])
        return used

    def stop(self) -> None:
        """Ends the program that is being measured, and what it left behind."""
        if self.running is not None:
            for process in descendants([self.running], children()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.running, 0)
            self.running = None
        self._end_orphans()
