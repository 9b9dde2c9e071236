"""Archives with a public address, a key location and a pinned fingerprint, on a local server that plays the vendor.

Every layout that vendors use, every key that must be refused, and every way in which an archive cannot be reached.
"""

from __future__ import annotations

import datetime as dt
import http.server
import json
import random
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.case_tables import table
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import Server, resolve, serving

from goldnode.cli import main
from goldnode.core import keys
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, load_site
from goldnode.lock import archives
from goldnode.lock.model import load_lock
from goldnode.lock.transport import Transport
from goldnode.lock.unreachable import TABLE, apt_troubles
from goldnode.node.ground import openpgp

DAY = dt.date(2026, 11, 24)
HOST = "https://vendor.invalid"


class Vendor:
    """A catalog whose one archive is public, and a site without a line about it but where its mirror is."""

    def __init__(self, place: Place, root: Path) -> None:
        self.place, self.root = place, root
        self.archive = Archive(root / "repos/debian12/x86_64", place.key)
        self.fingerprints = [place.key.fingerprint]
        self.key_name = "vendor.pub"

    def offer(self, *, flat: bool = False, signed: str = "inline", by_hash: bool = False) -> None:
        """Publish what the small stack needs in one layout, and the key beside it."""
        made = self.archive
        made.suite, made.components = ("/", ()) if flat else ("bookworm", ("main",))
        made.signed, made.by_hash = signed, by_hash
        shapes.base(made)
        shapes.kernel(made, "6.1.0-50-amd64", "6.1.176-1")
        shapes.driver(made, "535.261.03")
        shapes.rest_of_driver(made)
        made.publish()
        self.place.key.export(made.root / self.key_name)
        self.catalog(suite="/" if flat else "{codename}", components=[] if flat else ["main"])

    def catalog(self, **changes: Any) -> None:
        entry = {
            "description": "a vendor's archive",
            "url": f"{HOST}/repos/{{release}}/{{architecture}}",
            "architectures": {"amd64": "x86_64"},
            "source": "test",
            "keys": [
                {"fingerprint": item, "owner": "vendor", "location": f"{{url}}/{self.key_name}"}
                for item in self.fingerprints
            ],
            **changes,
        }
        (self.place.root / "catalog/archives.yml").write_text(
            yaml.safe_dump({"archives": {"near": entry}})
        )

    def site(self, **changes: Any) -> None:
        (self.place.root / "site.yml").write_text(yaml.safe_dump(changes))

    def mirror(self, url: str) -> None:
        """Send everything below the vendor's host to a local server."""
        self.site(upstream_mirrors={HOST: url})

    def lock(self) -> Any:
        stack, catalog, site = self.place.load()
        return resolve(stack, catalog, site, today=DAY)

    def refusal(self) -> GoldnodeError:
        with pytest.raises(GoldnodeError) as caught:
            self.lock()
        return caught.value

    def run(self, *arguments: str) -> Result:
        variables = {
            "GOLDNODE_CATALOG": str(self.place.root / "catalog"),
            "GOLDNODE_SITE": str(self.place.root / "site.yml"),
        }
        return CliRunner(env=variables).invoke(main, ["lock", "small", *arguments])


@pytest.fixture
def vendor(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vendor:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = Vendor(place, tmp_path / "vendor")
    made.site()
    return made


@pytest.fixture
def server(vendor: Vendor) -> Iterator[Server]:
    vendor.root.mkdir()
    with serving(vendor.root) as server:
        vendor.mirror(server.url)
        yield server


def gpg(home: Path, *arguments: str, stdin: str | None = None) -> str:
    command = ["gpg", "--homedir", str(home), "--batch", "--yes", "--passphrase", "", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=stdin).stdout


@pytest.fixture(scope="session")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SigningKey]:
    """A key that ended in 2021."""
    home = tmp_path_factory.mktemp("k") / "h"
    home.mkdir(mode=0o700)
    gpg(
        home,
        "--faked-system-time",
        "20200101T000000!",
        "--quick-gen-key",
        "past",
        "ed25519",
        "sign",
        "1y",
    )
    rows = gpg(home, "--with-colons", "--list-keys").splitlines()
    key = SigningKey(home, next(row.split(":")[9] for row in rows if row.startswith("fpr:")))
    yield key
    key.stop()


