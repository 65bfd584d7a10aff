#!/usr/bin/env python3
"""Writes expected.json into every case: what ansible-core does with its steps.

Usage: expected.py CASES [PART-OF-A-NAME]     (ansible-core has to be importable; `make compat` sees to that)

A case is a folder with case.yaml (rows, about, steps) and the files that its steps use. A step is a line of gpufleet's;
PROGRAMS says which program of Ansible's does the same.
"""

import json
import os
import shlex
import shutil
import sys
import tempfile

WORK = tempfile.mkdtemp(prefix="compat-")
os.environ.update(
    ANSIBLE_CONFIG=os.path.join(WORK, "ansible.cfg"),
    ANSIBLE_DEPRECATION_WARNINGS="0",
    ANSIBLE_LOCALHOST_WARNING="0",
    ANSIBLE_NOCOLOR="1",
    HOME=WORK,
    LC_ALL="C.UTF-8",
)
open(os.environ["ANSIBLE_CONFIG"], "w").close()

import yaml  # noqa: E402
from ansible.cli.adhoc import AdHocCLI  # noqa: E402
from ansible.cli.inventory import InventoryCLI  # noqa: E402


def inventory(words):
    return InventoryCLI, ["ansible-inventory"] + words


def hosts(words):
    return AdHocCLI, ["ansible"] + words + ["--list-hosts"]


PROGRAMS = {"inventory": inventory, "hosts": hosts}


def run(step, folder):
    """Runs one step in a process of its own, since Ansible keeps state."""
    program, *words = shlex.split(step)
    cli, arguments = PROGRAMS[program](words)
    out = os.path.join(WORK, "out")
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        descriptor = os.open(out, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            cli(arguments).run()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:  # noqa: BLE001
            code = 1
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(out, encoding="utf-8") as stream:
        text = stream.read()
    if code != 0:
        return {"run": step, "exit": code}
    if program == "hosts":
        return {"run": step, "exit": 0, "output": [line.strip() for line in text.splitlines()[1:]]}
    try:
        return {"run": step, "exit": 0, "output": json.loads(text)}
    except ValueError:
        return {"run": step, "exit": 0, "output": text.rstrip("\n")}


def main():
    cases, part = os.path.abspath(sys.argv[1]), (sys.argv[2:] or [""])[0]
    for folder, _, files in sorted(os.walk(cases)):
        if "case.yaml" not in files or part not in folder:
            continue
        with open(os.path.join(folder, "case.yaml"), encoding="utf-8") as stream:
            case = yaml.safe_load(stream)
        copy = os.path.join(WORK, "case")
        shutil.copytree(folder, copy)
        found = [run(step["run"], copy) for step in case["steps"] if not step.get("gpufleet_only")]
        shutil.rmtree(copy)
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as stream:
            json.dump(found, stream, indent=1, sort_keys=True, ensure_ascii=False)
            stream.write("\n")
        print(os.path.relpath(folder, cases))
    shutil.rmtree(WORK)


main()
