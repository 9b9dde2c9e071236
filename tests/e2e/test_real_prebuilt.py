"""The real 535 driver built once in a clean root, and installed on a node that has neither compiler nor headers nor DKMS."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import CATALOG
from tests.e2e.support import Site, goldnode, inventory, site_yml, succeeded

from goldnode.lab.nodes import Lab, NodeSpec

pytestmark = pytest.mark.real
STACK = "debian12_r535"
# What builds modules; kmod and perl-base belong to every Debian.
BUILDERS = re.compile(r"^(dkms|gcc(-\d+)?|cpp(-\d+)?|make|binutils.*|dpkg-dev|.*-dkms|linux-(headers|kbuild|compiler)-.*)$")


def test_a_node_without_compiler_gets_the_real_driver(lab: Lab, tmp_path: Path) -> None:
    mirror, keys = tmp_path / "mirror", tmp_path / "keys"
    mirror.mkdir()
    server = lab.serve(mirror, "mirror")
    path = tmp_path / "site.yml"
    named = {"directory": str(mirror), "url": server.url, "key": str(keys / "mirror.asc"), "signing_key": str(keys / "mirror-signing.asc")}
    path.write_text(yaml.safe_dump({"modules": "prebuilt", "mirror": named}))
    site = Site(catalog=CATALOG, site=path, locks=tmp_path / "locks")
    steps = (("mirror", "key", "--out", str(keys)), ("lock", STACK, "--out", str(site.locks)), ("modules", "build", STACK))
    for arguments in steps:
        done = goldnode(*arguments, site=site)
        assert done.returncode == 0, done.stderr
    result = json.loads(next((mirror / "modules/results").glob("*.json")).read_text())
    assert result["ok"]
    assert set(result["modules"]) >= {"nvidia-current", "nvidia-current-uvm", "nvidia-current-modeset", "nvidia-current-drm"}

    node = lab.up([NodeSpec("built12", "e2e_r535", os="debian12", flavour="bare")])[0]
    hosts = inventory(tmp_path / "hosts", {"e2e_r535": [node]})
    succeeded(site_yml(hosts, site=site))
    wanted = json.loads(node.read("/etc/goldnode/class.json"))
    release, driver = wanted["kernel"]["release"], wanted["driver"]
    info = node.run("modinfo", "-k", release, driver["module"]).output
    assert re.search(rf"^filename:\s+/lib/modules/{re.escape(release)}/updates/goldnode/nvidia-current\.ko$", info, re.MULTILINE), info
    assert re.search(rf"^version:\s+{re.escape(driver['version'])}$", info, re.MULTILINE), info
    assert re.search(rf"^vermagic:\s+{re.escape(release)} SMP", info, re.MULTILINE), info
    assert int(node.shell(f"stat -c %s $(modinfo -k {release} -F filename {driver['module']})").output) > 10_000_000, "not a real driver"
    # What modprobe would do on this kernel, the modules it would take along included: every symbol's owner is found.
    assert "updates/goldnode/nvidia-current-uvm.ko" in node.run("modprobe", "-S", release, "--show-depends", "nvidia-current-uvm").output
    have = node.shell("dpkg-query -W -f '${Package}\\n'").output.split()
    assert not [name for name in have if BUILDERS.match(name)]
    assert node.run("dpkg", "--audit").output.strip() == ""
    assert not [name for name in ("gcc", "cc", "make", "dkms") if node.run("which", name, check=False).rc == 0]
    again = succeeded(site_yml(hosts, "-vvv", site=site))
    assert (again.changed[node.name], again.executions) == (0, 1)

    # What a person installs beside it from Debian does not bring dkms back.
    own = node.read("/etc/apt/sources.list.d/debian.sources")
    node.put({"/etc/apt/sources.list.d/more.sources": own.replace("Components: main", "Components: contrib non-free").encode()})
    node.shell("apt-get update")
    simulated = node.shell("apt-get -s install --no-install-recommends nvidia-driver").output
    coming = re.findall(r"^Inst (\S+)", simulated, re.MULTILINE)
    assert "nvidia-driver" in coming
    assert not [name for name in coming if BUILDERS.match(name)]
