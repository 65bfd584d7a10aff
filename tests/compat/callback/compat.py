"""Prints what a playbook did, in the normal form of the compatibility suite, as one line of JSON at the end.

`tasks` has each host's tasks in the order in which it had them: name, status (ok, changed, skipped, failed, ignored) and
what debug, fail and assert said (a list for a loop). `recap` has the numbers of the recap.
"""

import json

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = "name: compat\ntype: stdout\nshort_description: normal form\ndescription: normal form\n"
COUNTS = ("ok", "changed", "unreachable", "failures", "skipped", "rescued", "ignored")
SPEAKING = ("debug", "fail", "assert")


def said(result):
    if "msg" in result and not ("_ansible_verbose_always" in result and len(visible(result)) > 1):
        return result["msg"]
    rest = visible(result)
    return next(iter(rest.values()), None)


def visible(result):
    own = ("changed", "failed", "skipped", "skip_reason", "item", "ansible_loop_var", "ansible_loop", "evaluated_to",
           "assertion", "false_condition", "failed_when_result", "exception", "ansible_index_var")
    hidden = ("_ansible_", "ansible_facts")
    loops = (result.get("ansible_loop_var"), result.get("ansible_index_var"))
    return {k: v for k, v in result.items() if k not in own and k not in loops and not k.startswith(hidden)}


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "compat"

    def __init__(self):
        super().__init__()
        self.names, self.hosts = {}, {}

    def v2_playbook_on_task_start(self, task, is_conditional):
        role = f"{task._role.get_name()} : " if task._role else ""
        self.names[task._uuid] = task.get_name().strip() if task.name else role + task.action

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def note(self, host, task, status, result=None):
        if task.action.rsplit(".", 1)[-1] == "meta":
            return  # it counts nowhere
        entry = {"task": self.names.get(task._uuid, task.get_name()), "status": status}
        kind = task.action.rsplit(".", 1)[-1]
        # Why: the words in which a mistake is told are everybody's own.
        spoke = kind in SPEAKING and status != "skipped" and not (kind == "debug" and status in ("failed", "ignored"))
        if result is not None and spoke:
            if "results" in result:
                shown = [item for item in result["results"] if "censored" not in item]
                if shown or not result["results"]:
                    entry["says"] = [said(item) for item in shown if not item.get("skipped")]
            elif "censored" not in result:
                entry["says"] = said(result)
        self.hosts.setdefault(host.get_name(), []).append(entry)

    def v2_runner_on_ok(self, result):
        data = result._result
        if result._task.action.rsplit(".", 1)[-1] in ("include_tasks", "include_role"):
            return  # each thing that is included is noted by itself
        self.note(result._host, result._task, "changed" if data.get("changed") else "ok", data)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.note(result._host, result._task, "ignored" if ignore_errors else "failed", result._result)

    def v2_runner_on_skipped(self, result):
        self.note(result._host, result._task, "skipped")

    def v2_playbook_on_include(self, included_file):
        for host in included_file._hosts:
            self.note(host, included_file._task, "ok")

    def v2_playbook_on_stats(self, stats):
        recap = {}
        for host in sorted(stats.processed):
            summary = stats.summarize(host)
            if any(summary[name] for name in COUNTS):
                recap[host] = {("failed" if name == "failures" else name): summary[name] for name in COUNTS}
        text = json.dumps({"tasks": self.hosts, "recap": recap}, sort_keys=True, ensure_ascii=False, default=str)
        print(f"\nCOMPAT {text}")
