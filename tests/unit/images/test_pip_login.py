"""Logins of private indexes: those that pip sends, in pip's order, and never in what goldnode writes."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pip._internal.network.auth import MultiDomainBasicAuth
from tests.unit.images.test_imagelock import lock_of, rows, wheel_in

from goldnode.core.errors import ImageError
from goldnode.core.files import sha256_of
from goldnode.core.site import Site
from goldnode.images import resolve, wheelindex
from goldnode.images.matrix import MatrixRow
from goldnode.images.pip_login import pip_login

__all__ = ["rows"]  # a fixture

SECRET = "p w/#1"  # noqa: S105 - of a server of this test
USER = "bob@team"


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The .netrc file of this test, empty."""
    file = tmp_path / "netrc"
    file.write_text("")
    monkeypatch.setenv("NETRC", str(file))
    return file


INDEX = "https://bob:one@host:8443/team/simple"
TOKEN = "https://token@host/simple"  # noqa: S105
NETRC = "machine host login ann password three\n"
EACH = "machine other login x password y\ndefault login d password e\n"


@pytest.mark.parametrize(
    ("url", "indexes", "written", "login"),
    [
        ("https://host/a.whl", [], "", None),
        ("https://u%40x:p%2Fw@host/a.whl", [], NETRC, ("u@x", "p/w")),
        ("https://host:8443/files/a.whl", [INDEX], NETRC, ("bob", "one")),
        ("https://host/files/a.whl", [INDEX], "", None),  # another port
        ("https://other/a.whl", [INDEX], "", None),
        ("http://host:8443/a.whl", [INDEX], "", None),  # never in clear
        ("https://host/a.whl", ["http://bob:one@host/simple"], "", ("bob", "one")),
        # The index with the longest common path, then the first.
        (
            "https://host/b/files/a.whl",
            ["https://a:1@host/a/simple", "https://b:2@host/b/simple"],
            "",
            ("b", "2"),
        ),
        (
            "https://host/c/a.whl",
            ["https://a:1@host/a/simple", "https://b:2@host/b/simple"],
            "",
            ("a", "1"),
        ),
        ("https://host/a.whl", ["https://host/simple"], NETRC, ("ann", "three")),
        ("https://host/a.whl", [TOKEN], "", ("token", "")),
        ("https://host/a.whl", [TOKEN], NETRC, ("ann", "three")),
        (
            "https://host/b/a.whl",
            ["https://a:1@host/a/simple", "https://host/b/simple"],
            "",
            ("a", "1"),
        ),
        ("https://host/a.whl", [], EACH, ("d", "e")),
        ("https://host/a.whl", [], "no machine of its own", None),
    ],
)
def test_login_is_the_one_that_pip_sends(
    url: str, indexes: list[str], written: str, login: tuple[str, str] | None, netrc: Path
) -> None:
    netrc.write_text(written)
    assert pip_login(url, indexes) == login


def test_login_is_that_of_pip_itself(netrc: Path) -> None:
    chance = random.Random(26)  # noqa: S311 - the same every time
    logins = ["", "", "bob:one@", "ann:two@", "token@", "u%40x:p%2Fw@"]
    hosts, paths = ["host", "host:8443", "other"], ["", "/simple", "/a/simple", "/a/b", "/a/b/c/"]
    for _ in range(2000):
        netrc.write_text(chance.choice(["", NETRC, EACH]))
        indexes = [
            f"https://{chance.choice(logins)}{chance.choice(hosts)}{chance.choice(paths)}"
            for _ in range(chance.randrange(4))
        ]
        own = chance.choice(logins)
        url = f"https://{own}{chance.choice(hosts)}{chance.choice(paths)}/a.whl"
        if own == "token@":  # requests before 2.32.4 asks .netrc for the machine `token@host`
            netrc.write_text("")
        pip = MultiDomainBasicAuth(prompting=False, index_urls=indexes, keyring_provider="disabled")
        for (
            index
        ) in indexes:  # pip reads the pages of the indexes first, and remembers their logins
            pip._get_url_and_credentials(index)
        _, user, password = pip._get_url_and_credentials(url)
        expected = None if user is None else (user, password)
        assert pip_login(url, indexes) == expected, (url, indexes, netrc.read_text())


class _Private(SimpleHTTPRequestHandler):
    """An index that answers 401 without the login. Links are absolute, as those of Artifactory and Nexus are."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def private(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A private index with the wheel `teamlib`."""
    root = tmp_path / "index"
    (root / "simple/teamlib").mkdir(parents=True)
    wheel = wheel_in(root, "teamlib", "1.2")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Private, directory=str(root)))
    server.asked = []  # type: ignore[attr-defined]
    link = f"http://127.0.0.1:{server.server_port}/{wheel.name}"
    digest = sha256_of(wheel)
    (root / "simple/teamlib/index.html").write_text(
        f'<a href="{link}#sha256={digest}">{wheel.name}</a>'
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("place", ["pip.conf", "netrc"])
def test_wheel_of_a_private_index_is_locked_and_fetched(
    place: str,
    private: ThreadingHTTPServer,
    netrc: Path,
    rows: dict[str, MatrixRow],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = f"127.0.0.1:{private.server_port}"
    login = "bob%40team:p%20w%2F%231@" if place == "pip.conf" else ""
    if not login:
        netrc.write_text(f'machine 127.0.0.1 login {USER} password "{SECRET}"\n')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = http://{login}{host}/simple\n")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    wheelindex.pip_settings.cache_clear()
    try:
        row = replace(rows["cpu-1-base-debian12"], wheels=("teamlib==1.2",), debs=())
        with resolve.Resolver(site=Site(), cache=tmp_path / "cache") as resolver:
            wheels = resolver.closure(row, {})
        lock = lock_of(row, wheels=[wheel.model_dump() for wheel in wheels])
        assert resolve.fetch_all([(row, lock)], tmp_path / "pool", site=Site()) > 0
    finally:
        wheelindex.pip_settings.cache_clear()
    assert private.asked.count("/teamlib-1.2-py3-none-any.whl") >= 2  # type: ignore[attr-defined]
    written = [repr(wheels), *capfd.readouterr()]
    written += [
        file.read_bytes().decode("latin-1")
        for file in (tmp_path / "pool").rglob("*")
        if file.is_file()
    ]
    assert not [text for text in written if SECRET in text or "p%20w" in text]


def test_refused_login_names_what_to_do(
    private: ThreadingHTTPServer, netrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = wheelindex.Index(f"http://bob:wrong@127.0.0.1:{private.server_port}/simple")
    with pytest.raises(ImageError) as caught:
        index.files("teamlib")
    text = str(caught.value)
    assert "401" in text
    assert "netrc" in text
    assert "keyring" in text
    assert "wrong" not in text
