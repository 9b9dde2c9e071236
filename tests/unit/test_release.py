"""A release: its bytes, and that wheel and collection work from an empty directory, offline and without an ansible.cfg."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from release import provenance
from release.__main__ import build
from tests.release_files import EPOCH, ROOT, Installed, export, install
from tests.unit.ansible.test_blocked_class import THERE
from tests.unit.ansible.test_cohorts import ELDER, YOUNGER
from tests.unit.catalog.test_accept_reject import write
from tests.unit.images.registries import make_ecdsa_key

from goldnode.core.data import data

pytestmark = pytest.mark.xdist_group("release")
SIGNED = ("SHA256SUMS.sig", "goldnode-0.2.0.intoto.jsonl")
COMMANDS = (
    "--version",
    "classes",
    "check --class cpu_only",
    "check-catalog",
    "class export cpu_only",
    "disks list",
    "images list",
    "lock debian12_cpu --diff {data}/catalog/stacks/debian12_cpu.lock.yml",
    "matrix",
    "node-program --out goldnode-node",
    "schema site",
    "schema",
    "xid 79",
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tree twice, in different directories and with different modes, times and order."""
    where = tmp_path_factory.mktemp("trees")
    return export(where / "one"), export(where / "two", private=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a key of releases; secret and public half."""
    return make_ecdsa_key(tmp_path_factory.mktemp("keys"), "release")


@pytest.fixture(scope="module")
def release(
    trees: tuple[Path, Path], keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Build a signed release into a relative directory, as `scripts/release` does without a directory."""
    where = tmp_path_factory.mktemp("release")
    with contextlib.chdir(where):
        build(trees[0], Path("dist"), EPOCH)
        provenance.sign(Path("dist"), provenance.signer(keys[0]))
    return where / "dist"


@pytest.fixture(scope="module")
def installed(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(release, tmp_path_factory.mktemp("installed") / "goldnode")


def tree(path: Path) -> dict[str, str]:
    """Return path -> digest of every file."""
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def test_two_builds_have_the_same_bytes(
    release: Path, trees: tuple[Path, Path], tmp_path: Path
) -> None:
    build(trees[1], tmp_path / "again", EPOCH)
    assert (tmp_path / "again/SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()
    names = {path.name for path in release.iterdir() if path.name not in SIGNED}
    assert len(names) == 11
    for line in (release / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
        names.remove(name)
    assert names == {"SHA256SUMS"}


def test_the_bill_names_what_an_installation_needs(release: Path) -> None:
    bill = json.loads(next(release.glob("*.cdx.json")).read_text())
    scopes = {row["name"]: row["scope"] for row in bill["components"]}
    assert scopes["click"] == scopes["pydantic-core"] == "required"
    assert scopes["ansible-core"] == scopes["docker"] == scopes["pytest"] == "optional"
    for name in ("uvicorn", "h11", "sqlalchemy", "tuf", "duckdb", "pyarrow", "scipy", "psycopg"):
        assert scopes[name] == "optional"
    assert all(row["licenses"][0]["expression"] for row in bill["components"])
    assert all(row["externalReferences"][0]["hashes"] for row in bill["components"])
    artifacts = {row["name"] for row in bill["metadata"]["component"]["components"]}
    others = ("SHA256SUMS", "goldnode-0.2.0.cdx.json", "goldnode-0.2.0.provenance.json", *SIGNED)
    assert artifacts == {path.name for path in release.iterdir()} - set(others)
    assert {"goldnode-node", "goldnode-node-follow"} <= artifacts


def verify(installed: Installed, *words: object) -> tuple[int, str]:
    """Run `goldnode verify-release`; return its exit status and output."""
    done = installed.run("goldnode", "verify-release", *map(str, words))
    return done.returncode, done.stdout + done.stderr


def test_a_release_proves_itself(
    release: Path, installed: Installed, keys: tuple[Path, Path]
) -> None:
    """With the wheel that it verifies, which has no cryptography of Python: openssl verifies."""
    status, output = verify(installed, release, "--key", keys[1])
    assert status == 0, output
    assert "with its provenance" in output
    assert output.count("as released") == 10
    commands = (
        f"openssl dgst -sha256 -verify {keys[1]} -signature SHA256SUMS.sig SHA256SUMS",
        "sha256sum --check --strict SHA256SUMS",
    )
    for line in commands:
        done = subprocess.run(
            line.split(), cwd=release, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def bare_root(root: Path) -> Path:
    """Make a root directory with a shell, openssl and sha256sum, and nothing else that runs."""
    for name in ("sh", "openssl", "sha256sum"):
        program = shutil.which(name)
        assert program is not None
        files = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for file in {program, *re.findall(r"(/\S+) \(0x", files)}:
            target = root / (f"bin/{name}" if file == program else file.lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    (root / "release").mkdir()
    return root


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot is root's")
def test_a_machine_with_openssl_and_sha256sum_verifies_a_release(
    release: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """The line of docs/how-to/install.md, on a machine that has no Python and no checkout."""
    root = bare_root(tmp_path / "root")
    for path in release.iterdir():
        shutil.copy(path, root / "release")
    shutil.copy(keys[1], root / "goldnode-release.pub")
    page = (ROOT / "docs/how-to/install.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("$ openssl dgst"))
    script = f"cd /release && {line.removeprefix('$ ')}"

    def run() -> subprocess.CompletedProcess[str]:
        command = [shutil.which("chroot") or "/usr/sbin/chroot", str(root), "/bin/sh", "-c", script]
        environment = {"PATH": "/bin", "OPENSSL_CONF": "/dev/null"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verified OK" in done.stdout
    assert done.stdout.count(": OK") == 10
    program = root / "release/goldnode-node"
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(data)
    assert "goldnode-node: FAILED" in run().stdout
    with (root / "release/SHA256SUMS").open("a") as sums:
        sums.write("\n")
    done = run()
    assert done.returncode != 0
    assert ": OK" not in done.stdout, "files are compared with sums that are not signed"


@pytest.mark.parametrize("name", ["whl", "goldnode-node", "SHA256SUMS", "sig", "provenance.json"])
def test_one_changed_byte_is_refused(
    release: Path, installed: Installed, keys: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(release, copy)
    path = next(path for path in sorted(copy.iterdir()) if path.name.endswith(name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    status, output = verify(installed, copy, "--key", keys[1])
    assert status == 1, output
    assert "Traceback" not in output


def test_the_wheel_has_the_data_of_the_tree(release: Path) -> None:
    with zipfile.ZipFile(next(release.glob("*.whl"))) as wheel:
        packed = {
            name.removeprefix("goldnode/_data/"): wheel.read(name)
            for name in wheel.namelist()
            if "/_data/" in name
        }
    for folder in ("catalog", "images", "integrations", "roles", "schemas"):
        there = {
            str(path.relative_to(ROOT)): path.read_bytes()
            for path in data(folder).rglob("*")
            if path.is_file()
        }
        assert there == {
            name: text for name, text in packed.items() if name.startswith(f"{folder}/")
        }
    assert {
        "site.yml",
        "report.yml",
        "rollback.yml",
        "rollout.yml",
        "rollout/apply.yml",
        "ansible.cfg",
    } <= packed.keys()


def test_commands_run_in_an_empty_directory(installed: Installed) -> None:
    before, faults = tree(installed.package), {}
    for line in COMMANDS:
        words = line.format(data=installed.package / "_data").split()
        done = installed.run("goldnode", *words)
        if done.returncode or "Traceback" in done.stderr:
            faults[line] = done.stderr
    assert faults == {}
    assert tree(installed.package) == before, "a command wrote into the package"
    assert (installed.directory / "empty/schemas/class.json").is_file()


def test_the_wheel_has_the_program_of_the_nodes(installed: Installed) -> None:
    """It judges a record as `goldnode check-node` does, and ends with its verdict."""
    record = ROOT / "tests/unit/node/fixtures/smi/rtx4090_535.xml"
    done = installed.run("goldnode-node", "check", "--from", str(record))
    assert (done.returncode, done.stderr) == (0, "")
    assert "found: 1 x GeForce-RTX-4090, driver 535.86.05" in done.stdout
    wrong = installed.run("goldnode-node", "check", "--from", "none.xml")
    assert (wrong.returncode, wrong.stdout) == (3, "")
    assert "none.xml" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_plan_finds_the_plugins_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """Nothing listens where the host should be: it is reached for, with its class compiled from the wheel."""
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"cpu_only": {"hosts": {"n1": THERE}}}))
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nvars_plugins = mine\n"
    )  # a configuration that is the user's
    done = installed.run("goldnode", "plan", "-i", "hosts.yml", "--format", "json", here=tmp_path)
    assert json.loads(done.stdout)["hosts"]["n1"]["state"] == "unreachable", (
        done.stdout + done.stderr
    )


def play(
    installed: Installed, where: Path, groups: dict[str, Any], *words: str, **environment: str
) -> str:
    """Run the playbook of the collection; return what it prints."""
    write(where / "catalog", {"classes/younger.yml": YOUNGER, "classes/other.yml": ELDER})
    (where / "hosts.yml").write_text(yaml.safe_dump(groups))
    done = installed.run(
        *("ansible-playbook", "-i", "hosts.yml", "goldnode.node.site", *words),
        here=where,
        GOLDNODE_CATALOG=str(where / "catalog"),
        **environment,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


def test_the_playbook_finds_the_class_of_each_host(installed: Installed, tmp_path: Path) -> None:
    train = {**THERE, "goldnode_cohort": "train"}
    groups = {
        "cpu_only": {"hosts": {"c1": THERE, "both": THERE}},
        "other": {"hosts": {"o1": train, "both": THERE}},
        "younger": {"hosts": {"n1": train}},
        "none_such": {"hosts": {"x1": THERE}},
    }
    output = play(installed, tmp_path, groups)
    assert "fatal: [c1]: UNREACHABLE!" in output
    assert output.count("class cpu_only, checked: warn: [os-support]") == 1
    assert 'host "both" is in two classes: "other" here and "cpu_only" at' in output
    assert "Host x1 is of no node class: none of its groups (none_such)" in output
    assert output.count("cohort train is blocked, and nothing was touched") >= 2
    assert 'UNREACHABLE! => {"changed": false, "msg": "Task failed: Failed to connect' in output


@pytest.mark.skipif(os.geteuid() != 0, reason="a node's report is root's")
def test_the_collection_fetches_reports(installed: Installed, tmp_path: Path) -> None:
    hosts = {
        "all": {
            "hosts": {
                "here": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": sys.executable,
                }
            }
        }
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
    command = ("ansible-playbook", "-i", "hosts.yml", "goldnode.node.report")
    done = installed.run(*command, here=tmp_path, GOLDNODE_FLEET_DATA=str(tmp_path / "data"))
    assert done.returncode == 0, done.stdout + done.stderr
    (fetched,) = (tmp_path / "data/inbox").iterdir()
    assert json.loads(fetched.read_text())["node"] == "here"


@pytest.mark.parametrize("playbook", ["site", "rollback"])
def test_a_tag_that_selects_nothing_is_an_error_without_plugins(
    installed: Installed, tmp_path: Path, playbook: str
) -> None:
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"cpu_only": {"hosts": {"c1": THERE, "c2": THERE}}})
    )
    command = (
        "ansible-playbook",
        "-i",
        "hosts.yml",
        f"goldnode.node.{playbook}",
        "--tags",
        "kernell",
    )
    done = installed.run(*command, here=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Nothing was done: --tags kernell selects no part of" in done.stdout
    assert "UNREACHABLE" not in done.stdout
    mine = [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [{"debug": {"msg": "mine"}, "tags": "kernell"}],
        }
    ]
    book = [*mine, {"import_playbook": f"goldnode.node.{playbook}"}]
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book))
    command = ("ansible-playbook", "-i", "hosts.yml", "book.yml", "--tags", "kernell")
    done = installed.run(*command, here=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was done" not in done.stdout


def test_the_optional_plugins_of_the_collection_work(installed: Installed, tmp_path: Path) -> None:
    output = play(
        installed,
        tmp_path,
        {"cpu_only": {"hosts": {"c1": {**THERE, "goldnode_drian": "slurm"}}}},
        ANSIBLE_CALLBACKS_ENABLED="goldnode.node.goldnode_report",
        ANSIBLE_VARS_ENABLED="host_group_vars,goldnode.node.goldnode_class",
    )
    assert 'use "goldnode_drain"' in output
    assert "goldnode: 1 host in" in output
    assert list((tmp_path / ".goldnode/runs").glob("*-site.json"))


@pytest.mark.parametrize(
    ("version", "message"),
    [("9.9.9", "needs the Python package goldnode 9.9.9, and"), (None, "which is not installed")],
)
def test_another_package_is_an_error_that_names_the_command(
    installed: Installed, tmp_path: Path, version: str | None, message: str
) -> None:
    source = installed.directory / "ansible/collections/ansible_collections/goldnode/node"
    copy = tmp_path / "collections/ansible_collections/goldnode/node"
    shutil.copytree(source, copy)
    helper = copy / "plugins/plugin_utils/package.py"
    text = helper.read_text()
    changed = (
        re.sub('^VERSION = ".*"', f'VERSION = "{version}"', text, flags=re.MULTILINE)
        if version
        else text.replace('version("goldnode")', 'version("goldnode-that-is-missing")')
    )
    assert changed != text
    helper.write_text(changed)
    output = play(
        installed,
        tmp_path,
        {"cpu_only": {"hosts": {"c1": THERE}}},
        ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"),
    )
    assert message in output
    assert "-m pip install 'goldnode==" in output
    assert "UNREACHABLE" not in output


def test_the_collection_reads_inventories_of_schedulers(
    installed: Installed, tmp_path: Path
) -> None:
    answer = ROOT / "tests/unit/inventory/answers/scontrol.txt"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(0o755)
    text = (ROOT / "integrations/inventories/slurm.yml").read_text()
    text = text.replace("plugin: goldnode_slurm ", "plugin: goldnode.node.goldnode_slurm ")
    (tmp_path / "slurm.yml").write_text(f"{text}program: [{program}]\n")
    done = installed.run(
        "ansible-inventory", "-i", "slurm.yml", "--graph", "h100_sxm5_80gb", here=tmp_path
    )
    assert done.stdout.split() == ["@h100_sxm5_80gb:", "|--n1", "|--n2"], done.stderr


def test_tasks_of_the_collection_use_full_names(installed: Installed) -> None:
    collection = installed.directory / "ansible/collections/ansible_collections/goldnode/node"
    files = [*collection.glob("roles/*/tasks/*.yml"), *collection.glob("playbooks/*.yml")]
    assert len(files) == 17
    modules = set()
    for path in files:
        text = path.read_text()
        for row in yaml.safe_load(text):
            for task in row.get("tasks", [row]):
                modules |= {key for key in task if "goldnode" in key}
                role = task.get("ansible.builtin.import_role")
                assert role is None or role["name"].startswith("goldnode.node."), path
    assert modules == {"goldnode.node.goldnode_state", "goldnode.node.goldnode_drain"}


def test_documentation_is_found(installed: Installed) -> None:
    for kind, name in (("callback", "goldnode_report"), ("role", "sanity")):
        done = installed.run("ansible-doc", "-t", kind, f"goldnode.node.{name}")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) > 400, done.stdout
