"""The same state as a node class, kept by pyinfra: `pyinfra HOSTS deploy.py --data state=FILE`."""

import json
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files, server

state = json.loads(Path(host.data.state).read_text(encoding="utf-8"))["conventional_state"]


def refuse(what: str) -> None:
    """End this host's run."""
    raise SystemExit(what)


if f'VERSION_ID="{state["os"]["version"]}"' not in host.get_fact(
    Command, command="cat /etc/os-release"
):
    refuse("another release")
if host.get_fact(File, path="/usr/bin/nvidia-uninstall"):
    refuse("a driver of NVIDIA's .run file")
if host.get_fact(
    Command, command="grep -ls /compute/cuda/repos/ /etc/apt/sources.list.d/[!g]* || true"
):
    refuse("somebody else's GPU repository")
if host.get_fact(Command, command="dpkg --audit"):
    refuse("unfinished packages")

for directory in state["directories"]:
    files.directory(path=directory, mode="755")
for file in state["files"]:
    files.put(
        src=file["content"],
        dest=file["path"],
        mode=file["mode"].lstrip("0"),
        create_remote_dir=False,
    )
for path in ("/etc/initramfs-tools/modules", "/etc/modules"):
    files.replace(path=path, text=f"^({'|'.join(state['unwanted'])})\\b", replace="# \\1")

for part in ("kernel", "driver"):
    apt.packages(
        packages=state["packages"][part],
        no_recommends=True,
        extra_install_args="--allow-downgrades --allow-change-held-packages",
    )
if host.get_fact(
    Command, command="dpkg-query -W -f '${Package}\\n' 'nvidia-tesla-*' 2>/dev/null || true"
):
    server.shell(commands=["apt-get remove -y 'nvidia-tesla-*'"])
held = (host.get_fact(Command, command="apt-mark showhold") or "").split()
if set(state["holds"]) - set(held):
    server.shell(commands=[f"apt-mark hold {' '.join(state['holds'])}"])

kernel, module = state["kernel"], state["module"]
if (
    host.get_fact(Command, command=f"modinfo -k {kernel} -F version {module['name']} || true")
    != module["version"]
):
    server.shell(commands=[f"dkms install {module['dkms']} -k {kernel}"])
if state["library"] not in host.get_fact(Command, command="/sbin/ldconfig -p"):
    refuse("no driver library")
if not host.get_fact(File, path=f"/boot/initrd.img-{kernel}"):
    server.shell(commands=[f"update-initramfs -c -k {kernel}"])
host.get_fact(File, path="/boot/grub/grub.cfg")
for link in state["links"]:
    files.link(path=link["path"], target=link["to"])
