"""Small pure pieces of the node's code, as tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document

from goldnode.node.device.names import address
from goldnode.node.effective import apt, ldcache
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result, boot_identity, is_container
from goldnode.node.state.apply import EXPLAINING_LINES, Applier, explaining_lines
from goldnode.node.state.debversion import compare
from goldnode.node.state.domains import driver, files
from goldnode.node.state.domains.apt import fence, pins, sources
from goldnode.node.state.domains.kernel import hook
from goldnode.node.state.engine import plan
from goldnode.node.state.model import Action, Observed
from goldnode.node.state.names import in_family
from goldnode.node.state.observe import (
    SIMULATOR,
    automatic,
    forced_modules,
    library,
    managed_files,
    os_release,
    secure_boot,
)
from goldnode.node.state.preflight import identity
from goldnode.node.verdict.report import plan_text, verdict_table


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("1.0", "1.0", 0),
        ("1.0~rc1", "1.0", -1),
        ("1:0.1", "2.0", 1),
        ("535.309.01-0+deb12u1", "535.261.03-1", 1),
        ("6.1.192-2", "6.1.192-10", -1),
        ("1.0", "1.0a", -1),
        ("1.0a", "1.0+", -1),
        ("2.10", "2.9", 1),
        ("1.0-1~bpo12+1", "1.0-1", -1),
        ("0:1.0", "1.0", 0),
    ],
)
def test_versions_compare_in_debian_order(left: str, right: str, order: int) -> None:
    assert (compare(left, right), compare(right, left)) == (order, -order)


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("nvidia-smi", True),
        ("libnvidia-ml1:i386", True),
        ("nvidia-container-toolkit", False),
        ("nvidia-container-runtime", False),
        ("linux-image-amd64", False),
    ],
)
def test_negated_glob_excludes_a_package_from_its_family(name: str, member: bool) -> None:
    assert in_family(name, ["nvidia-*", "libnvidia-*", "!nvidia-container-*"]) is member


def write(root: Path, name: str, text: str) -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("system", "message", "remedy"),
    [
        ({}, "The node runs no system that /etc/os-release names;", "correct the path"),
        ({"id": "debian", "version": "11"}, "The node runs debian 11;", "Move the host"),
    ],
)
def test_other_system_and_no_system_are_two_refusals(
    system: dict[str, str], message: str, remedy: str
) -> None:
    declared: Any = {
        "class": "a",
        "os": {"id": "debian", "version": "12"},
        "stack": {"name": "s"},
        "simulated": False,
        "gpu": None,
    }
    (refusal,) = identity(declared, Observed(os=system))
    assert refusal.message.startswith(message)
    assert remedy in refusal.remedy


def test_apt_sources_in_both_formats(tmp_path: Path) -> None:
    write(
        tmp_path,
        "/etc/apt/sources.list",
        "# deb http://off.example x main\ndeb http://a.example/debian/ bookworm main contrib # why\ndeb-src http://a.example/debian bookworm main\n",
    )
    write(
        tmp_path,
        "/etc/apt/sources.list.d/b.list",
        "deb [arch=amd64 signed-by=/k.gpg] http://b.example /\n",
    )
    write(
        tmp_path,
        "/etc/apt/sources.list.d/c.sources",
        "Types: deb deb-src\nURIs: http://c.example\nSuites: one two\nComponents: main\n contrib\nSigned-By: /c.gpg\n\n"
        "Types: deb\nURIs: http://d.example\nSuites: x\nEnabled: no\n",
    )
    found = [
        (
            row["file"].rpartition("/")[2],
            row["line"],
            row["uri"],
            row["suite"],
            row["components"],
            row["signed_by"],
        )
        for row in apt.sources(Host(str(tmp_path)))
    ]
    assert found == [
        ("sources.list", 2, "http://a.example/debian", "bookworm", ["main", "contrib"], None),
        ("b.list", 1, "http://b.example", "/", [], "/k.gpg"),
        ("c.sources", 1, "http://c.example", "one", ["main", "contrib"], "/c.gpg"),
        ("c.sources", 1, "http://c.example", "two", ["main", "contrib"], "/c.gpg"),
    ]


def stanza(text: str) -> dict[str, str]:
    (fields,) = apt.stanzas(text)
    return {key: value for key, (_, value) in fields.items()}


@pytest.mark.parametrize(
    "entry",
    [
        "deb [trusted=yes check-valid-until=no] http://mirror.example/debian bookworm main\n",
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
        "trusted: yes\nCheck-Valid-Until: no\nAllow-Weak: yes\n",
    ],
)
def test_our_source_takes_what_apt_wants_equal_from_the_nodes_own_entry(
    tmp_path: Path, entry: str
) -> None:
    kind = "list" if entry.startswith("deb ") else "sources"
    write(tmp_path, f"/etc/apt/sources.list.d/own.{kind}", entry)
    seen = Observed(sources=apt.sources(Host(str(tmp_path))))
    fields = stanza(sources(document(), seen)[0].content)
    assert (fields["trusted"], fields["check-valid-until"]) == ("yes", "no")
    assert "allow-weak" not in fields


def test_our_source_takes_a_key_that_the_nodes_own_entry_holds(tmp_path: Path) -> None:
    """As add-apt-repository of Ubuntu 24.04 writes it: the key is the value, folded."""
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n.\nmDMEYCQ\n-----END PGP PUBLIC KEY BLOCK-----"
    folded = key.replace("\n", "\n ")
    entry = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n "
    write(tmp_path, "/etc/apt/sources.list.d/own.sources", f"{entry}{folded}\n")
    seen = Observed(sources=apt.sources(Host(str(tmp_path))))
    text = sources(document(), seen)[0].content
    assert f"\n {folded}\n" in text
    assert stanza(text)["signed-by"].strip() == key


def test_our_source_takes_expired_indexes_where_the_site_does() -> None:
    wanted = document()
    assert "check-valid-until" not in stanza(sources(wanted, Observed())[0].content)
    wanted["site"]["archives"][0]["accept_expired"] = True
    assert stanza(sources(wanted, Observed())[0].content)["check-valid-until"] == "no"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n', "13"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "14"),  # testing and sid
        ('ID=debian\nVERSION_ID="14"\nVERSION_CODENAME=forky\n', "14"),
        ("ID=debian\n", ""),
    ],
)
def test_version_of_a_release_also_before_it_is_one(text: str, version: str) -> None:
    assert os_release(text)["version"] == version


def test_our_source_takes_the_signed_by_of_the_nodes_own_entry() -> None:
    wanted = document()
    own = {
        "file": "/etc/apt/sources.list",
        "line": 1,
        "uri": "http://mirror.example/debian",
        "suite": "bookworm",
        "components": ["main"],
        "signed_by": None,
    }
    text = sources(wanted, Observed(sources=[own]))[0].content
    assert stanza(text)["components"] == "non-free"
    assert "trusted" not in stanza(text)
    assert "signed-by" not in stanza(text)
    text = sources(wanted, Observed())[0].content
    assert stanza(text)["components"] == "main non-free"
    assert stanza(text)["signed-by"] == "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_fence_and_pins_name_the_whole_stack_set() -> None:
    wanted = document()
    wanted["packages"].append({**wanted["packages"][0], "name": "linux-image-6.12.94+deb13-amd64"})
    for package in wanted["packages"]:
        assert (
            f"Package: {package['name']}\nPin: version {package['version']}\nPin-Priority: 1001"
            in pins(wanted).content
        )
    assert '"linux-image-6\\.12\\.94\\+deb13-amd64$";' in fence(wanted).content
    assert '"libnvidia-ml1$";' in fence(wanted).content
    assert '"linux-image-amd64$";' in fence(wanted).content


@pytest.mark.parametrize(
    ("value", "want"),
    [(b"\x06\x00\x00\x00\x01", True), (b"\x06\x00\x00\x00\x00", False), (b"\x06", False)],
)
def test_secure_boot_follows_the_fifth_byte_of_its_variable(
    tmp_path: Path, value: bytes, want: bool
) -> None:
    assert secure_boot(Host(str(tmp_path))) is None
    path = write(
        tmp_path, "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", ""
    )
    path.write_bytes(value)
    assert secure_boot(Host(str(tmp_path))) is want


def test_os_release_and_extended_states() -> None:
    assert os_release('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n# x=y\n') == {
        "id": "debian",
        "version": "12",
        "codename": "bookworm",
    }
    assert automatic(
        "Package: a\nAuto-Installed: 1\n\nPackage: b\nAuto-Installed: 0\n\nPackage: c\nAuto-Installed: 1\n"
    ) == ["a", "c"]


def test_forced_modules_are_found_and_commented_in_place(tmp_path: Path) -> None:
    path = write(tmp_path, "/etc/initramfs-tools/modules", "# comment\nraid1\nnouveau modeset=1\n")
    path.chmod(0o600)
    write(tmp_path, "/etc/modules-load.d/x.conf", "nova-core\n")
    host = Host(str(tmp_path))
    rows = forced_modules(host, ["nouveau", "nova_core"])
    assert [(row["file"], row["line"], row["module"]) for row in rows] == [
        ("/etc/initramfs-tools/modules", 3, "nouveau"),
        ("/etc/modules-load.d/x.conf", 1, "nova-core"),
    ]
    applier = Applier(host, document(), {}, lambda text: None)
    for action in driver.forced(Observed(forced=rows), "gpu_driver"):
        applier.apply(action)
    assert path.read_text() == "# comment\nraid1\n# goldnode: nouveau modeset=1\n"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert forced_modules(host, ["nouveau", "nova_core"]) == []


def test_files_are_written_completely_and_read_back_as_wanted(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    wanted = [
        files.Wanted("/etc/modprobe.d/goldnode-blacklist.conf", "text\n", "kernel", "why", 0o640)
    ]
    write(tmp_path, "/etc/modprobe.d/goldnode-old.conf", "old\n")
    write(tmp_path, "/etc/modprobe.d/admin.conf", "not ours\n")
    applier = Applier(host, document(), {}, lambda text: None)
    for action in files.plan(wanted, Observed(files=managed_files(host))):
        applier.apply(action)
    assert files.plan(wanted, Observed(files=managed_files(host))) == []
    assert sorted(path.name for path in (tmp_path / "etc/modprobe.d").iterdir()) == [
        "admin.conf",
        "goldnode-blacklist.conf",
    ]


def test_an_absolute_link_does_not_lead_out_of_the_root(tmp_path: Path) -> None:
    write(tmp_path, "/data/file", "inside")
    (tmp_path / "link").symlink_to("/data/file")
    (tmp_path / "loop").symlink_to("/loop")
    (tmp_path / "up").symlink_to("/../../../../../data/file")
    (tmp_path / "data/up").symlink_to("../../../../../../data/file")
    host = Host(str(tmp_path))
    assert host.text("/link") == host.text("/up") == host.text("/data/up") == "inside"
    with pytest.raises(OSError, match="too many levels"):
        host.data("/loop")
    # As update-alternatives links: what is there is inside, also below a directory that is a link.
    (tmp_path / "folder").symlink_to("/data")
    (tmp_path / "outside").symlink_to(f"{tmp_path}/data/file")
    names = ("/link", "/up", "/data/up", "/folder/file", "/folder/up", "/outside", "/loop")
    assert [host.exists(name) for name in names] == [True] * 5 + [False] * 2
    assert [host.is_dir(name) for name in ("/folder", "/folder/../data", "/loop")] == [
        True,
        True,
        False,
    ]
    assert host.glob("/folder", "f*") == ["/folder/file"]
    assert host.text("/folder/up") == "inside"


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "/etc/x", "old")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        Host(str(tmp_path)).write("/etc/x", b"new")
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["x"]
    assert (tmp_path / "etc/x").read_text() == "old"


def test_a_root_that_is_no_machine_is_neither_container_nor_booted(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert not is_container(host)
    assert boot_identity(host) is None


def test_a_plan_of_an_image_holds_only_what_an_image_can_show(tmp_path: Path) -> None:
    write(tmp_path, "/var/lib/dpkg/status", "")
    write(tmp_path, "/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    found = plan(Host(str(tmp_path)), document())
    assert {action.phase for action in found.actions} == {"image"}
    assert any(action.kind == "packages.transact" for action in found.actions)
    assert "boot.entry" in {note.subject for note in found.notes}


def test_the_hook_warns_and_never_fails(tmp_path: Path) -> None:
    script = write(tmp_path, "hook", hook(document(), "kernel")[0].content)
    script.chmod(0o755)
    stub = write(tmp_path, "bin/modinfo", '#!/bin/sh\n[ "$2" = 6.1.0-902-amd64 ] && echo 535.2\n')
    stub.chmod(0o755)
    host = Host("/")
    path = f"{stub.parent}:/usr/bin:/bin"
    warned = host.run("env", f"PATH={path}", str(script), "6.1.0-999-amd64")
    assert warned.rc == 0
    assert "kernel 6.1.0-999-amd64 has no module nvidia-current 535.2 (found: none)" in warned.err
    quiet = host.run("env", f"PATH={path}", str(script), "6.1.0-902-amd64")
    assert (quiet.rc, quiet.err) == (0, "")


def test_table_opens_with_simulated_and_has_no_ok_for_unseen_items() -> None:
    finding = {
        "id": "kernel.running",
        "outcome": "not_verified_here",
        "severity": "drain",
        "expected": "x",
        "got": "a container",
        "remedy": None,
    }
    text = verdict_table(
        {
            "class": "c",
            "time": "t",
            "stack": "s",
            "exercised": "local-archive",
            "simulated": True,
            "status": "could_not_check",
            "exit_code": 3,
            "counts": {"match": 0, "not_verified_here": 1},
            "findings": [finding],
        }
    )
    assert text.splitlines()[0].startswith("SIMULATED")
    assert text.splitlines()[1].endswith("stack s (exercised: local-archive)")
    assert "not verified here" in text
    assert " ok" not in text
    plan_json = json.loads(json.dumps(plan(Host("/nonexistent-root"), document()).to_json()))
    assert "packages.transact" in plan_text(plan_json)


def test_actions_print_in_one_line() -> None:
    assert Action("kernel", "link", "/x", "why").line() == "link /x: why"


def test_the_packages_library_is_found_behind_a_simulators(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = tmp_path / "usr/lib/x86_64-linux-gnu"
    real.mkdir(parents=True)
    (real / "libnvidia-ml.so.535.1").touch()
    (real / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.1")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").touch()
    name, folder = "libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu"
    paths = [f"{SIMULATOR}/lib/{name}", f"{folder}/{name}"]
    monkeypatch.setattr(ldcache, "cached", lambda *given: paths)
    host = Host(str(tmp_path))
    assert library(host, name, "amd64") == f"{folder}/libnvidia-ml.so.535.1"
    (real / name).unlink()
    assert library(host, name, "amd64") is None


def test_bytes_of_another_encoding_are_left_as_they_are(tmp_path: Path) -> None:
    """An old fstab with a comment in Latin-1, and a link: only the line that is meant changes, and the link stays one."""
    host = Host(str(tmp_path))
    host.write("/srv/fstab", b"# f\xfcr die Auslagerung\nUUID=1 none swap sw 0 0\n", 0o640)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fstab").symlink_to("/srv/fstab")
    applier = Applier(host, document(), {}, print)
    data = {"file": "/etc/fstab", "line": 2, "module": "UUID=1"}
    applier.apply(Action("host_tuning", "file.comment", "/etc/fstab:2", "why", data=data))
    assert (
        host.data("/etc/fstab")
        == b"# f\xfcr die Auslagerung\n# goldnode: UUID=1 none swap sw 0 0\n"
    )
    applier.apply(Action("host_tuning", "swap.uncomment", "/etc/fstab:2", "why", data=data))
    assert host.data("/srv/fstab") == b"# f\xfcr die Auslagerung\nUUID=1 none swap sw 0 0\n"
    assert (tmp_path / "etc/fstab").is_symlink()
    assert (tmp_path / "srv/fstab").stat().st_mode & 0o777 == 0o640


def test_a_dpkg_that_cannot_be_read_is_no_machine_without_packages(tmp_path: Path) -> None:
    """A removal that took it for one would forget the record, and leave every package behind."""
    write(tmp_path, "/var/lib/dpkg/status", "torn\n")
    with pytest.raises(NodeError, match="dpkg-query cannot list what is installed"):
        plan(Host(str(tmp_path)), document())


def test_a_managed_name_that_is_no_file_ends_no_look(tmp_path: Path) -> None:
    (tmp_path / "etc/modprobe.d/goldnode-dir.conf").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/goldnode-blacklist.conf").symlink_to("/nowhere")
    (tmp_path / "etc/profile.d").mkdir()
    os.mkfifo(tmp_path / "etc/profile.d/goldnode.sh")
    found = managed_files(Host(str(tmp_path)))
    assert {
        name.rpartition("/")[2]: (row["type"], row["content"]) for name, row in found.items() if row
    } == {
        "goldnode-dir.conf": ("directory", ""),
        "goldnode-blacklist.conf": ("link", "-> /nowhere\n"),
        "goldnode.sh": ("other", ""),
    }


def test_a_locale_without_a_character_does_not_keep_a_verdict_from_being_reported() -> None:
    code = "import sys; from goldnode.node.program import remote, start; remote.answer = lambda *_: print(chr(0x2026)); "
    code += "sys.argv = ['x', 'answer']; start.main()"
    reported = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (reported.returncode, reported.stdout) == (0, b"\\u2026\n"), reported.stderr


@pytest.mark.parametrize("only", [False, True])
def test_the_stacks_transaction_sees_the_mirror_alone_where_the_site_requires_it(
    monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    wanted = document()
    wanted["site"]["only"] = only
    wanted["site"]["archives"][0]["id"] = "goldnode-mirror"
    item = wanted["packages"][0]
    stanza = f"Package: {item['name']}\nVersion: {item['version']}\nSHA256: {item['sha256']}\n"
    asked: list[tuple[str, ...]] = []

    def run(self: Host, *argv: str, **_: Any) -> Result:
        asked.append(argv)
        return Result(argv, 0, stanza if "show" in argv and len(asked) > 2 else "", "")

    monkeypatch.setattr(Host, "run", run)
    applier = Applier(Host("/"), wanted, {}, lambda text: None)
    assert applier._known_to_apt([f"{item['name']}={item['version']}"])
    of_apt = [" ".join(argv) for argv in asked if argv[0].startswith("apt")]
    assert [bool(" update" in line) for line in of_apt].count(True) == 1
    assert len(of_apt) >= 3
    for line in of_apt:
        assert (
            "-o Dir::Etc::sourcelist=/etc/apt/sources.list.d/goldnode-mirror.sources -o Dir::Etc::sourceparts=/dev/null"
            in line
        ) is only
        assert ("APT::Get::List-Cleanup=0" in line) is only


@pytest.mark.parametrize("only", [False, True])
def test_a_mirror_that_is_behind_the_node_is_named_as_a_reason(
    monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    wanted = document()
    wanted["site"]["only"] = only
    item = wanted["packages"][0]
    stanza = f"Package: {item['name']}\nVersion: {item['version']}\nSHA256: {item['sha256']}\n"

    def run(self: Host, *argv: str, **_: Any) -> Result:
        return Result(
            argv,
            100 if "-s" in argv else 0,
            stanza if "show" in argv else "",
            "libc6-dev : Depends: libc6 (= 2.36-9)",
        )

    monkeypatch.setattr(Host, "run", run)
    action = Action(
        "kernel",
        "packages.transact",
        "stack",
        "why",
        "image",
        data={"install": [f"{item['name']}={item['version']}"], "remove": []},
    )
    with pytest.raises(NodeError, match="apt finds no way to install the locked set") as caught:
        Applier(Host("/", live=False), wanted, {}, lambda text: None).transact(action)
    assert ("from the site's mirror alone" in str(caught.value)) is only


@pytest.mark.parametrize(
    "pattern",
    [
        "goldnode-*.conf",
        "goldnode.conf",
        "?-gold*",
        "9[0-9]-x",
        "*",
        "gone",
        ".*",
        "dangling",
        "[",
        "dang*",
    ],
)
def test_a_folder_is_searched_as_pathlib_does(tmp_path: Path, pattern: str) -> None:
    for name in (
        "goldnode-a.conf",
        "goldnode-.conf",
        "goldnode.conf",
        "Goldnode-a.conf",
        "1-gold",
        "90-x",
        ".hidden",
        "x.conf~",
        "[",
    ):
        write(tmp_path, f"/etc/d/{name}", "x")
    (tmp_path / "etc/d/dangling").symlink_to("nowhere")
    (tmp_path / "etc/link").symlink_to("d")
    host = Host(str(tmp_path))
    for folder in ("/etc/d", "/etc/d/", "/etc/link", "/etc/none", "/etc/d/90-x"):
        here = tmp_path / folder.strip("/")
        foreign = (
            sorted(f"{folder.rstrip('/')}/{found.name}" for found in here.glob(pattern))
            if here.is_dir()
            else []
        )
        assert host.glob(folder, pattern) == foreign


def test_links_are_followed_inside_the_root_alone(tmp_path: Path) -> None:
    write(tmp_path, "/etc/file", "inside")
    for name, target in (("a", "/etc/file"), ("b", "../etc/a"), ("c", "c")):
        (tmp_path / "etc" / name).symlink_to(target)
    host = Host(str(tmp_path))

    assert [host.text(f"/etc/{name}") for name in ("file", "a", "b", "none", "file/x")] == [
        "inside"
    ] * 3 + [None] * 2
    with pytest.raises(OSError, match="too many levels"):
        host.text("/etc/c")
    with pytest.raises(IsADirectoryError):
        host.text("/etc")
    assert [host.exists(f"/etc/{name}") for name in ("file", "c", "none", "file/x", "n\0l")] == [
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("output", "sysfs"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00000008:06:00.0", "0008:06:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("12345678:3B:00.0", "12345678:3b:00.0"),
        ("[N/A]", "[n/a]"),
    ],
)
def test_a_pci_address_is_written_as_sysfs_does(output: str, sysfs: str) -> None:
    assert address(output) == sysfs


def _failed(waiting: int) -> Result:
    """apt's words of a kernel whose hook fails, and of packages that wait for it; out is long and says nothing."""
    err = [
        "zstd: error 70 : Write error : /boot/initrd.img-6: No space left on device",
        "run-parts: /etc/kernel/postinst.d/initramfs-tools",
    ]
    for name in ["linux-image-6", *(f"needs-{number}" for number in range(waiting))]:
        err += [
            f"dpkg: error processing package {name} (--configure):",
            f" {name} says why",
            "",
            "E: of dpkg",
        ]
    out = [f"Setting up number {number}" for number in range(50)]
    return Result(
        ("apt-get",),
        100,
        "\n".join(out),
        "\n".join(err) + "\nE: Sub-process /usr/bin/dpkg returned an error code (1)",
    )


@pytest.mark.parametrize("waiting", [0, 1, 2, 3, 9])
def test_hook_error_is_reported_however_many_packages_wait(waiting: int) -> None:
    lines = explaining_lines(_failed(waiting)).splitlines()
    for text in ("zstd: error 70", "run-parts: ", " linux-image-6 says why", "E: Sub-process"):
        assert [line for line in lines if line.startswith(text)], (text, lines)
    assert len(lines) <= 2 * EXPLAINING_LINES + 1
    assert lines.count("…") == (waiting > 2)
    assert len({line for line in lines if "number" in line}) == len(
        [line for line in lines if "number" in line]
    )


def test_a_failure_without_a_failed_package_is_reported_by_its_end() -> None:
    lines = [f"line {number}" for number in range(40)]
    assert (
        explaining_lines(Result(("apt-get",), 100, "\n".join(lines), "")).splitlines()
        == lines[-EXPLAINING_LINES:]
    )
    assert explaining_lines(Result(("apt-get",), 100, "", "E: short")) == "E: short"
