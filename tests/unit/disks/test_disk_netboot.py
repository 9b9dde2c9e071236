"""Plans of installations, and what is written for the servers."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.images.registries import make_key

from goldnode.cli import main
from goldnode.core.errors import DiskError
from goldnode.disks import installer, netboot

PLAN = """\
install: 1
address: http://10.0.0.1/disks
network: {interface: lo, range: [127.0.0.50, 127.0.0.150, 255.255.255.0]}
machines:
  gpu01: {mac: "52:54:00:00:00:01", class: cpu_only, disk: {serial: A}}
  gpu02: {mac: "52:54:00:00:00:02", class: cpu_only, disk: {model: "ACME*", min_gib: 400}, erase: 1}
"""


def plan(folder: Path, text: str = PLAN) -> netboot.InstallPlan:
    (folder / "install.yml").write_text(text)
    return netboot.load_plan(folder / "install.yml")


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("52:54:00:00:00:02", "52:54:00:00:00:01", "52:54:00:00:00:01 is that of gpu01 too", 6),
        ("52:54:00:00:00:02", "52:54:00", '"52:54:00" is no MAC address', 6),
        ("{serial: A}", "{}", "no rule names the disk", 5),
        ("{serial: A}", "{name: sda}", "name", 5),
        ("gpu02:", "gpu_02:", '"gpu_02" is no host name', 6),
        ("erase: 1", "erase: -1", "erase", 6),
        ("range: [127.0.0.50, 127.0.0.150, 255.255.255.0]", "", "either `range` or `proxy`", 3),
        ("install: 1", "install: 2", "install", 1),
    ],
)
def test_a_wrong_plan_is_an_error_with_its_line(
    tmp_path: Path, old: str, new: str, message: str, line: int
) -> None:
    with pytest.raises(DiskError) as caught:
        plan(tmp_path, PLAN.replace(old, new))
    assert message in str(caught.value)
    assert f"install.yml:{line}" in str(caught.value)


@pytest.mark.skipif(
    not shutil.which("dnsmasq", path="/usr/sbin:/usr/bin"), reason="needs dnsmasq-base"
)
@pytest.mark.parametrize(
    "network", ["range: [127.0.0.50, 127.0.0.150, 255.255.255.0]", "proxy: 127.0.0.0/24"]
)
def test_dnsmasq_takes_its_configuration(tmp_path: Path, network: str) -> None:
    text = netboot.dnsmasq(
        plan(tmp_path, PLAN.replace("range: [127.0.0.50, 127.0.0.150, 255.255.255.0]", network)),
        tmp_path,
    )
    (tmp_path / "dnsmasq.conf").write_text(text)
    command = [
        str(shutil.which("dnsmasq", path="/usr/sbin:/usr/bin")),
        "--test",
        "-C",
        str(tmp_path / "dnsmasq.conf"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="needs nginx")
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    wanted = plan(tmp_path, PLAN.replace("10.0.0.1/disks", "127.0.0.1:18473/disks"))
    (tmp_path / "netboot.conf").write_text(netboot.nginx(wanted, tmp_path))
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{name}_temp_path {tmp_path}/{name};" for name in names)
    whole = f"pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}} http {{ access_log off; {paths} include {tmp_path}/netboot.conf; }}"
    (tmp_path / "nginx.conf").write_text(whole)
    command = [
        str(shutil.which("nginx", path="/usr/sbin:/usr/bin")),
        "-t",
        "-c",
        str(tmp_path / "nginx.conf"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_https_needs_a_certificate_in_the_server(tmp_path: Path) -> None:
    text = netboot.nginx(plan(tmp_path, PLAN.replace("http://", "https://")), tmp_path)
    assert "listen 443 ssl;" in text
    assert "ssl_certificate_key" in text


def test_the_archive_has_every_directory_before_its_files() -> None:
    data = installer.archive({"usr/bin/x": (b"program", 0o755), "etc/y": (b"", 0o644)}, epoch=7)
    names, modes, at = [], [], 0
    while True:
        fields = [int(data[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        start = at + 110
        name = data[start : start + fields[11] - 1].decode()
        if name == "TRAILER!!!":
            break
        names.append(name)
        modes.append(fields[1])
        content = start + fields[11] + -(start + fields[11]) % 4
        at = content + fields[6] + -(content + fields[6]) % 4
    assert names == ["etc", "usr", "usr/bin", "usr/bin/x", "etc/y"]
    assert [oct(mode) for mode in modes] == ["0o40755"] * 3 + ["0o100755", "0o100644"]


def test_a_unified_image_has_the_sections_behind_those_of_the_stub() -> None:
    stub = bytearray(1024)
    struct.pack_into("<I", stub, 0x3C, 64)
    stub[64:68] = b"PE\0\0"
    struct.pack_into("<HHIIIHH", stub, 68, 0x8664, 1, 0, 0, 0, 240, 0)
    struct.pack_into("<II", stub, 88 + 32, 4096, 512)
    struct.pack_into("<II", stub, 88 + 56, 8192, 512)
    struct.pack_into("<8sIIII", stub, 88 + 240, b".text", 300, 4096, 512, 512)
    whole = installer.unified(bytes(stub), {".linux": b"k" * 700, ".initrd": b"i"})
    assert struct.unpack_from("<H", whole, 70)[0] == 3
    rows = [struct.unpack_from("<8sIIII", whole, 88 + 240 + 40 * index) for index in range(3)]
    assert [row[0].rstrip(b"\0") for row in rows] == [b".text", b".linux", b".initrd"]
    assert [row[2] for row in rows] == [4096, 8192, 12288]
    for _, size, _, padded, offset in rows[1:]:
        assert offset % 512 == padded % 512 == 0
        assert set(whole[offset : offset + size]) in ({ord("k")}, {ord("i")})
    assert struct.unpack_from("<I", whole, 88 + 56)[0] == 16384
    stub[88 + 240 + 20 : 88 + 240 + 24] = struct.pack("<I", 88 + 240 + 40)
    with pytest.raises(DiskError, match="no room for more sections"):
        installer.unified(bytes(stub), {".linux": b"k"})


def invoke(*words: str) -> str:
    done = CliRunner().invoke(main, ["disks", *words])
    assert done.exit_code != 0
    return str(done.exception) + done.output


def test_a_node_is_switched_off_only_by_its_bmc_and_without_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.yml"
    monkeypatch.setenv("GOLDNODE_SITE", str(site))
    site.write_text("{}\n")
    assert "has no ladder.bmc" in invoke("reinstall", "gpu01", "--drained")
    bmc = "{protocol: redfish, address: 'https://{node}', credentials: bmc.txt}"
    site.write_text(f"ladder: {{bmc: {bmc}}}\n")
    assert "while it may have work" in invoke("reinstall", "gpu01")


def test_an_installer_starts_from_one_root_and_has_the_ca_of_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "site.yml"))
    (tmp_path / "site.yml").write_text("{}\n")
    secret, _ = make_key(tmp_path)
    (tmp_path / "root.json").write_text("{}")
    plan(tmp_path, PLAN.replace("http://", "https://"))
    given = ["netboot", f"{tmp_path}/install.yml", "--to", str(tmp_path), "--installer", "cpu_only"]
    given += ["--key", str(secret)]
    assert "starts from one root document" in invoke(*given)
    assert "has no certificates" in invoke(*given, "--root", f"{tmp_path}/root.json")
