"""`goldnode …`: what it prints, how it ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.catalog.test_accept_reject import CLASS

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError
from goldnode.core.program_file import build, payload


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A site that needs neither this machine's apt nor a network."""
    path = tmp_path / "site.yml"
    path.write_text(
        "archives:\n  debian: {url: 'file:///nowhere/debian'}\n  debian-security: {url: 'file:///nowhere/security'}\n"
        "  nvidia-cuda: {url: 'file:///nowhere/cuda'}\n"
    )
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    return path


def test_classes_command_lists_archive_and_simulation() -> None:
    result = run("classes")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert "simulated hardware" in rows["demo_a100"]
    assert "simulated" not in rows["a100_sxm4_40gb"]
    assert "local-archive" in rows["a100_sxm4_40gb"]


def test_json_of_classes_has_gpu_stack_and_archive() -> None:
    rows = {
        row["class"]: row
        for row in json.loads(run("classes", "--format", "json").stdout)["classes"]
    }
    assert rows["cpu_only"]["gpu"] is None
    assert rows["a100_sxm4_40gb"] == {
        "class": "a100_sxm4_40gb",
        "backend": "cuda",
        "gpu": {"model": "A100-SXM4-40GB", "count": 8},
        "stack": "debian12_r580",
        "exercised": "local-archive",
        "simulated": False,
    }


def test_the_version_names_the_program_of_the_nodes() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.splitlines()[0].startswith("goldnode 0.")
    assert result.output.splitlines()[1] == f"goldnode-node {payload(content=False)['sha256']}"


@pytest.mark.parametrize(
    ("name", "intended"),
    [("chek", "check"), ("disk", "disks"), ("image", "images"), ("shema", "schema")],
)
def test_misspelt_command_exits_2_with_the_intended_one(name: str, intended: str) -> None:
    result = run(name)
    assert result.exit_code == 2
    assert f"No such command '{name}'. Did you mean '{intended}'?" in result.stderr
    assert "Did you mean 'list'?" in run("disks", "lst").stderr
    assert "Did you mean" not in run("something-else").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("matrix", "--out", "{there}/none/x"),
        ("schema", "--out", "{there}/file/x"),
        ("disks", "gc", "--store", "{there}/file/x", "--dry-run"),
        ("node-program", "--out", "{there}/none/x"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = [word.format(there=tmp_path) for word in arguments]
    result = run(*given)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}/")
    assert "cannot be read or written: No" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert isinstance(run("--debug", *given).exception, OSError)


def test_a_fault_without_the_name_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kind: int) -> Callable[[], None]:
        def load() -> None:
            raise OSError(kind, os.strerror(kind))

        return load

    monkeypatch.setattr("goldnode.classdoc.load.load_catalog", broken(errno.ENOSPC))
    assert (
        run("classes").stderr
        == "error: a file cannot be read or written: No space left on device. Free space where `goldnode --debug …` shows.\n"
    )
    monkeypatch.setattr("goldnode.classdoc.load.load_catalog", broken(errno.ECONNREFUSED))
    assert isinstance(run("classes").exception, OSError), "about no file: a fault of goldnode"


def test_the_program_of_the_nodes_at_a_desk(tmp_path: Path) -> None:
    out = tmp_path / "goldnode-node"
    result = run("node-program", "--out", str(out))
    assert (result.exit_code, out.stat().st_mode & 0o777) == (0, 0o755)
    assert out.read_bytes() == build()
    (tmp_path / "broken.json").write_text("{")
    for named, message in (
        (
            (),
            "node.json: cannot be read (No such file or directory)",
        ),  # without a class the facts are enough
        (
            ("--class", "l4"),
            "l4: there is no class document. Write it with `goldnode class export CLASS > class.json`.",
        ),
        (("--class", "broken.json"), "Write it with `goldnode class export CLASS > class.json`."),
    ):
        words = [out, "check", "--root", tmp_path, "--from", "node.json", *named]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (3, True), done.stderr


