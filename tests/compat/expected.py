#!/usr/bin/env python3
"""Writes expected.json into every case: what ansible-core does with its steps.

Usage: expected.py CASES [PART-OF-A-NAME]     (ansible-core has to be importable; `make compat` sees to that)

A case is a folder with case.yaml (rows, about, steps) and the files that its steps use. A step is a line of gpufleet's;
PROGRAMS says which program of Ansible's does the same. What a playbook did comes in the normal form of
callback/compat.py, with the files that it wrote below `out`.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

WORK = tempfile.mkdtemp(prefix="compat-")
os.environ.update(
    # Why: else one half of it looks for jobs in the home of the password file, and the other in HOME.
    ANSIBLE_ASYNC_DIR=os.path.join(WORK, "async"),
    ANSIBLE_CONFIG=os.path.join(WORK, "ansible.cfg"),
    ANSIBLE_DEPRECATION_WARNINGS="0",
    ANSIBLE_LOCALHOST_WARNING="0",
    ANSIBLE_NOCOLOR="1",
    ANSIBLE_HOME=os.path.join(WORK, "ansible"),
    ANSIBLE_CALLBACK_PLUGINS=os.path.join(os.path.dirname(os.path.abspath(__file__)), "callback"),
    ANSIBLE_STDOUT_CALLBACK="compat",
    ANSIBLE_PYTHON_INTERPRETER=sys.executable,
    COMPAT_VARIABLE="from the environment",
    HOME=WORK,
    LC_ALL="C.UTF-8",
)
open(os.environ["ANSIBLE_CONFIG"], "w").close()

import yaml  # noqa: E402
from ansible.cli.adhoc import AdHocCLI  # noqa: E402
from ansible.cli.inventory import InventoryCLI  # noqa: E402
from ansible.cli.playbook import PlaybookCLI  # noqa: E402

LISTS = ("--list-hosts", "--list-tasks", "--list-tags", "--syntax-check")


def inventory(words):
    return InventoryCLI, ["ansible-inventory"] + words


def hosts(words):
    return AdHocCLI, ["ansible"] + words + ["--list-hosts"]


def playbook(words):
    return PlaybookCLI, ["ansible-playbook"] + words


PROGRAMS = {"inventory": inventory, "hosts": hosts, "run": playbook}


def outcome(code, text, folder):
    """What a playbook did: its normal form and what lies below `out`."""
    lines = [line for line in text.splitlines() if line.startswith("COMPAT ")]
    if not lines:
        return {"exit": code}
    found = json.loads(lines[-1].removeprefix("COMPAT ").replace(folder, "[HERE]"))
    files = {}
    for parent, _, names in os.walk(os.path.join(folder, "out")):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, encoding="utf-8", newline="") as stream:
                name = os.path.relpath(path, folder).replace(folder, "[HERE]")
                files[name] = stream.read().replace(folder, "[HERE]")
    if files:
        found["files"] = files
    return {"exit": code, "output": found}


def run(step, folder):
    """Runs one step in a process of its own, since Ansible keeps state."""
    program, *words = shlex.split(step)
    cli, arguments = PROGRAMS[program](words)
    out = os.path.join(WORK, "out")
    if os.path.exists(os.path.join(folder, "ansible.cfg")):
        # Why not the fork: Ansible reads its settings once, when it is imported.
        return with_settings(step, arguments, folder)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        descriptor = os.open(out, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            code = cli(arguments).run() or 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:  # noqa: BLE001
            code = 1
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(out, encoding="utf-8") as stream:
        text = stream.read()
    if program == "run" and not any(word in LISTS for word in words):
        return {"run": step, **outcome(code, text, folder)}
    if code != 0:
        return {"run": step, "exit": code}
    if program == "hosts":
        return {"run": step, "exit": 0, "output": [line.strip() for line in text.splitlines()[1:]]}
    if program == "run":
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        return {"run": step, "exit": 0, "output": lines}
    try:
        return {"run": step, "exit": 0, "output": json.loads(text)}
    except ValueError:
        return {"run": step, "exit": 0, "output": text.rstrip("\n")}


def with_settings(step, arguments, folder):
    environment = {**os.environ, "ANSIBLE_CONFIG": os.path.join(folder, "ansible.cfg")}
    name, *words = arguments
    program = os.path.join(os.path.dirname(sys.executable), name)
    done = subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, text=True)
    return {"run": step, **outcome(done.returncode, done.stdout, folder)}


def short(value, depth=0):
    """JSON with what fits on a line on one line."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(line) + depth <= 120 or not isinstance(value, (dict, list)):
        return line
    if isinstance(value, list):
        parts, ends = [short(item, depth + 1) for item in value], "[]"
    else:
        parts = [f"{json.dumps(key)}: {short(value[key], depth + 1)}" for key in sorted(value)]
        ends = "{}"
    indent = " " * (depth + 1)
    return ends[0] + "\n" + ",\n".join(indent + part for part in parts) + "\n" + " " * depth + ends[1]


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
            if any(step["run"].startswith("run ") for step in found):
                stream.write(short(found))
            else:
                json.dump(found, stream, indent=1, sort_keys=True, ensure_ascii=False)
            stream.write("\n")
        print(os.path.relpath(folder, cases))
    shutil.rmtree(WORK)


main()
