"""`goldnode init` and `goldnode apply --local` on a node: one machine, no ssh, from a bare system to a second run without changes."""

from __future__ import annotations

import io
import json
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.support import Site
from tests.release_files import export

from goldnode.core.site import load_site
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

# What goldnode[ansible] requires, as modules of this environment. The node's Python has the same version.
REQUIRED = (
    "*.dist-info", "_cffi_backend*", "_yaml", "annotated_types", "ansible", "ansible_runner", "cffi", "click", "cryptography",
    "daemon", "jinja2", "lockfile", "markdown_it", "markupsafe", "mdurl", "packaging", "pexpect", "ptyprocess", "pydantic",
    "pydantic_core", "pygments", "pynvml.py", "resolvelib", "rich", "typing_extensions.py", "typing_inspection", "urllib3",
    "yaml",
)  # fmt: skip
VENV = "/opt/goldnode/venv"
PROGRAM = "#!{venv}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
MAINS = {
    "goldnode": "goldnode.cli",
    "ansible": "ansible.cli.adhoc",
    "ansible-inventory": "ansible.cli.inventory",
    "ansible-playbook": "ansible.cli.playbook",
}


def carry(node: LabNode, tree: Path) -> None:
    """Put the checkout in `tree` and a virtual environment for it on the node."""
    packages = Path(sysconfig.get_path("purelib"))
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name in (
            "src",
            "catalog",
            "schemas",
            "roles",
            "site.yml",
            "ansible.cfg",
            "images/containers",
            "pyproject.toml",
        ):
            tar.add(tree / name, f"opt/goldnode/tree/{name}")
        for pattern in REQUIRED:
            for path in packages.glob(pattern):
                tar.add(path, f"{VENV[1:]}/lib/python3.11/site-packages/{path.name}")
    node.container.put_archive("/", sink.getvalue())
    node.put(
        {
            f"{VENV}/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = false\n",
            f"{VENV}/lib/python3.11/site-packages/goldnode.pth": b"/opt/goldnode/tree/src\n",
        }
    )
    programs = {
        f"{VENV}/bin/{name}": PROGRAM.format(venv=VENV, module=module).encode()
        for name, module in MAINS.items()
    }
    node.put(programs, 0o755)
    node.shell(
        f"ln -s /usr/bin/python3 {VENV}/bin/python && ln -s {VENV}/bin/goldnode /usr/local/bin/goldnode"
    )


def put_site(node: LabNode, site: Site, tree: Path) -> dict[str, str]:
    """Put goldnode from `tree`, catalog, locks and site file on the node. Return the environment for commands there."""
    assert site.catalog is not None
    assert site.site is not None
    assert site.locks is not None
    carry(node, tree)
    files = {
        f"/root/e2e/{path.relative_to(site.catalog)}": path.read_bytes()
        for path in site.catalog.rglob("*.yml")
    }
    files |= {f"/root/e2e/locks/{path.name}": path.read_bytes() for path in site.locks.iterdir()}
    settings = load_site(site.site)
    for archive in settings.archives.values():
        assert archive.key is not None
        key = Path(archive.key)
        files[f"/root/e2e/{key.name}"] = key.read_bytes()
    text = site.site.read_text(encoding="utf-8").replace(f"{key.parent}/", "")
    files["/root/e2e/goldnode-site.yml"] = text.encode()
    node.put(files)
    return {
        "GOLDNODE_CATALOG": "/root/e2e",
        "GOLDNODE_LOCKS": "/root/e2e/locks",
        "GOLDNODE_SITE": "/root/e2e/goldnode-site.yml",
        "LC_ALL": "C.UTF-8",
    }


def test_one_machine_from_nothing_to_its_class(
    make: Callable[..., tuple[LabNode, Site]], tmp_path: Path
) -> None:
    node, site = make("local", "e2e_plain", "e2e_plain")
    environment = put_site(node, site, export(tmp_path / "tree"))

    def goldnode(words: str, rc: int = 0) -> str:
        done = node.shell(
            f"cd /root/mine 2>/dev/null || cd /root; goldnode {words}", check=False, env=environment
        )
        assert done.rc == rc, done.output[-6000:]
        return done.output

    assert "wrote mine/inventory/e2e_plain.yml" in goldnode("init mine --local --class e2e_plain")
    shown = goldnode("apply --local --dry-run", 1)
    assert "Class e2e_plain (of localhost in ./inventory)" in shown
    assert node.shell("apt-mark showhold").output == ""
    assert "There is no terminal to ask on" in goldnode("apply --local </dev/null", 2)
    applied = goldnode("apply --local --yes")
    assert "This machine is what class e2e_plain declares." in applied
    assert node.shell("apt-mark showhold").output.split()
    node.shell("test -e /etc/systemd/system/goldnode-sanity.service")
    again = goldnode("apply --local --yes --format json 2>/dev/null")
    assert json.loads(again)["applied"] is False
    # A container node boots no kernel of its own, so the reboot stays pending; it is reported and not made.
    assert "It must be rebooted (nothing reboots it by itself)" in applied
    assert "1 reboot pending" in goldnode("apply --local --dry-run")