@pytest.fixture(scope="session")
def revoked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SigningKey]:
    """A key that its owner has revoked."""
    key = SigningKey.create(tmp_path_factory.mktemp("k") / "h", "taken back")
    text = (key.home / f"openpgp-revocs.d/{key.fingerprint}.rev").read_text().replace(":---", "---")
    gpg(key.home, "--import", stdin=text)
    yield key
    key.stop()


# -- layouts


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "suite"])
@pytest.mark.parametrize("signed", ["inline", "detached"])
@pytest.mark.parametrize("by_hash", [False, True], ids=["plain", "by-hash"])
def test_every_layout_is_locked_with_the_fetched_key(
    vendor: Vendor, server: Server, flat: bool, signed: str, by_hash: bool
) -> None:
    vendor.offer(flat=flat, signed=signed, by_hash=by_hash)
    found = vendor.lock()
    assert found.driver_version == "535.261.03"
    asked = [path for path, _ in server.asked]
    assert asked[0] == "/repos/debian12/x86_64/vendor.pub", "the key comes first"
    assert any("by-hash" in path for path in asked) == by_hash


def test_lock_command_writes_the_lock_and_the_key_of_the_archive(
    vendor: Vendor, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.offer()
    done = vendor.run("--out", str(tmp_path / "locks"))
    assert done.exit_code == 0, done.output
    assert load_lock(tmp_path / "locks/small.lock.yml").archives[0].id == "near"
    key = tmp_path / f"locks/keys/{vendor.place.key.fingerprint}.asc"
    assert keys.unexpected(key.read_bytes(), vendor.fingerprints) == []
    # Another controller has the lock and the key from a repository, and neither a cache nor a network.
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "other"))
    server.asked.clear()
    stack, catalog, _ = vendor.place.load()
    site = load_site(vendor.place.root / "site.yml").model_copy(
        update={"locks": str(tmp_path / "locks")}
    )
    places = archives.ArchivePlaces(
        catalog, site, stack.item.os, archives.KeyAccess(site.lock_directories())
    )
    assert places.key("near")[0]
    assert server.asked == []


def test_the_key_is_fetched_once(vendor: Vendor, server: Server) -> None:
    vendor.offer()
    vendor.lock()
    vendor.lock()
    assert [path for path, _ in server.asked].count("/repos/debian12/x86_64/vendor.pub") == 1


def test_a_binary_key_and_a_bundle_are_reduced_to_the_pinned_key(
    vendor: Vendor, server: Server, other_key: SigningKey, expired: SigningKey
) -> None:
    vendor.offer()
    parts = [
        key.export(vendor.root / f"{at}.gpg", armored=False)
        for at, key in enumerate((other_key, expired, vendor.place.key))
    ]
    (vendor.archive.root / "vendor.pub").write_bytes(b"".join(part.read_bytes() for part in parts))
    vendor.lock()
    stored = list((vendor.place.root / "cache/keys").iterdir())
    assert [path.stem for path in stored] == [vendor.place.key.fingerprint]
    assert openpgp.primary_fingerprints(stored[0].read_bytes()) == [vendor.place.key.fingerprint]
    # Indexes signed by the dropped keys stay refused.
    vendor.archive.key = other_key
    vendor.archive.publish()
    assert "signed by a key that is not pinned" in vendor.refusal().message


def test_of_two_pinned_keys_one_may_have_expired(
    vendor: Vendor, server: Server, expired: SigningKey
) -> None:
    vendor.offer()
    vendor.fingerprints = [expired.fingerprint, vendor.place.key.fingerprint]
    vendor.catalog(suite="{codename}", components=["main"])
    both = (vendor.archive.root / "vendor.pub").read_bytes() + expired.export(
        vendor.root / "e.asc"
    ).read_bytes()
    (vendor.archive.root / "vendor.pub").write_bytes(both)
    vendor.lock()


def test_a_change_to_the_other_pinned_key_is_followed(
    vendor: Vendor, server: Server, other_key: SigningKey
) -> None:
    vendor.offer()
    vendor.fingerprints.append(other_key.fingerprint)
    vendor.catalog(suite="{codename}", components=["main"])
    vendor.lock()
    vendor.archive.key = other_key
    vendor.archive.publish()
    other_key.export(vendor.archive.root / "vendor.pub")
    vendor.lock()


