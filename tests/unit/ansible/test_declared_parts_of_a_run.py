"""A plan on the controller names file and line of a declared part that a node lacks: the node knows its key alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.ansible.test_blocked_class import play
from tests.unit.catalog.test_accept_reject import write

FILES = {
    "classes/mine.yml": 'class: mine\nbackend: cpu\nstack: debian12_cpu\n# Of programs without an image.\nparts:\n  ucx: "1.18.1"\n  lustre: "2.17.0"\n'
}

STATUS = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}\n\n"


def test_plan_of_a_node_without_a_declared_part_names_its_line(tmp_path: Path) -> None:
    host = {"ansible_connection": "local", "goldnode_root": str(tmp_path / "node")}
    files = {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS.format("dpkg", "1.21.22")
        + STATUS.format("libucx0", "1.13.1-1"),
    }
    write(tmp_path / "node", files)
    keyrings = tmp_path / "node/usr/share/keyrings"
    keyrings.mkdir(parents=True)
    shutil.copy("/usr/share/keyrings/debian-archive-keyring.gpg", keyrings)
    _, output, _ = play(tmp_path, FILES, {"mine": {"hosts": {"n1": host}}}, "--check")
    line = f"It is declared at {tmp_path}/catalog/classes/mine.yml:6."
    (note,) = (row for row in output.splitlines() if "parts.ucx" in row)
    assert note.strip().startswith(
        "note: parts.ucx: want 1.18.1, have 1.13.1-1 (package libucx0)."
    ), output
    assert "or correct parts.ucx in classes/mine.yml or stacks/debian12_cpu.yml" in note
    assert note.endswith(line), output
    (found,) = (row for row in output.splitlines() if "[part-" in row)
    assert found.endswith(f"({tmp_path}/catalog/classes/mine.yml:7)"), found
