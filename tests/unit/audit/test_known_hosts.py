"""Host keys: what is trusted is what `ssh-keygen -F` finds, in plain, hashed and marked lines."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from goldnode.audit.known_hosts import KnownHosts, lookup_name, matches_patterns

KEY = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x20" + b"k" * 32).decode()
OTHER = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x20" + b"o" * 32).decode()


def known(tmp_path: Path, text: str) -> KnownHosts:
    file = tmp_path / "known_hosts"
    file.write_text(text, encoding="utf-8")
    return KnownHosts([str(file), str(tmp_path / "missing")])


@pytest.mark.parametrize(
    ("names", "name", "want"),
    [
        ("gpu01", "gpu01", True),
        ("GPU01", "gpu01", True),
        ("gpu01,10.0.0.1", "10.0.0.1", True),
        ("gpu02", "gpu01", False),
        ("gpu0?", "gpu01", True),
        ("*.example,!gpu01.example", "gpu01.example", False),
        ("*.example,!gpu01.example", "gpu02.example", True),
        ("[gpu01]:2222", "[gpu01]:2222", True),
        ("gpu01", "[gpu01]:2222", False),
        ("gpu.1", "gpux1", False),
    ],
)
def test_a_line_is_of_the_hosts_that_openssh_finds_in_it(
    tmp_path: Path, names: str, name: str, want: bool
) -> None:
    line = f"{names} ssh-ed25519 {KEY} comment\n"
    file = tmp_path / "of-openssh"
    file.write_text(line, encoding="utf-8")
    found = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(file)], capture_output=True, check=False
    )
    assert (found.returncode == 0) is want
    assert known(tmp_path, line).trusts(base64.b64decode(KEY), name) is want


def test_hashed_names_are_found_by_the_key(tmp_path: Path) -> None:
    file = tmp_path / "hashed"
    file.write_text(
        f"gpu01 ssh-ed25519 {KEY}\n[gpu01]:2222 ssh-ed25519 {OTHER}\n", encoding="utf-8"
    )
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "gpu01" not in file.read_text(encoding="utf-8")
    found = KnownHosts([str(file)])
    assert found.trusts(base64.b64decode(KEY), "gpu01")
    assert found.trusts(base64.b64decode(OTHER), lookup_name("GPU01", 2222))
    assert not found.trusts(base64.b64decode(KEY), "gpu02")
    assert not found.trusts(base64.b64decode(OTHER), "gpu01")


def test_an_authority_is_no_host_key_and_a_revoked_key_is_never_trusted(tmp_path: Path) -> None:
    found = known(
        tmp_path,
        f"@cert-authority *.example ssh-ed25519 {KEY}\n"
        f"gpu01 ssh-ed25519 {OTHER}\n@revoked * ssh-ed25519 {OTHER}\n",
    )
    assert found.has_authorities()
    assert found.trusts(base64.b64decode(KEY), "gpu01.example", authority=True)
    assert not found.trusts(base64.b64decode(KEY), "gpu01.example")
    assert not found.trusts(base64.b64decode(KEY), "gpu01.other", authority=True)
    assert not found.trusts(base64.b64decode(OTHER), "gpu01")
    assert found.revoked_keys() == [OTHER]


def test_types_of_keys_come_by_frequency_and_bad_lines_are_none(tmp_path: Path) -> None:
    lines = [
        f"a ssh-ed25519 {KEY}",
        f"b ssh-rsa {OTHER}",
        f"c ssh-rsa {KEY}",
        "# comment",
        "half ssh-rsa",
        "@odd d ssh-rsa x",
    ]
    found = known(tmp_path, "\n".join(lines))
    assert found.key_types() == ["ssh-rsa", "ssh-ed25519"]
    assert not found.empty
    assert known(tmp_path, "# nothing\n").empty


def test_a_pattern_list_needs_a_match_that_no_negation_takes_back() -> None:
    assert not matches_patterns(["!a"], "b")
    assert matches_patterns(["!a", "*"], "b")
