"""disks.yml: what follows from it for a class, and every fault with its line and the nearest right value."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.catalog.models import OperatingSystem
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.errors import DiskError
from goldnode.disks.definition import load_definition

TEXT = """\
disks: 1
defaults:
  loader: systemd-boot
  layout: ab
  esp_mib: 512
  root_mib: 2048
  command_line: [console=ttyS0]
  cloud_init: false
  packages: []
systems:
  debian12:
    packages: [apt, sudo]
    loaders:
      systemd-boot: [systemd-boot-efi]
      grub: [grub-efi-amd64-bin]
    cloud_init: [cloud-init]
classes:
  cpu_only: {root_mib: 4096, packages: [htop]}
"""
BOOKWORM = OperatingSystem(id="debian", version="12", codename="bookworm", architecture="amd64")
TRIXIE = OperatingSystem(id="debian", version="13", codename="trixie", architecture="amd64")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "disks.yml"
    path.write_text(text)
    return path


def test_a_class_adds_packages_and_changes_the_rest(tmp_path: Path) -> None:
    definition = load_definition(write(tmp_path, TEXT))
    disk = definition.disk("cpu_only", BOOKWORM)
    assert disk.packages == ("apt", "htop", "sudo", "systemd-boot-efi")
    assert (disk.shape.root_mib, disk.shape.esp_mib, disk.system) == (4096, 512, "debian12")
    assert definition.disk("other", BOOKWORM).packages == ("apt", "sudo", "systemd-boot-efi")
    assert definition.disk("other", BOOKWORM).shape.root_mib == 2048
    with_cloud = load_definition(
        write(tmp_path, TEXT.replace("cloud_init: false", "cloud_init: true"))
    )
    assert "cloud-init" in with_cloud.disk("other", BOOKWORM).packages
    listening = TEXT.replace("  packages: []", "  packages: []\n  listen: [9100/tcp]")
    listening = listening.replace("packages: [htop]}", "packages: [htop], listen: [161/udp]}")
    ports = load_definition(write(tmp_path, listening))
    assert ports.shape("cpu_only").listen == ("9100/tcp", "161/udp")
    assert ports.shape("other").listen == ("9100/tcp",)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(
            "esp_mib: 512",
            "esp_mb: 512",
            5,
            'unknown key "esp_mb" in "defaults". Use "esp_mib"',
            id="misspelt-key",
        ),
        pytest.param(
            "loader: systemd-boot\n",
            "loader: systemd_boot\n",
            3,
            'Use "systemd-boot"',
            id="misspelt-loader",
        ),
        pytest.param("esp_mib: 512", "esp_mib: 12", 5, "at least 64", id="esp-too-small"),
        pytest.param(
            "[console=ttyS0]", "[root=/dev/sda2]", 7, "goldnode's to set", id="root-is-ours"
        ),
        pytest.param(
            "[console=ttyS0]", '["console=ttyS0 quiet"]', 7, "no single word", id="two-words-in-one"
        ),
        pytest.param(
            "[apt, sudo]", "[apt, Sudo]", 12, '"Sudo" is no package name', id="no-package-name"
        ),
        *(
            pytest.param(
                "[htop]}",
                f"[htop], listen: [{port}]}}",
                18,
                message,
                id=f"port-{port}".replace("/", "-").replace('"', ""),
            )
            for port, message in (
                ('"9100"', "no port"),
                ("http/tcp", "no port"),
                ("9100/sctp", "no port"),
                ("65536/udp", "above the last port"),
            )
        ),
        pytest.param(
            "disks: 1",
            "disks: 7",
            1,
            "this file has format 7, and this goldnode reads 1",
            id="another-schema",
        ),
    ],
)
def test_a_fault_names_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = write(tmp_path, TEXT.replace(old, new))
    with pytest.raises(DiskError) as caught:
        load_definition(path)
    assert caught.value.line == line
    assert message.casefold() in str(caught.value).casefold()


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(
            "loader: systemd-boot\n",
            "loader: grub\n",
            3,
            "GRUB counts no boots",
            id="grub-with-two-slots",
        ),
        pytest.param(
            "layout: ab",
            "layout: single",
            3,
            "starts one of two roots",
            id="one-slot-with-systemd-boot",
        ),
        pytest.param(
            "root_mib: 4096,",
            "root_mib: 4096, loader: grub,",
            18,
            "write layout: single",
            id="of-the-class",
        ),
    ],
)
def test_conflicting_layout_and_loader_are_refused_at_their_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    with pytest.raises(DiskError) as caught:
        load_definition(write(tmp_path, TEXT.replace(old, new)))
    assert caught.value.line == line
    assert message.casefold() in str(caught.value).casefold()


def test_an_os_without_packages_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        DiskError, match=r'there are no disk images of "debian13"\. Add "debian13" to `systems`\.$'
    ):
        load_definition(write(tmp_path, TEXT)).disk("cpu_only", TRIXIE)


def test_a_class_that_is_not_in_the_catalog_is_refused(tmp_path: Path) -> None:
    definition = load_definition(write(tmp_path, TEXT.replace("cpu_only:", "cpu_onyl:")))
    with pytest.raises(DiskError, match=r'class "cpu_onyl" is not in the catalog\. Use "cpu_only"'):
        definition.check(load_catalog())


def test_a_list_refuses_it_as_well(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT.replace("cpu_only:", "cpu_onyl:"))
    done = CliRunner().invoke(main, ["disks", "list", "--definition", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f'{path}:18: class "cpu_onyl" is not in the catalog. Use "cpu_only".' in done.stderr


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_DISK_DEFINITION", str(write(tmp_path, TEXT)))
    assert load_definition().file == tmp_path / "disks.yml"
    monkeypatch.setenv("GOLDNODE_DISK_DEFINITION", str(tmp_path / "absent.yml"))
    with pytest.raises(DiskError, match="does not exist"):
        load_definition()


def test_goldnodes_own_definition_holds_for_every_class_that_has_a_lock() -> None:
    definition, catalog = load_definition(), load_catalog()
    definition.check(catalog)
    locked = sorted(path.name.partition(".")[0] for path in definition.locks.glob("*.lock.yml"))
    assert locked
    for name in locked:
        disk = definition.disk(name, catalog.stacks[catalog.node_class(name).item.stack].item.os)
        assert {"openssh-server", "python3", "systemd-boot-efi"} <= set(disk.packages)


@pytest.mark.parametrize(
    ("own", "words"), [("", ("console=ttyAMA0",)), (", command_line: [quiet]", ("quiet",))]
)
def test_words_of_a_system_are_in_place_of_the_default_and_those_of_a_class_before_them(
    tmp_path: Path, own: str, words: tuple[str, ...]
) -> None:
    text = TEXT.replace("debian12:", "debian12_arm64:").replace(
        "    loaders:", "    command_line: [console=ttyAMA0]\n    loaders:"
    )
    text = text.replace("packages: [htop]", f"packages: [htop]{own}")
    definition = load_definition(write(tmp_path, text))
    system = load_catalog().stacks["debian12_arm64_cpu"].item.os
    assert definition.disk("cpu_only", system).shape.command_line == words


def test_the_committed_schema_is_that_of_the_model() -> None:
    from goldnode.catalog.load import builtin_catalog
    from goldnode.commands.schema.kinds import schema_text

    committed = builtin_catalog().parent / "schemas/disks.json"
    assert committed.read_text(encoding="utf-8") == schema_text("disks")
