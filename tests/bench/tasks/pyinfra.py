"""The ten tasks of gpufleet.yaml as pyinfra says them."""

import io
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.operations import files, server

FOLDER = f"{host.data.node_root}/{host.name}"
NVIDIA = "options nvidia NVreg_EnableGpuFirmware=1\nblacklist nouveau\n"

# pyinfra counts every command as a change: one of ten, on every host.
server.shell(name="Program", commands=["/bin/true"])
files.directory(name="Directory", path=f"{FOLDER}/conf.d", mode="755")
files.put(name="Content", src=io.StringIO(NVIDIA), dest=f"{FOLDER}/nvidia.conf", mode="644")
files.template(
    name="Template",
    src=str(Path(host.data.tasks) / "node.conf.j2"),
    dest=f"{FOLDER}/node.conf",
    mode="644",
    jinja_env_kwargs={"trim_blocks": True},
    inventory_hostname=host.name,
    power_limit=400,
)
files.line(name="Line", path=f"{FOLDER}/system.conf", line="DefaultLimitMEMLOCK=infinity")
server.sysctl(
    name="Kernel parameter",
    key="vm.swappiness",
    value=int(host.data.swappiness),
    persist=True,
    persist_file=f"{FOLDER}/sysctl.conf",
)
files.file(name="Mode of a file", path=f"{FOLDER}/nvidia.conf", mode="644")
looked = host.get_fact(File, path=f"{FOLDER}/node.conf")
configured = bool(looked)
assert configured and looked["size"] > 0, f"{host.name}: node.conf is missing or empty"