def test_class_export_prints_the_class_document() -> None:
    result = run("class", "export", "cpu_only")
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert document["schema"] == "goldnode.class/1"
    assert document["site"]["archives"][0]["uri"] == "file:///nowhere/debian"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("class", "export", "cpu_onyl"),
            'class "cpu_onyl" is not in the catalog. Use "cpu_only".',
        ),
        (("class", "export", "l4"), "Run `goldnode lock debian12_r580`."),
        (("lock", "debian12_r53"), 'stack "debian12_r53" is not in the catalog.'),
        (("lock", "debian12_r580"), 'archive "nvidia-cuda" cannot be used: nothing is at'),
        (("lock", "debian12_cpu"), 'archive "debian'),
        (("lock", "debian12_cpu", "--offline"), "never read before. Run once without --offline."),
        (("lock", "debian12_r580", "--check"), "has no lock"),
        (
            ("lock", "debian12_cpu", "--diff", "/etc/passwd"),
            "…, expected a mapping of keys. Name a STACK.lock.yml as goldnode wrote it.",
        ),
        (
            ("lock", "debian12_cpu", "--on", "/etc/passwd"),
            "/etc/passwd:1: this is no status file of dpkg: what is here names no package.",
        ),
        (
            ("images", "inspect", "--policy", "/etc/passwd", "/etc"),
            "…, expected a mapping of keys.",
        ),
        (("schema", "clas"), 'there is no schema "clas". Use "class".'),
        (("schema", "clas", "--format", "markdown"), 'there is no schema "clas". Use "class".'),
    ],
)
def test_expected_errors_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert len(result.stderr) < 600, "a wrong file is not repeated"


def test_debug_shows_the_trace() -> None:
    result = run("--debug", "class", "export", "nothing")
    assert isinstance(result.exception, GoldnodeError)


def test_a_fault_of_goldnode_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("goldnode.classdoc.load.load_catalog", broken)
    result = run("classes")
    assert isinstance(result.exception, RuntimeError)
    assert result.exit_code == 1


def test_schema_command_prints_and_writes_all_schemas(tmp_path: Path) -> None:
    assert json.loads(run("schema", "class").output)["title"] == "NodeClass"
    result = run("schema", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {
        "archives",
        "canary",
        "canary-cohort",
        "canary-jobs",
        "cache-key",
        "capture",
        "class",
        "channel",
        "class-document",
        "deny-list",
        "derive",
        "disks",
        "dual",
        "dual-record",
        "cve",
        "cve-lane",
        "cve-proof",
        "error",
        "evidence-boot",
        "evidence-canary",
        "evidence-disk",
        "evidence-dual",
        "evidence-floors",
        "evidence-module-build",
        "evidence-prove-gpu",
        "evidence-smoke",
        "fleet-bucket",
        "fleet-diff",
        "fleet-hardware",
        "fleet-report",
        "floors",
        "game-day",
        "gate",
        "images",
        "install",
        "join",
        "mitigation",
        "node-changes",
        "node-report",
        "plan",
        "platform",
        "return-tests",
        "rollout",
        "event",
        "rollout-event",
        "rollout-status",
        "run",
        "site",
        "stack",
        "verdict",
        "what-if",
    }
    assert run("schema", "platform", "--format", "markdown").output.startswith("## Platform\n")
    page = tmp_path / "reference.md"
    assert run("schema", "--format", "markdown", "--out", str(page)).output == f"wrote {page}\n"
    assert page.read_text(encoding="utf-8") == run("schema", "--format", "markdown").output


def test_check_catalog_passes_and_lists_unchecked_items() -> None:
    result = run("check-catalog")
    assert result.exit_code == 0, result.output
    assert "19 classes" in result.stdout
    assert "no errors" in result.stdout
    # What could not be judged is listed, not passed over.
    assert "not checked: class a100_sxm4_40gb: policy.clocks" in result.stdout
    assert 'stack "debian12_r580" has no lock' in result.stdout


def test_check_catalog_reports_which_classes_have_no_lock() -> None:
    result = run("check-catalog", "--require-lock")
    assert result.exit_code == 1
    last = result.stdout.splitlines()[-1]
    assert (
        "9 classes cannot be applied yet: a100_sxm4_40gb, l4: no lock (goldnode lock debian12_r580); demo_a100: no lock"
        in last
    )


def test_check_catalog_shows_every_file_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "classes").mkdir(parents=True)
    (own / "stacks").mkdir()
    monkeypatch.setenv("GOLDNODE_CATALOG", str(own))
    (own / "classes/one.yml").write_text("class: one\nbakend: cpu\n")
    (own / "classes/two.yml").write_text("class: two\nbackend: cpu\nstack: debian12_cup\n")
    (own / "classes/on_broken.yml").write_text("class: on_broken\nbackend: cpu\nstack: broken\n")
    (own / "stacks/broken.yml").write_text("stack: broken\nos: 1\nfence: {}\n")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "wrong.yml"))
    (tmp_path / "wrong.yml").write_text("lokcs: x\n")
    result = run("check-catalog")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 4, result.stderr
    for place, line in zip(
        ("stacks/broken.yml:1", "classes/one.yml:2", "classes/two.yml:3", "wrong.yml:1"),
        lines,
        strict=True,
    ):
        assert place in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "images: {public_key: /nonexist}",
            '"images.public_key" names /nonexist, which is not a file. Put it there, or correct',
        ),
        (
            "images:\n  vulnerabilities: [debain=x]",
            'names no vulnerability database, expected KIND=FILE[@YYYY-MM-DD]. Use "debian".',
        ),
        (
            "images: {vulnerabilities: [osv=/gone@2026-01-01]}",
            "the vulnerability database /gone@2026-01-01 is not there",
        ),
        (
            "module_signing: {key: nokey, certificate: nocert}",
            '"module_signing.certificate" names ',
        ),
        (
            "mirror: {directory: /nonexist/dir}",
            '"mirror.directory": there is no /nonexist to make dir in.',
        ),
        ("mirror: {directory: mirror, key: gone.asc}", '"mirror.key" names '),
        ("locks: /nonexist/locks", '"locks" names /nonexist/locks, which is not a directory.'),
        ("indexes: {nvida: {url: 'file:///x'}}", 'no image of the matrix comes from index "nvida"'),
    ],
)
def test_check_catalog_looks_at_what_the_site_file_names(
    no_site: Path, text: str, message: str
) -> None:
    no_site.write_text(no_site.read_text() + text + "\n")
    result = run("check-catalog")
    assert result.exit_code == 2
    assert message in result.stderr
    line = len(no_site.read_text().splitlines())
    assert result.stderr.startswith(f"error: {no_site}:{line}: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("images.signing_key", "images: {signing_key: gone.key}"),
        ("module_signing.key", "module_signing: {key: gone.key, certificate: site.yml}"),
        ("mirror.signing_key", "mirror: {directory: mirror, signing_key: gone.key}"),
    ],
)
def test_check_catalog_passes_without_the_secret_keys_and_reports_it(
    no_site: Path, key: str, text: str
) -> None:
    no_site.write_text(no_site.read_text() + text + "\n")
    result = run("check-catalog")
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        f'not checked: "{key}" names {no_site.parent}/gone.key, which this machine has not'
        in result.output
    )
    (no_site.parent / "gone.key").touch()
    assert f'"{key}"' not in run("check-catalog").output


