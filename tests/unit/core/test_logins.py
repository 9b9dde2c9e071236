"""A canary secret in each place of a file in which an address may stand: refused with file and line, shown nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.core.test_site import DEBIAN, machine

from goldnode.canary import suite
from goldnode.core import logins, yamlsource
from goldnode.core.errors import GoldnodeError, SiteError
from goldnode.core.logins import login_in, masked
from goldnode.core.site import Site, archive_url, load_site
from goldnode.disks import definition
from goldnode.dual import tolerances
from goldnode.fleet.store import fleet_file
from goldnode.images import declaration, matrix
from goldnode.inspect import policy

CANARY = "c4n4ry-s3cret"
URL = f"https://ci:{CANARY}@mirror.example.net:8443/debian"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (URL, "https://***@mirror.example.net:8443"),
        (f"deb [signed-by=/k.asc] {URL} bookworm main", "https://***@mirror.example.net:8443"),
        # A user name alone may be a token.
        (f"https://{CANARY}@git.example/a.git", "https://***@git.example"),
        (f"git+https://{CANARY}@git.example/a.git@v1", "git+https://***@git.example"),
        (f"HTTP://ci:{CANARY}@[2001:db8::1]:80/", "HTTP://***@[2001:db8::1]:80"),
        (f"postgresql://goldnode:{CANARY}@db.example/goldnode", "postgresql://***@db.example"),
        ("postgresql://goldnode@db.example/goldnode", None),
        ("git+ssh://git@git.example/a.git", None),
        ("https://mirror.example.net/@scope/package@1.2", None),
        ("https://mirror.example.net?mail=a@b.example", None),
        ("ops@example.net, see https://example.net/page", None),
        ("registry.example/base@sha256:00", None),
    ],
)
def test_login_in_finds_logins_of_addresses_alone(text: str, found: str | None) -> None:
    assert login_in(text) == found
    assert found is None or CANARY not in masked(text)


# Keys of the site file with an address, each on the last line.
SITES = (
    "archives:\n  debian: {url: URL}",
    "archives:\n  debian:\n    snapshot: 'URL/{date}'",
    "upstream_mirrors:\n  https://vendor.example: URL",
    "upstream_mirrors:\n  URL: https://mirror.example",
    "indexes:\n  own: {url: URL, backends: [cuda]}",
    "mirror:\n  directory: m\n  key: k\n  url: URL",
    "fleet:\n  store: postgresql://goldnode:c4n4ry-s3cret@db.example/goldnode",
    "fleet:\n  prometheus: {url: URL}",
    "events:\n  hooks:\n    chat:\n      webhook: {secret: s, url: URL}",
    "events:\n  hooks:\n    page:\n      alertmanager: {url: URL}",
    "events:\n  hooks:\n    call:\n      command: {run: [curl, URL]}",
    "gate:\n  drain: [/usr/bin/curl, URL]\n  resume: [/bin/true,\n   URL]",
)
# Readers of other files that a person writes.
READERS: tuple[Callable[[Path], object], ...] = (
    yamlsource.read,  # also of stacks, classes and archives of a catalog
    suite.load_suite,
    tolerances.load,
    definition.load_definition,
    declaration.load_declaration,
    fleet_file.load,
    matrix.load_matrix,
    policy.load,
)


@pytest.mark.parametrize("text", SITES)
def test_a_login_in_the_site_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "goldnode-site.yml"
    file.write_text(text.replace("URL", URL))
    with pytest.raises(SiteError) as raised:
        load_site(file)
    error = raised.value
    assert CANARY not in f"{error} {error.remedy} {error.__cause__} {error.__context__}"
    where = next(
        n for n, line in enumerate(text.splitlines(), 1) if "URL" in line or "c4n4ry" in line
    )
    assert (error.file, error.line) == (str(file), where)
    assert "login" in str(error)


@pytest.mark.parametrize("read", READERS, ids=lambda read: f"{read.__module__}.{read.__name__}")
def test_a_login_in_any_file_of_a_site_is_refused(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "file.yml"
    file.write_text(f"own:\n- {{further: ['{URL}']}}\n")
    with pytest.raises(
        GoldnodeError, match=r'"own\.0\.further\.0" has an address with a login'
    ) as raised:
        read(file)
    assert (raised.value.file, raised.value.line) == (str(file), 2)
    assert CANARY not in f"{raised.value} {raised.value.remedy}"


def test_a_login_in_the_apt_sources_of_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, DEBIAN, f"Packages|{URL}/|bookworm|Debian\n")
    with pytest.raises(SiteError, match=r"apt sources, https://\*\*\*@mirror") as raised:
        archive_url(Site(), "debian")
    assert CANARY not in f"{raised.value}"
    assert "machine https://mirror.example.net:8443 login" in (raised.value.remedy or "")


def test_the_remedy_names_the_file_of_the_program_that_logs_in() -> None:
    assert "~/.pgpass" in logins.remedy("postgresql://***@db.example")
    packages = logins.remedy("http://***@mirror.example:80")
    # Without its scheme, apt_auth.conf(5) takes an entry for https alone.
    assert "machine http://mirror.example:80 login USER" in packages
    assert "/etc/apt/auth.conf.d/" in packages
    assert "~/.netrc" in packages
