"""Keeps the daemons of a fleet: starts the commands read from standard input (JSON), ends them when it is told to or orphaned.

A process of its own, so that whatever a node leaves behind is the fleet's and never counted as the controller's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()]


def end(*_: object) -> None:
    """Ends all children; those of a child that ends become ours, so this goes on until none is left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + 5
    while left := children():
        how = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        time.sleep(0.1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    sys.exit(0)


def main() -> None:
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, end)
    # Why ignored: Ctrl-C reaches the whole terminal group; whoever started us says when the fleet ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = json.load(sys.stdin)
    pids = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=spec["environment"], start_new_session=True
        ).pid
        for command in spec["commands"]
    ]
    print(json.dumps(pids), flush=True)
    if os.getppid() != parent:
        end()
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            # Nothing runs; wait to be told.
            signal.pause()


if __name__ == "__main__":
    main()
