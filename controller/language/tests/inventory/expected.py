#!/usr/bin/env python3
"""Writes NAME.json beside every NAME.case: what ansible-core makes of the inventory.

Usage: expected.py FOLDER   (needs ansible-core importable, for example from a virtual environment)

A case is a text: `key: value` lines (sources, playbook_dir, patterns, all optional), then files, each behind a line
`-- path --`. Patterns are separated by ` | `; `pattern ~~ limit` adds a limit.
"""

import json
import os
import re
import shutil
import stat
import sys
import tempfile

os.environ["ANSIBLE_DEPRECATION_WARNINGS"] = "0"
os.environ["ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED"] = "1"
os.environ["ANSIBLE_HOST_PATTERN_MISMATCH"] = "error"
os.environ["ANSIBLE_NOCOLOR"] = "1"
os.environ["ANSIBLE_LOCALHOST_WARNING"] = "0"

from ansible.cli.inventory import InventoryCLI  # noqa: E402
from ansible.inventory.manager import InventoryManager  # noqa: E402
from ansible.parsing.dataloader import DataLoader  # noqa: E402


def parse(text):
    head, *rest = re.split(r"^-- (.+) --\n", text, flags=re.M)
    options = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line and not line.startswith("#"))
    return options, list(zip(rest[::2], rest[1::2]))


def unpack(files, folder):
    for name, content in files:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", newline="") as out:
            out.write(content)
        if content.startswith("#!"):
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def child(function):
    """Runs in a fork, since ansible keeps state."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        saved = os.dup(1)
        os.dup2(devnull, 1)
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001
            result = {"failed": repr(error)}
        os.write(saved, b"")
        with os.fdopen(write, "w") as stream:
            json.dump(result, stream)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def captured(arguments):
    # Why: Display writes to the real standard output, so it is read from a file.
    path = tempfile.mktemp()
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    os.dup2(descriptor, 1)
    code = 1
    try:
        InventoryCLI(["ansible-inventory"] + arguments).run()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001
        code = 1
    sys.stdout.flush()
    with open(path) as stream:
        text = stream.read()
    os.unlink(path)
    return text if code == 0 else None


def select(sources, pattern):
    pattern, _, limit = pattern.partition(" ~~ ")
    try:
        manager = InventoryManager(DataLoader(), sources=sources)
        if limit:
            manager.subset(limit)
        return [host.name for host in manager.get_hosts(pattern)]
    except Exception:  # noqa: BLE001
        return None


def expected(case):
    options, files = parse(case)
    folder = tempfile.mkdtemp()
    try:
        unpack(files, folder)
        os.makedirs(os.path.join(folder, "nothing-here"))
        os.chdir(folder)
        sources = options.get("sources", files[0][0] if files else "").split()
        arguments = ["--playbook-dir", options.get("playbook_dir", "nothing-here")]
        for source in sources:
            arguments += ["-i", source]
        result = {"list": child(lambda: captured(arguments + ["--list"]))}
        if result["list"] is not None:
            result["list"] = json.loads(result["list"])
            result["graph"] = child(lambda: captured(arguments + ["--graph", "--vars"]))
            if result["graph"]:
                result["graph"] = result["graph"].rstrip("\n")
            patterns = [pattern for pattern in options.get("patterns", "").split(" | ") if pattern]
            result["patterns"] = child(lambda: {pattern: select(sources, pattern) for pattern in patterns})
        return result
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


def main():
    cases = os.path.abspath(sys.argv[1])
    for name in sorted(os.listdir(cases)):
        if name.endswith(".case"):
            path = os.path.join(cases, name)
            with open(path, newline="") as stream:
                result = expected(stream.read())
            with open(path[: -len("case")] + "json", "w") as stream:
                json.dump(result, stream, indent=1, sort_keys=True, ensure_ascii=False)
                stream.write("\n")


main()