def test_check_catalog_passes_what_a_mirror_will_make(no_site: Path, tmp_path: Path) -> None:
    no_site.write_text(
        no_site.read_text() + f"mirror: {{directory: mirror, signing_key: {'A' * 40}}}\n"
    )
    assert run("check-catalog").exit_code == 0


def test_check_catalog_reads_the_sites_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.yml"
    path.write_text(
        'archives: {nvidia-cuda: {url: "http://mirror.example.org/cuda", key: nowhere.asc}}\n'
    )
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    result = run("check-catalog")
    assert result.exit_code == 2
    assert 'the key of archive "nvidia-cuda" cannot be read' in result.stderr


def test_check_catalog_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own/classes/a100.yml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "own"))
    path.write_text(
        CLASS.replace("stack: r580", "stack: debian13_r550").replace("platform: hgx_a100_8\n", "")
    )
    result = run("check-catalog")
    assert result.exit_code == 2
    assert (
        f'error: {path}:3: stack "debian13_r550" is past its end of life since 2025-04-17'
        in result.stderr
    )
    path.write_text(CLASS.replace("backend:", "bakend:"))
    result = run("check-catalog")
    assert (result.exit_code, result.stderr) == (
        2,
        f'error: {path}:2: unknown key "bakend". Use "backend".\n',
    )


@pytest.mark.parametrize("width", range(50, 110, 7))
@pytest.mark.parametrize("command", ["apply", "plan", "init", "lock"])
def test_no_line_of_the_help_ends_inside_an_option(command: str, width: int) -> None:
    text = (
        CliRunner()
        .invoke(main, [command, "--help"], terminal_width=width, max_content_width=width)
        .output
    )
    assert "-\n" not in text
    assert "\ue000" not in text