def test_a_signing_subkey_counts_as_its_primary_key(
    vendor: Vendor, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("k") / "h"
    key = SigningKey.create(home, "with a subkey")
    gpg(home, "--quick-add-key", key.fingerprint, "ed25519", "sign", "never")
    vendor.place.key = vendor.archive.key = key
    vendor.fingerprints = [key.fingerprint]
    vendor.offer()
    vendor.lock()
    key.stop()


# -- the site's word


def test_a_site_overrides_address_key_and_fingerprint(
    vendor: Vendor, server: Server, other_key: SigningKey, tmp_path: Path
) -> None:
    vendor.offer()
    own = tmp_path / "own/debian12"
    own.parent.mkdir()
    shutil.copytree(vendor.archive.root, own)
    mirror = Archive(own, other_key, stanzas=vendor.archive.stanzas)
    mirror.publish()
    other_key.export(own / "mirror.asc")
    entry = {
        "url": f"file://{tmp_path}/own/{{release}}",
        "key": f"file://{own}/mirror.asc",
        "fingerprints": [other_key.fingerprint],
    }
    vendor.site(archives={"near": entry})
    vendor.lock()
    assert server.asked == []


def test_an_archive_that_is_not_published_for_a_release_is_named(vendor: Vendor) -> None:
    vendor.catalog(suite="/", releases={"debian13": ["amd64"], "debian12": ["arm64"]})
    assert "not published for debian12 on amd64" in vendor.refusal().message


# -- keys that must be refused


def test_another_key_at_the_location_is_refused_before_any_index_is_read(
    vendor: Vendor, server: Server, other_key: SigningKey
) -> None:
    vendor.offer()
    other_key.export(vendor.archive.root / "vendor.pub")
    error = vendor.refusal()
    assert "is not the pinned one" in error.message
    assert other_key.fingerprint in error.message
    assert vendor.place.key.fingerprint in error.message
    assert [path for path, _ in server.asked] == ["/repos/debian12/x86_64/vendor.pub"]
    assert not list((vendor.place.root / "cache").glob("keys/*"))


@pytest.mark.parametrize(
    ("which", "expected"), [("expired", "has expired"), ("revoked", "was revoked")]
)
def test_a_key_past_its_time_has_a_message_of_its_own(
    vendor: Vendor, server: Server, which: str, expected: str, request: pytest.FixtureRequest
) -> None:
    key: SigningKey = request.getfixturevalue(which)
    vendor.offer()
    vendor.fingerprints = [key.fingerprint]
    vendor.catalog(suite="{codename}", components=["main"])
    key.export(vendor.archive.root / "vendor.pub")
    error = vendor.refusal()
    assert expected in error.message
    assert key.fingerprint in error.message


def test_states_of_keys_are_those_that_gpg_shows(
    vendor: Vendor, expired: SigningKey, revoked: SigningKey, tmp_path: Path
) -> None:
    def state(key: SigningKey) -> keys.KeyState:
        return keys.states(key.export(tmp_path / f"{key.fingerprint}.asc").read_bytes())[0]

    found = state(vendor.place.key)
    assert (found.fingerprint, found.expires, found.revoked) == (
        vendor.place.key.fingerprint,
        None,
        False,
    )
    assert state(revoked).revoked
    end = state(expired).expires
    row = next(
        row
        for row in gpg(expired.home, "--with-colons", "--list-keys").splitlines()
        if row.startswith("pub:")
    )
    assert end is not None
    assert int(end.timestamp()) == int(row.split(":")[6])


def test_states_of_damaged_keys_are_an_error_or_a_state(key: SigningKey, tmp_path: Path) -> None:
    whole = key.export(tmp_path / "key.gpg", armored=False).read_bytes()
    generated = random.Random(20261124)  # noqa: S311 - noise for a parser
    for _ in range(2000):
        cut, length = generated.randrange(len(whole)), generated.randrange(60)
        noise = generated.randbytes(length)
        spoilt = generated.choice(
            [noise, whole[:cut] + noise, whole[:cut] + noise + whole[cut + length :]]
        )
        try:
            found = keys.states(spoilt)
        except openpgp.OpenPGPError:
            continue
        assert all(len(state.fingerprint) == 40 for state in found), spoilt.hex()


# -- archives that cannot be reached: cause, address, proxy and remedy


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(status: int, body: bytes = b"", kind: str = "text/html") -> Any:
    def fault(handler: Any, path: Path) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return fault


def spoil(vendor: Vendor, server: Server, case: str, other_key: SigningKey) -> None:
    index = vendor.archive.root / "dists/bookworm/main/binary-amd64/Packages"
    if case == "refused":
        vendor.mirror(f"http://127.0.0.1:{closed_port()}")
    elif case == "dns":
        vendor.mirror("http://mirror.invalid")
    elif case == "forbidden":
        server.fault = answer(403)
    elif case == "missing":
        vendor.key_name = "moved.pub"
        vendor.catalog(suite="{codename}", components=["main"])
    elif case == "portal":
        server.fault = answer(200, b"<html>Please log in</html>")
    elif case == "proxy":
        server.fault = answer(407)
    elif case == "other-key":
        vendor.archive.key = other_key
        vendor.archive.publish()
    elif case == "stale":
        vendor.archive.valid_until = "Sat, 01 Aug 2026 00:00:00 UTC"
        vendor.archive.publish()
    elif case == "hash":
        index.write_text(index.read_text().replace("535.261.03", "535.261.99"))
    elif case == "unsigned":
        vendor.archive.signed = "none"
        vendor.archive.publish()


@pytest.mark.parametrize(
    "case",
    [
        "refused",
        "dns",
        "forbidden",
        "missing",
        "portal",
        "proxy",
        "other-key",
        "stale",
        "hash",
        "unsigned",
    ],
)
def test_each_failure_names_its_cause_and_its_remedy(
    vendor: Vendor, server: Server, other_key: SigningKey, case: str
) -> None:
    vendor.offer()
    spoil(vendor, server, case, other_key)
    error = vendor.refusal()
    host = "mirror.invalid" if case == "dns" else "127.0.0.1"
    words = {"host": host, "proxy": "of this machine"}
    cause = TABLE[case][0]  # type: ignore[index]
    for name, value in words.items():
        cause = cause.replace(f"{{{name}}}", value)
    assert cause in error.message
    assert host in error.message
    assert "without a proxy" in error.message
    assert error.remedy


def test_snapshot_past_its_date_is_locked_where_the_site_accepts_it(
    vendor: Vendor, server: Server, other_key: SigningKey
) -> None:
    vendor.offer()
    spoil(vendor, server, "stale", other_key)
    remedy = vendor.refusal().remedy or ""
    assert "`archives: {near: {accept_expired: true}}`" in remedy
    site = yaml.safe_load((vendor.place.root / "site.yml").read_text())
    vendor.site(**site, archives={"near": {"accept_expired": True}})
    assert vendor.lock().driver_version
    vendor.archive.key = other_key
    vendor.archive.publish()
    assert "not pinned" in vendor.refusal().message, "its signature is verified as ever"


def test_a_server_that_never_answers_is_a_timeout(vendor: Vendor, server: Server) -> None:
    vendor.offer()
    gate = threading.Event()
    server.fault = lambda handler, path: gate.wait(20) or True
    stack, catalog, site = vendor.place.load()
    places = archives.ArchivePlaces(
        catalog,
        site,
        stack.item.os,
        archives.KeyAccess(transport=Transport(timeout=0.3, settings={})),
    )
    with pytest.raises(GoldnodeError, match="does not answer in time") as caught:
        places.key("near")
    gate.set()
    assert "http_proxy=http://proxy.example:3128" in str(caught.value)
    assert "upstream_mirrors: {http://127.0.0.1:" in str(caught.value)


def test_a_certificate_of_an_unknown_authority_is_named(vendor: Vendor, tmp_path: Path) -> None:
    vendor.offer()
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ),
            *("-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    vendor.mirror(f"https://localhost:{httpd.server_address[1]}")
    error = vendor.refusal()
    httpd.shutdown()
    assert "the certificate of localhost is not trusted here" in error.message
    assert "update-ca-certificates" in str(error.remedy)


def test_the_proxy_in_use_is_named_without_its_password(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.offer()
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{closed_port()}")
    vendor.mirror("http://archive.example")
    error = str(vendor.refusal())
    assert "through the proxy http://***@127.0.0.1:" in error
    assert "secret" not in error


def test_without_a_mirror_the_public_host_and_example_lines_are_named(vendor: Vendor) -> None:
    vendor.offer()
    error = str(vendor.refusal())
    assert "DNS does not know the name vendor.invalid" in error
    assert "tried https://vendor.invalid/repos/debian12/x86_64/vendor.pub without a proxy" in error
    assert "https_proxy=http://proxy.example:3128" in error
    assert "`upstream_mirrors: {https://vendor.invalid: https://mirror.example}`" in error


NEAR = ("near", "http://a.example/debian")
MESSAGES = table("apt_messages.yml")


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case["name"])
def test_kind_of_what_apt_writes(case: dict[str, str]) -> None:
    (found,) = apt_troubles(case["text"], [NEAR])
    assert (found.archive, found.kind) == ("near", case["kind"])


def test_every_kind_of_the_table_occurs() -> None:
    assert {case["kind"] for case in MESSAGES} == set(TABLE)


def test_apt_errors_are_attributed_to_their_archives() -> None:
    text = "E: Failed to fetch http://a.example/debian-security/dists/x  Could not resolve 'a.example'\nE: Failed to fetch http://b.example/x  403  Forbidden\n"
    known = [NEAR, ("guard", "http://a.example/debian-security"), ("far", "http://b.example")]
    assert {row.archive: row.kind for row in apt_troubles(text, known)} == {
        "guard": "dns",
        "far": "forbidden",
    }
    assert apt_troubles("E: dpkg was interrupted", known) == []


# -- goldnode's own catalog


def test_every_catalog_key_has_two_sources_or_is_marked_as_single() -> None:
    from goldnode.catalog.load import builtin_catalog
    from goldnode.classdoc.load import load_catalog

    for name, entry in load_catalog([builtin_catalog()]).archives.items():
        own = name.startswith("debian")  # where this machine's apt finds it
        assert own or entry.item.url, name
        for key in entry.item.keys:
            assert own or key.location, (name, key.fingerprint)
            assert key.read, (name, key.fingerprint)
            assert len(key.sources) >= 2 or key.single_source, (name, key.fingerprint)


def test_every_stack_of_the_catalog_has_addresses_and_keys_without_a_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from goldnode.catalog.load import builtin_catalog
    from goldnode.classdoc.load import load_catalog
    from goldnode.core import site

    near = {name: f"http://apt.example/{name}" for name in ("debian", "debian-security")}
    monkeypatch.setattr(site, "_machine_archives", lambda: near)  # as on a machine with Debian
    catalog = load_catalog([builtin_catalog()])
    for stack in catalog.stacks.values():
        places = archives.ArchivePlaces(catalog, Site(), stack.item.os)
        names = archives.archives_of(stack.item, stack.item.options)
        assert all(
            places.address(name).startswith("http") and places.fingerprints(name) for name in names
        )
    r580 = archives.ArchivePlaces(catalog, Site(), catalog.stacks["debian13_r580"].item.os)
    assert r580.address("nvidia-cuda").endswith("/repos/debian13/x86_64")
    assert r580.fingerprints("nvidia-cuda") == ["02182E60104FCDC26EAE1B8597A5D4CB8793F200"]


@pytest.mark.parametrize("name", ["h100_sxm5_80gb", "h200_sxm", "a100_sxm4_40gb", "l4"])
def test_a_class_without_a_lock_names_the_one_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldnode.catalog.load import builtin_catalog
    from goldnode.classdoc.compile import class_document
    from goldnode.classdoc.load import load_catalog

    monkeypatch.delenv("GOLDNODE_LOCKS", raising=False)
    catalog = load_catalog([builtin_catalog()])
    stack = catalog.classes[name].item.stack
    with pytest.raises(GoldnodeError) as caught:
        class_document(name, catalog, Site())
    assert caught.value.remedy == f"run `goldnode lock {stack}`"
    done = CliRunner(env={"GOLDNODE_SITE": ""}).invoke(
        main, ["check", "-c", name, "--format", "json"]
    )
    text = json.dumps(json.loads(done.stdout))
    assert f"run `goldnode lock {stack}`" in text
