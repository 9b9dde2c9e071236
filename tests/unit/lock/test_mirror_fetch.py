"""Fetching from servers that drop, stall, lie and forget: what comes is right, or it is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.lock.mirrors import BULK, Setting, use_mirror

from goldnode.core.errors import MirrorError
from goldnode.lock import transport
from goldnode.lock.transport import Transport, credentials

BULKY = "libcuda1"


def is_bulky(path: Path) -> bool:
    return path.name.startswith(BULKY)


def part(handler: Any, path: Path, size: int) -> None:
    """Promise the whole file, give so many bytes of it, and hang up."""
    data = path.read_bytes()
    start = int(
        (handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0]
    )
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
    handler.send_header("Content-Length", str(len(data) - start))
    handler.end_headers()
    handler.wfile.write(data[start : start + size])
    handler.wfile.flush()
    handler.close_connection = True


def ranges(setting: Setting) -> list[str | None]:
    """The ranges that were asked for of the big package."""
    return [wanted for path, wanted in setting.server.asked if BULKY in path]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(setting: Setting) -> None:
    def fault(handler: Any, path: Path) -> bool:
        if is_bulky(path) and len(ranges(setting)) <= 2:
            part(handler, path, 150_000)
            return True
        return False

    setting.server.fault = fault
    assert setting.fetch() == []
    assert ranges(setting) == [None, "bytes=150000-", "bytes=300000-"]


def test_partial_download_is_continued(setting: Setting) -> None:
    item = setting.package(BULKY)
    setting.mirror.partial.mkdir(parents=True)
    (setting.mirror.partial / item.sha256).write_bytes(
        setting.upstream(BULKY).read_bytes()[:123_456]
    )
    assert setting.fetch() == []
    assert ranges(setting) == ["bytes=123456-"]
    assert setting.mirror.has(item.sha256, item.size)
    assert list(setting.mirror.partial.iterdir()) == []


@pytest.mark.parametrize(
    "left", [b"x" * 1000, b"x" * (BULK * 2), None], ids=["wrong", "too-long", "whole-but-wrong"]
)
def test_wrong_partial_download_is_fetched_again_in_full(
    setting: Setting, left: bytes | None
) -> None:
    item = setting.package(BULKY)
    setting.mirror.partial.mkdir(parents=True)
    (setting.mirror.partial / item.sha256).write_bytes(left or b"x" * item.size)
    assert setting.fetch() == []
    assert ranges(setting)[-1] is None
    assert setting.mirror.has(item.sha256, item.size)


def test_a_server_without_ranges_gives_the_whole(setting: Setting) -> None:
    item = setting.package(BULKY)
    setting.server.ranges = False
    setting.mirror.partial.mkdir(parents=True)
    (setting.mirror.partial / item.sha256).write_bytes(setting.upstream(BULKY).read_bytes()[:5000])
    assert setting.fetch() == []
    assert ranges(setting) == ["bytes=5000-"]
    assert setting.mirror.has(item.sha256, item.size)


def test_a_server_that_answers_another_range(setting: Setting) -> None:
    def fault(handler: Any, path: Path) -> bool:
        if not (is_bulky(path) and handler.headers.get("Range")):
            return False
        data = path.read_bytes()
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True

    item = setting.package(BULKY)
    setting.server.fault = fault
    setting.mirror.partial.mkdir(parents=True)
    (setting.mirror.partial / item.sha256).write_bytes(setting.upstream(BULKY).read_bytes()[:5000])
    assert setting.fetch() == []
    assert ranges(setting) == ["bytes=5000-", None]


def test_a_slow_server_is_waited_for_while_it_gives_anything(setting: Setting) -> None:
    """Each pause is shorter than the limit, all of them together are longer."""
    pause = threading.Event()

    def fault(handler: Any, path: Path) -> bool:
        if not is_bulky(path):
            return False
        data = path.read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        step = len(data) // 12 + 1
        for start in range(0, len(data), step):
            handler.wfile.write(data[start : start + step])
            handler.wfile.flush()
            pause.wait(0.4)
        return True

    setting.server.fault = fault
    assert fetch_with(setting, timeout=3) == []
    assert ranges(setting)[0] is None


def test_a_server_that_stalls_is_asked_again(setting: Setting) -> None:
    stall = threading.Event()

    def fault(handler: Any, path: Path) -> bool:
        if is_bulky(path) and len(ranges(setting)) == 1:
            data = path.read_bytes()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[:200_000])
            handler.wfile.flush()
            stall.wait(30)
            handler.close_connection = True
            return True
        return False

    setting.server.fault = fault
    try:
        assert fetch_with(setting, timeout=1) == []
    finally:
        stall.set()
    # A busy machine may cut an answer shorter than the server meant to, and ask once more.
    assert ranges(setting)[0] is None
    assert len(ranges(setting)) >= 2
    assert all(ranges(setting)[1:])


def fetch_with(setting: Setting, *, timeout: float) -> list[Any]:
    from goldnode.lock.fetch import Fetcher

    _, catalog, site = setting.place.load()
    wanted = setting.mirror.missing_files([setting.lock], catalog, site)
    return Fetcher(
        setting.mirror.partial, setting.mirror.keep, pause=0, transport=Transport(timeout=timeout)
    ).fetch(wanted)


@pytest.mark.parametrize(
    ("status", "times", "kind"),
    [
        (503, 2, None),
        (503, 99, "unreachable"),
        (429, 1, None),
        (403, 99, "refused"),
        (410, 99, "vanished"),
    ],
)
def test_http_error_is_retried_or_reported_by_its_kind(
    setting: Setting, status: int, times: int, kind: str | None
) -> None:
    def fault(handler: Any, path: Path) -> bool:
        if is_bulky(path) and len(ranges(setting)) <= times:
            handler.send_error(status)
            return True
        return False

    setting.server.fault = fault
    faults = setting.fetch()
    assert [found.kind for found in faults] == ([kind] if kind else [])
    if kind:
        assert f"{BULKY} 535.261.03-1 of archive near" in faults[0].message
        assert len(list(setting.mirror.store.glob("*/*"))) == len(setting.lock.packages) - 1


def test_a_server_that_is_not_there(setting: Setting) -> None:
    use_mirror(
        setting.place,
        "http://127.0.0.1:9",
        mirror=setting.directory,
        signing_key=setting.place.root / "none",
    )
    faults = setting.fetch()
    assert {found.kind for found in faults} == {"unreachable"}
    assert len(faults) == len(setting.lock.packages)
    assert "refused" in faults[0].message


SPOILT: dict[str, tuple[Callable[[bytes], bytes] | None, str, str]] = {
    "other-bytes": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "altered", "expected SHA-256"),
    "truncated": (lambda data: data[:-1000], "altered", "bytes, the archive has"),
    "longer": (lambda data: data + b"x", "altered", "bytes, the archive has"),
    "empty": (lambda data: b"", "altered", "the archive has 0"),
    "gone": (None, "vanished", "the archive has no such file"),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_vanished_or_altered_file_is_named_and_nothing_is_published(
    setting: Setting, how: str, scheme: str, pair: tuple[str, Path, Path]
) -> None:
    spoil, kind, expected = SPOILT[how]
    if scheme == "file":
        use_mirror(
            setting.place,
            f"file://{setting.server.root}",
            mirror=setting.directory,
            signing_key=pair[1],
            key=pair[2],
        )
    item, path = setting.package(BULKY), setting.upstream(BULKY)
    good = path.read_bytes()
    path.write_bytes(spoil(good)) if spoil else path.unlink()
    result = setting.run("small")
    assert result.exit_code == 1
    assert f"{kind}: {BULKY} {item.version} of archive near: " in result.output
    assert expected in result.output
    assert "nothing was published" in result.output
    assert "goldnode lock small" in result.output
    assert setting.stacks() == []
    stored = [place.name for place in setting.mirror.store.glob("*/*")]
    assert sorted(stored) == sorted(
        other.sha256 for other in setting.lock.packages if other.name != BULKY
    )
    # The archive is mended, and the next run has only that file to fetch.
    path.write_bytes(good)
    setting.server.asked.clear()
    assert setting.run("small").exit_code == 0
    if scheme == "http":
        assert setting.server.names() == [BULKY]


@pytest.mark.parametrize("now", [None, b"other bytes"])
def test_a_file_that_left_its_archive_comes_from_the_snapshot_of_the_locks_day(
    setting: Setting, now: bytes | None, pair: tuple[str, Path, Path]
) -> None:
    item, path = setting.package(BULKY), setting.upstream(BULKY)
    setting.snapshot(BULKY, pair)
    if now is not None:
        path.write_bytes(now)
    assert setting.run("small").exit_code == 0
    assert setting.mirror.has(item.sha256, item.size)
    assert setting.server.names().count(BULKY) == 2
    assert setting.server.names().count("dkms") == 1


def test_a_file_that_its_snapshot_lacks_too_is_named_with_both_places(
    setting: Setting, pair: tuple[str, Path, Path]
) -> None:
    setting.snapshot(BULKY, pair).unlink()
    (fault,) = setting.fetch()
    assert fault.kind == "vanished"
    assert f"({setting.server.url}/pool/" in fault.message
    assert f"({setting.server.url}/then/20261120T235959Z/pool/" in fault.message


def test_a_server_that_fails_is_no_reason_to_ask_the_snapshot(
    setting: Setting, pair: tuple[str, Path, Path]
) -> None:
    setting.snapshot(BULKY, pair)

    def fault(handler: Any, path: Path) -> bool:
        if path == setting.upstream(BULKY):
            handler.send_error(403)
            return True
        return False

    setting.server.fault = fault
    (found,) = setting.fetch()
    assert found.kind == "refused"
    assert not [path for path, _ in setting.server.asked if path.startswith("/then/")]


def test_files_that_do_not_fit_are_refused_before_they_are_fetched(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "goldnode.lock.mirror.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})()
    )
    with pytest.raises(
        MirrorError, match=r"the files to be fetched take 1 MB, and 0 MB are free\. Make room"
    ):
        setting.fetch()
    assert setting.server.asked == []


def test_credentials_come_from_auth_conf_by_machine_and_path(tmp_path: Path) -> None:
    (tmp_path / "auth.conf").write_text(
        "# of a site\nmachine mirror.example.org login one password 'a b'\n"
    )
    more = tmp_path / "auth.conf.d"
    more.mkdir()
    (more / "x.conf").write_text(
        "machine http://plain.example.org:8080/debian\nlogin two\npassword b\nmachine mirror.example.org login late password c\n"
    )
    (more / "ignored").write_text("machine other.example.org login x password y\n")
    places = (tmp_path / "auth.conf", more)
    assert credentials("https://mirror.example.org/debian/pool/x.deb", places) == ("one", "a b")
    assert (
        credentials("http://mirror.example.org/debian/pool/x.deb", places) is None
    )  # without a scheme: https only
    assert credentials("http://plain.example.org:8080/debian/x.deb", places) == ("two", "b")
    assert credentials("http://plain.example.org:8080/other/x.deb", places) is None
    assert credentials("https://other.example.org/", places) is None
    assert credentials("https://nowhere.example.org/", (tmp_path / "absent",)) is None


@pytest.mark.parametrize(
    ("settings", "environment", "url", "proxy"),
    [
        ({}, {}, "http://a.example/", ""),
        ({"acquire::http::proxy": "http://p:1"}, {}, "http://a.example/", "http://p:1"),
        ({"acquire::http::proxy": "http://p:1"}, {}, "https://a.example/", "http://p:1"),
        (
            {"acquire::http::proxy": "http://p:1", "acquire::https::proxy": "http://q:2"},
            {},
            "https://a.example/",
            "http://q:2",
        ),
        (
            {"acquire::http::proxy": "http://p:1", "acquire::http::proxy::a.example": "DIRECT"},
            {},
            "http://a.example/",
            "",
        ),
        ({"acquire::http::proxy::a.example": "http://p:1"}, {}, "http://b.example/", ""),
        ({}, {"http_proxy": "http://e:3"}, "http://a.example/", "http://e:3"),
        ({}, {"http_proxy": "http://e:3", "no_proxy": "a.example"}, "http://a.example/", ""),
    ],
)
def test_proxy_follows_apt_settings_and_environment(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    environment: dict[str, str],
    url: str,
    proxy: str,
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Transport(settings=settings)._proxy(url) == proxy


def test_a_login_of_apt_is_used_and_not_reported(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str | None] = []

    def fault(handler: Any, path: Path) -> bool:
        received.append(handler.headers.get("Authorization"))
        handler.send_error(401)
        return True

    setting.server.fault = fault
    monkeypatch.setattr(transport, "credentials", lambda url: ("user", "s3cret"))
    use_mirror(
        setting.place,
        setting.server.url,
        mirror=setting.directory,
        signing_key=setting.place.root / "none",
    )
    faults = setting.fetch()
    assert set(received) == {"Basic dXNlcjpzM2NyZXQ="}
    assert {found.kind for found in faults} == {"refused"}
    assert not any("s3cret" in str(found) for found in faults)
