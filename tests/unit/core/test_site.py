"""The site configuration: where it is found, what it may say, and what this machine's apt fills in."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from goldnode.core import site as site_module
from goldnode.core.errors import SiteError
from goldnode.core.site import Site, archive_url, check_archives, find_site, load_site

DEBIAN = "ID=debian\nVERSION_CODENAME=bookworm\n"


def test_site_file_is_found_by_variable_then_directory_then_etc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        site_module, "SITE_FILES", (Path("goldnode-site.yml"), tmp_path / "etc.yml")
    )
    assert find_site() is None
    assert load_site() == Site()
    (tmp_path / "etc.yml").write_text("locks: a\n")
    assert load_site().locks == "a"
    (tmp_path / "goldnode-site.yaml").write_text("locks: b\n")
    with pytest.raises(
        SiteError,
        match=r"^goldnode-site\.yaml: a site file of this name is never read\. Rename it to goldnode-site\.yml\.",
    ):
        load_site()
    (tmp_path / "goldnode-site.yml").write_text("locks: b\n")
    assert load_site().locks == "b"
    (tmp_path / "named.yml").write_text("")
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "named.yml"))
    assert load_site().locks is None
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "absent.yml"))
    with pytest.raises(SiteError, match="is not a file"):
        load_site()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("lock: x\n", 1, 'unknown key "lock". Use "locks"'),
        ("archives:\n  debian: {uri: x}\n", 2, 'unknown key "uri" in "archives.debian". Use "url"'),
        ("upstream_mirrors:\n  vendor.example: https://mirror.example\n", 2, "is not an address"),
        (
            "upstream_mirrors:\n  https://vendor.example: mirror\n",
            2,
            '"mirror" of "upstream_mirrors" is not',
        ),
        (
            "archives:\n  debian:\n    url: mirror.example.org\n",
            3,
            "expected an http, https or file address",
        ),
        (
            "archives:\n  debian: {url: 'file:///x', fingerprints: [abc]}\n",
            2,
            "archives.debian.fingerprints.0",
        ),
        ("gate: {drain: [/bin/x]}\n", 1, 'key "gate.resume" is missing'),
        ("gate: {drain: [/bin/x], resume: []}\n", 1, "gate.resume"),
        (
            "gate:\n  drain: [/bin/x]\n  resume: [resume-node]\n",
            3,
            '"gate.resume" begins with "resume-node", expected the full path',
        ),
        (
            "mirror:\n  directory: x\n  url: mirror.example.org\n",
            3,
            "expected an http, https or file address",
        ),
        ("mirror: {url: 'http://x'}\n", 1, 'key "mirror.directory" is missing'),
        ("- a\n", 1, "the document is a list, expected a mapping"),
    ],
)
def test_invalid_site_file_is_refused_at_its_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = tmp_path / "site.yml"
    path.write_text(text)
    with pytest.raises(SiteError) as caught:
        load_site(path)
    assert message in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(path), line)


def test_archive_the_catalog_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text("archives:\n  debain: {url: 'file:///x'}\n")
    with pytest.raises(
        SiteError, match=r'site\.yml:2: archive "debain" is not in the catalog\. Use "debian"'
    ):
        check_archives(load_site(path), {"debian": None})


def test_a_directory_of_locks_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.yml"
    path.write_text("# ours\nlocks: gone\n")
    monkeypatch.delenv("GOLDNODE_LOCKS", raising=False)
    with pytest.raises(SiteError) as caught:
        load_site(path).lock_directories()
    assert (
        str(caught.value)
        == f'{path}:2: "locks" names {tmp_path}/gone, which is not a directory. Make it, or correct the path.'
    )
    assert load_site(path).lock_directories(to_write=True) == [tmp_path / "gone"]
    monkeypatch.setenv("GOLDNODE_LOCKS", f"{tmp_path}:{tmp_path}/absent")
    with pytest.raises(
        SiteError,
        match=f"^GOLDNODE_LOCKS names {tmp_path}/absent, which is not a directory. Make it, or correct",
    ):
        Site().lock_directories()
    assert Site().lock_directories(to_write=True) == [tmp_path, tmp_path / "absent"]


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc/site.yml"
    path.write_text("locks: ../locks\narchives:\n  debian: {url: 'file:///srv/d/', key: k.asc}\n")
    (tmp_path / "etc/k.asc").write_bytes(b"key")
    for name in ("first", "locks"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("GOLDNODE_LOCKS", str(tmp_path / "first"))
    site = load_site(path)
    assert [item.resolve() for item in site.lock_directories()] == [
        tmp_path / "first",
        tmp_path / "locks",
    ]
    assert site.key_bytes("debian") == b"key"
    assert site.key_bytes("other") is None
    assert archive_url(site, "debian") == "file:///srv/d"
    (tmp_path / "etc/k.asc").unlink()
    with pytest.raises(SiteError, match=r'the key of archive "debian" cannot be read'):
        site.key_bytes("debian")


def machine(monkeypatch: pytest.MonkeyPatch, os_release: str, rows: str) -> None:
    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, rows, "")

    monkeypatch.setattr(
        site_module, "_os_release", lambda: dict(line.split("=") for line in os_release.split())
    )
    monkeypatch.setattr(subprocess, "run", run)
    # Without the cache, which may have the answer of the real apt.
    monkeypatch.setattr(site_module, "index_targets", site_module.index_targets.__wrapped__)


@pytest.mark.parametrize(
    ("os_release", "rows", "archive", "url"),
    [
        (DEBIAN, "Packages|http://m.example.org/debian/|bookworm|Debian\n", "debian", "http://m.example.org/debian"),
        (DEBIAN, "Packages|http://m.example.org/debian/|bookworm|\n", "debian", "http://m.example.org/debian"),
        (DEBIAN, "Packages|http://s.example.org/|bookworm-security|Debian\n", "debian-security", "http://s.example.org"),
        (DEBIAN, "Packages|http://third.example.org/|bookworm|Third\nPackages|http://m/|bookworm|Debian\n", "debian", "http://m"),
        (DEBIAN, "Packages|http://m.example.org/debian/|bookworm-updates|Debian\n", "debian", None),
        (DEBIAN, "", "debian", None),
        ("ID=ubuntu\nVERSION_CODENAME=noble\n", "Packages|http://u.example.org/|noble|Ubuntu\n", "debian", None),
        (DEBIAN, "Packages|http://m.example.org/debian/|bookworm|Debian\n", "nvidia-cuda", None),
    ],
)  # fmt: skip
def test_archive_url_follows_the_apt_sources_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, os_release: str, rows: str, archive: str, url: str | None
) -> None:
    machine(monkeypatch, os_release, rows)
    if url is not None:
        assert archive_url(Site(), archive) == url
        return
    with pytest.raises(
        SiteError,
        match=f'no address is known for archive "{archive}".* Name it in goldnode-site.yml',
    ):
        archive_url(Site(), archive)
