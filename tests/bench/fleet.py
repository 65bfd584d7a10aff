"""A fleet of real OpenSSH daemons on loopback.

Owns the daemons and the folders of the nodes. Every node has its own address (127.0.1.N), host key and home; where mounting is
allowed it also has its own /var/lib/gpufleet, as a machine of its own would. Nothing is left behind: `warden.py` starts the
daemons and ends them, each by its id, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

SSHD = "/usr/sbin/sshd"
NODE_STATE = Path("/var/lib/gpufleet")
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# The daemons must not be what is measured: no limit that a hundred clients at once could meet.
SSHD_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {keys}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 2000
MaxSessions 200
LoginGraceTime 120
PrintMotd no
PrintLastLog no
UseDNS no
Subsystem sftp internal-sftp
LogLevel ERROR
SetEnv PATH={path}{home}
"""


class FleetError(Exception):
    """The fleet cannot be started."""


class Fleet:
    """Daemons 1 to N below one folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.names = [f"node{number:03d}" for number in range(1, size + 1)]
        self.user = pwd.getpwuid(os.getuid())
        self.port = 0
        self.daemons: list[int] = []
        self.warden: subprocess.Popen[str] | None = None
        self.key = folder / "id_ed25519"
        self.known_hosts = folder / "known_hosts"
        self.private_mounts = os.getuid() == 0 and self._may_mount()
        self._made_node_state = False

    @staticmethod
    def _may_mount() -> bool:
        probe = ["unshare", "--mount", "sh", "-c", "mount --bind /tmp /tmp"]
        with contextlib.suppress(OSError):
            return subprocess.run(probe, capture_output=True, check=False).returncode == 0
        return False

    def address(self, name: str) -> str:
        return f"127.0.1.{self.names.index(name) + 1}"

    def home(self, name: str) -> Path:
        return self.folder / "nodes" / name / "home"

    def node_state(self, name: str) -> Path:
        return self.folder / "nodes" / name / "state"

    def _keygen(self, path: Path, comment: str) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)

    def _free_port(self) -> int:
        for port in random.sample(range(20000, 32000), 50):
            with contextlib.ExitStack() as open_sockets:
                try:
                    for name in self.names:
                        listener = open_sockets.enter_context(socket.socket())
                        listener.bind((self.address(name), port))
                except OSError:
                    continue
                return port
        raise FleetError("no port is free on all of 127.0.1.1 to 127.0.1.%d" % self.size)

    def start(self) -> None:
        self._keygen(self.key, "bench")
        keys = self.folder / "authorized_keys"
        keys.write_text((self.folder / "id_ed25519.pub").read_text())
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        if self.private_mounts and not NODE_STATE.exists():
            NODE_STATE.mkdir(mode=0o700)
            self._made_node_state = True
        self.port = self._free_port()
        known, commands = [], []
        for name in self.names:
            folder = self.folder / "nodes" / name
            for place in (self.home(name), self.node_state(name)):
                place.mkdir(mode=0o700, parents=True)
            self._keygen(folder / "host_key", name)
            kind, key = (folder / "host_key.pub").read_text().split()[:2]
            known.append(f"[{self.address(name)}]:{self.port} {kind} {key}\n")
            config = folder / "sshd_config"
            home = "" if self.private_mounts else f" HOME={self.home(name)}"
            config.write_text(
                SSHD_CONFIG.format(
                    address=self.address(name), port=self.port, folder=folder, keys=keys, path=CLEAN_PATH, home=home
                )
            )
            commands.append(self._command(name, config, folder / "sshd.log"))
        self.known_hosts.write_text("".join(known))
        warden = [sys.executable, str(Path(__file__).with_name("warden.py"))]
        self.warden = subprocess.Popen(warden, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.warden.stdin and self.warden.stdout
        json.dump({"environment": {"PATH": CLEAN_PATH}, "commands": commands}, self.warden.stdin)
        self.warden.stdin.close()
        self.daemons = json.loads(self.warden.stdout.readline() or "[]")
        if len(self.daemons) != self.size:
            raise FleetError("the daemons could not be started")
        self._wait_until_they_listen()

    def _command(self, name: str, config: Path, log: Path) -> list[str]:
        command = [SSHD, "-D", "-f", str(config), "-E", str(log)]
        if not self.private_mounts:
            return command
        mounts = 'mount --bind "$1" "$2" && mount --bind "$3" "$4" && shift 4 && exec "$@"'
        places = [self.home(name), self.user.pw_dir, self.node_state(name), NODE_STATE]
        return ["unshare", "--mount", "sh", "-c", mounts, "sh", *map(str, places), *command]

    def _wait_until_they_listen(self) -> None:
        deadline = time.monotonic() + 60
        for name, daemon in zip(self.names, self.daemons, strict=True):
            while True:
                if not Path(f"/proc/{daemon}").exists():
                    log = self.folder / "nodes" / name / "sshd.log"
                    reason = log.read_text().strip() if log.exists() else ""
                    raise FleetError(f"sshd of {name} ended: {reason}")
                with contextlib.suppress(OSError), socket.create_connection((self.address(name), self.port), 1):
                    break
                if time.monotonic() > deadline:
                    raise FleetError(f"sshd of {name} does not listen")
                time.sleep(0.02)

    def forget_gpufleet(self) -> None:
        """Gives every node the home and the state of a machine that gpufleet never saw."""
        for name in self.names:
            for place in (self.home(name), self.node_state(name)):
                subprocess.run(["find", str(place), "-mindepth", "1", "-delete"], check=True)

    def cpu_seconds(self) -> float:
        """CPU that the daemons used, with every session of theirs that has ended."""
        ticks = 0
        for pid in [*self.daemons, *self.pids()]:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / CLOCK_TICKS

    def pids(self) -> set[int]:
        """Children of this process that belong to the fleet."""
        return {self.warden.pid} if self.warden else set()

    def stop(self) -> None:
        if self.warden:
            self.warden.terminate()
            self.warden.wait()
            self.warden = None
        self.daemons.clear()
        if self._made_node_state:
            with contextlib.suppress(OSError):
                NODE_STATE.rmdir()
