"""Stand-ins for the four packages of the NVIDIA container toolkit: same names, relations and paths, minimal
programs.

The runtime really runs containers. It passes them to runc, and sets GOLDNODE_STANDIN_TOOLKIT=1 in their
environment, so that a test can detect which runtime started them. `nvidia-ctk cdi generate` queries NVML,
which a simulator provides, and writes a spec of the device files that exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulators.apt_archive.debs import Content, Deb, Program

_RUNTIME = '''\
#!/usr/bin/python3
"""goldnode stand-in: nvidia-container-runtime. Runs runc, and marks the containers it creates."""
import json
import os
import sys

if "--version" in sys.argv[1:]:
    print("NVIDIA Container Runtime version @VERSION@ (goldnode stand-in)")
if "create" in sys.argv[1:]:
    bundle = "."
    for at, word in enumerate(sys.argv):
        if word in ("--bundle", "-b"):
            bundle = sys.argv[at + 1]
        elif word.startswith("--bundle="):
            bundle = word.partition("=")[2]
    name = os.path.join(bundle, "config.json")
    with open(name) as opened:
        config = json.load(opened)
    config["process"].setdefault("env", []).append("GOLDNODE_STANDIN_TOOLKIT=1")
    with open(name, "w") as opened:
        json.dump(config, opened)
os.execvp("runc", ["runc", *sys.argv[1:]])
'''

_HOOK = """\
#!/bin/sh
# goldnode stand-in: the prestart hook of `docker run --gpus`; it gives the container nothing.
[ "$1" != --version ] || echo "NVIDIA Container Runtime Hook version @VERSION@ (goldnode stand-in)"
cat >/dev/null
exit 0
"""

_CTK = '''\
#!/usr/bin/python3
"""goldnode stand-in: nvidia-ctk. `cdi generate` writes a CDI spec of what NVML, real or simulated, shows."""
import ctypes
import json
import os
import sys

USAGE = "goldnode stand-in: only --version and `cdi generate [--output=FILE]` are there"


def devices():
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if getattr(nvml, "nvmlInit_v2", None) is None or nvml.nvmlInit_v2():
        sys.exit("ERROR: cannot initialise NVML")
    count, driver = ctypes.c_uint(), ctypes.create_string_buffer(80)
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or nvml.nvmlSystemGetDriverVersion(driver, 80):
        sys.exit("ERROR: NVML does not say what is there")
    return count.value, driver.value.decode()


def main(words):
    if words == ["--version"]:
        print("NVIDIA Container Toolkit CLI version @VERSION@ (goldnode stand-in)")
        return
    if words[:2] != ["cdi", "generate"]:
        sys.exit(USAGE)
    output = next((word.partition("=")[2] for word in words if word.startswith("--output=")), None)
    try:
        count, driver = devices()
    except OSError as error:
        sys.exit("ERROR: %s" % error)
    libraries = ["/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so." + driver, "/usr/lib/x86_64-linux-gnu/libcuda.so." + driver]
    library = next((path for path in libraries if os.path.exists(path)), None)
    lines = ["---", "cdiVersion: 0.7.0", "containerEdits:", "  env:", "    - GOLDNODE_STANDIN_TOOLKIT=1"]
    if library:
        lines += ["  mounts:", "    - containerPath: " + library, "      hostPath: " + library, "      options: [ro, nosuid, nodev, bind]"]
    lines.append("devices:")
    for name in [str(index) for index in range(count)] + ["all"]:
        nodes = ["/dev/nvidia" + name] if name != "all" else ["/dev/nvidia%d" % index for index in range(count)]
        lines += ["  - name: " + json.dumps(name), "    containerEdits:"]
        # A simulated GPU has no device file; an edit of the environment stands for it.
        there = [node for node in nodes if os.path.exists(node)]
        if there:
            lines += ["      deviceNodes:"] + ["        - path: " + node for node in there]
        else:
            lines += ["      env:", "        - GOLDNODE_STANDIN_DEVICE=" + name]
    lines.append("kind: nvidia.com/gpu")
    text = "\\n".join(lines) + "\\n"
    if output is None:
        sys.stdout.write(text)
        return
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output + ".new", "w") as opened:
        opened.write(text)
    os.replace(output + ".new", output)


main(sys.argv[1:])
'''

_CONFIG = """\
#goldnode stand-in
disable-require = false

[nvidia-container-cli]
#path = "/usr/bin/nvidia-container-cli"
load-kmods = true

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
"""

_REFRESH = """\
[Unit]
Description=goldnode stand-in: refresh of the NVIDIA CDI spec

[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
"""
_REFRESH_PATH = """\
[Unit]
Description=goldnode stand-in: refresh of the NVIDIA CDI spec when the driver changes

[Path]
PathChanged=/usr/bin/nvidia-ctk

[Install]
WantedBy=multi-user.target
"""


def toolkit(repository: str, version: str, group: str = "") -> Iterator[Deb]:
    """Yield the four packages at upstream `version`.

    As with the real packages, apt refuses any mix of versions.
    """
    revision = f"{version}-1+standin1"

    def program(text: str) -> Program:
        return Program(text.replace("@VERSION@", version))

    place = Deb("", revision, "", repository=repository, suite="/", group=group, section="utils")
    same = f"(= {revision})"
    files: dict[str, Content] = {
        "/usr/bin/nvidia-ctk": program(_CTK),
        "/usr/bin/nvidia-container-runtime": program(_RUNTIME),
    }
    if int(version.split(".")[1]) >= 18:
        # The real packages have these units in /etc, too.
        files["/etc/systemd/system/nvidia-cdi-refresh.service"] = _REFRESH
        files["/etc/systemd/system/nvidia-cdi-refresh.path"] = _REFRESH_PATH
    yield replace(
        place,
        name="nvidia-container-toolkit-base",
        description="container runtime that hands on to runc",
        source="nvidia-container-toolkit",
        depends="python3",
        files={**files, "/usr/share/goldnode-standin/nvidia-container-runtime.toml": _CONFIG},
        # The real package writes its configuration on installation, unless a configuration exists.
        scripts={
            "postinst": "#!/bin/sh\nset -e\nmkdir -p /etc/nvidia-container-runtime\n[ -e "
            "/etc/nvidia-container-runtime/config.toml ] ||\n"
            "    cp /usr/share/goldnode-standin/nvidia-container-runtime.toml "
            "/etc/nvidia-container-runtime/config.toml\n",
            "postrm": '#!/bin/sh\nset -e\n[ "$1" != purge ] || rm -rf /etc/nvidia-container-runtime\n',
        },
    )
    yield replace(
        place,
        name="nvidia-container-toolkit",
        description="prestart hook that does nothing",
        depends=f"nvidia-container-toolkit-base {same}, libnvidia-container-tools {same}",
        files={"/usr/bin/nvidia-container-runtime-hook": program(_HOOK)},
    )
    yield replace(
        place,
        name="libnvidia-container-tools",
        description="nvidia-container-cli that only says what it is",
        source="libnvidia-container",
        depends=f"libc6, libnvidia-container1 {same}",
        files={
            "/usr/bin/nvidia-container-cli": Program(
                "#!/bin/sh\necho 'goldnode stand-in' >&2\nexit 1\n"
            )
        },
    )
    yield replace(
        place,
        name="libnvidia-container1",
        description="not a library",
        source="libnvidia-container",
        section="libs",
        depends="libc6",
        multi_arch="same",
    )
