"""What the tools are given: inventories and environments. The tasks lie in tasks/, one file a tool, and are the same ten."""

from __future__ import annotations

import json
from pathlib import Path

from fleet import Fleet

TASKS = Path(__file__).resolve().parent / "tasks"
TASK_COUNT = 10


def swappiness() -> str:
    """The value that the kernel has: the task declares it, so that nothing is ever written."""
    return Path("/proc/sys/vm/swappiness").read_text().strip()


class Workload:
    """Files of one run, below a folder."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder
        #: Below it, a folder for each node, named like the node: all nodes share this machine's file system.
        self.node_root = folder / "wanted"
        for name in fleet.names:
            (self.node_root / name).mkdir(parents=True)
        self.home = folder / "controller"
        self.home.mkdir()

    def environment(self, path: str) -> dict[str, str]:
        """A controller's environment that knows nothing of whoever types `make bench`."""
        return {
            "PATH": path,
            "HOME": str(self.home),
            "USER": self.fleet.user.pw_name,
            "LOGNAME": self.fleet.user.pw_name,
            "LANG": "C.UTF-8",
            "XDG_STATE_HOME": str(self.home / "state"),
            "ANSIBLE_CONFIG": str(self.home / "ansible.cfg"),
            "NO_COLOR": "1",
        }

    def inventory(self, size: int) -> Path:
        """For gpufleet and Ansible, of the first `size` nodes."""
        ssh = f"-F none -o UserKnownHostsFile={self.fleet.known_hosts} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
        variables = {
            "ansible_port": self.fleet.port,
            "ansible_user": self.fleet.user.pw_name,
            "ansible_ssh_private_key_file": str(self.fleet.key),
            "ansible_ssh_common_args": ssh,
            "ansible_python_interpreter": "/usr/bin/python3",
            "node_root": str(self.node_root),
            "swappiness": swappiness(),
        }
        lines = ["all:\n", "  vars:\n"]
        lines += [f"    {name}: {json.dumps(value)}\n" for name, value in variables.items()]
        lines.append("  hosts:\n")
        lines += [f"    {name}: {{ansible_host: {self.fleet.address(name)}}}\n" for name in self.fleet.names[:size]]
        path = self.folder / f"inventory-{size}.yaml"
        path.write_text("".join(lines))
        return path

    def ansible_config(self, forks: int) -> None:
        """Pipelining, as everybody who cares about speed sets it; otherwise Ansible's own settings."""
        text = f"[defaults]\nforks = {forks}\nhost_key_checking = True\n\n[ssh_connection]\npipelining = True\n"
        (self.home / "ansible.cfg").write_text(text)

    def pyinfra_inventory(self) -> Path:
        hosts = [(name, {"ssh_hostname": self.fleet.address(name)}) for name in self.fleet.names]
        data = {
            "ssh_port": self.fleet.port,
            "ssh_user": self.fleet.user.pw_name,
            "ssh_key": str(self.fleet.key),
            "ssh_known_hosts_file": str(self.fleet.known_hosts),
            "ssh_strict_host_key_checking": "yes",
            "ssh_config_file": "/dev/null",
            "node_root": str(self.node_root),
            "swappiness": swappiness(),
            "tasks": str(TASKS),
        }
        path = self.folder / "pyinfra_inventory.py"
        path.write_text(f"hosts = ({hosts!r}, {data!r})\n")
        return path

    def large_inventory(self, size: int) -> Path:
        """Hosts written out one by one, in racks of a hundred, with variables of groups and of hosts."""
        lines = ["gpu:\n", "  vars:\n", "    ansible_user: ops\n", "    power_limit: 600\n", "  children:\n"]
        for rack in range(0, size, 100):
            lines.append(f"    rack{rack // 100 + 1:02d}:\n      vars: {{rack: {rack // 100 + 1}}}\n      hosts:\n")
            for number in range(rack + 1, min(rack + 100, size) + 1):
                address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
                lines.append(f"        gpu{number:05d}: {{ansible_host: {address}, serial: SN{number:07d}}}\n")
        path = self.folder / "large.yaml"
        path.write_text("".join(lines))
        return path

    def refused_playbook(self) -> Path:
        """A playbook whose only fault is found by the last check before the first connection."""
        path = self.folder / "refused.yaml"
        path.write_text("- hosts: all\n  tasks:\n    - debug: {msg: '{{ never_set_anywhere }}'}\n")
        return path
