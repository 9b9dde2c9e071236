"""Delegated targets: a node and python-tuf find the same files in generated repositories, and refuse the same."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner
from tests.unit.node.follow.channels import ED25519, NOW, PAST, YEAR, Channel, Clients
from tuf.api.exceptions import DownloadError, RepositoryError
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.ngclient import Updater, UpdaterConfig

from goldnode.channels.updates import fetcher_of
from goldnode.node.follow.repository import ChannelTooLongError
from goldnode.node.follow.trust import ChannelRefusedError

NAMES = ("a", "x/a", "x/b", "x/y/a", "y/a.json")
PATTERNS = ("*", "x/*", "x/a", "*/a", "x/y/*", "x/[ab]", "*/*", "?/a.json", "y/*.json")
ROLE_NAMES = ("one", "two", "three", "four")
FAULTS = (
    "none",
    "unsigned",
    "other key",
    "expired",
    "not in the snapshot",
    "another version",
    "altered",
    "missing",
    "threshold",
    "another role",
)


@dataclass
class Delegated:
    """A role: the targets that it has, and to whom it delegates what."""

    name: str
    files: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[str, ...], bool, bool], ...] = ()
    fault: str = "none"


@dataclass
class Tree:
    """A repository whose targets delegate, written with python-tuf."""

    place: Path
    roles: tuple[Delegated, ...]
    keys: dict[str, CryptoSigner] = field(default_factory=dict)

    def write(self) -> Channel:
        channel = Channel(self.place)
        meta = {}
        for number, role in enumerate(self.roles):
            # The first two roles share no key with the others.
            self.keys.setdefault(
                role.name, ED25519[2 if role.name == "targets" else 3 + number % 3]
            )
        for role in self.roles:
            described = self._write(channel, role)
            if described is not None:
                meta[f"{role.name}.json"] = described
        channel.save("snapshot", Snapshot(1, expires=YEAR, meta=meta), [ED25519[2]])
        channel.save(
            "timestamp", Timestamp(1, expires=YEAR, snapshot_meta=MetaFile(1)), [ED25519[2]]
        )
        return channel

    def _write(self, channel: Channel, role: Delegated) -> MetaFile | None:
        expires = PAST if role.fault == "expired" else YEAR
        targets = Targets(1, expires=expires)
        for name in role.files:
            data = f"{name} of {role.name}".encode()
            target = TargetFile.from_data(name, data, ["sha256"])
            targets.targets[name] = target
            path = self.place / "targets" / target.get_prefixed_paths()[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if role.rows:
            faults = {one.name: one.fault for one in self.roles}
            rows = {}
            for name, patterns, terminating, hashed in role.rows:
                own: dict[str, Any] = (
                    {"path_hash_prefixes": ["0", "1", "2", "3", "4", "5", "6", "7"]}
                    if hashed
                    else {}
                )
                number = 2 if faults.get(name) == "threshold" else 1
                rows[name] = DelegatedRole(
                    name, [], number, terminating, **(own or {"paths": list(patterns)})
                )
            targets.delegations = Delegations({}, rows)
            for name in rows:
                key = self.keys.get(name, ED25519[5])
                targets.add_key(key.public_key, name)
        signers = [ED25519[0]] if role.fault == "other key" else [self.keys[role.name]]
        channel.save(role.name, targets, [] if role.fault == "unsigned" else signers)
        path = channel.file(f"1.{role.name}.json")
        if role.fault == "altered":
            path.write_bytes(
                path.read_bytes().replace(b"T00:", b"T01:").replace(b"sha256", b"sha512")
            )
        elif role.fault == "missing":
            path.unlink()
        elif role.fault == "another role":
            path.write_bytes(channel.file("1.root.json").read_bytes())
        elif role.fault == "another version":
            path.rename(channel.file(f"2.{role.name}.json"))
            return MetaFile(2)
        return None if role.fault == "not in the snapshot" else MetaFile(1)


def of_reference(clients: Clients, name: str) -> bytes | type[Exception] | None:
    """Return what python-tuf's client gets for a name."""
    folder = clients.state / f"reference-{name.replace('/', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    source = fetcher_of(str(clients.channel.place))
    updater = Updater(
        str(folder),
        "metadata/",
        str(folder),
        "targets/",
        source,
        UpdaterConfig(),
        bootstrap=clients.first,
    )
    try:
        info = updater.get_targetinfo(name)
        if info is None:
            return None
        return Path(updater.download_target(info, str(folder / "file"))).read_bytes()
    except (RepositoryError, DownloadError, ValueError):
        return RepositoryError


def of_node(clients: Clients, name: str) -> bytes | type[Exception] | None:
    """Return what a node gets for a name."""
    node = clients.node()
    try:
        return node.target(node.refresh(), name)
    except (ChannelRefusedError, ChannelTooLongError):
        return RepositoryError


ROWS = st.lists(
    st.tuples(
        st.sampled_from(ROLE_NAMES),
        st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2).map(tuple),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=3,
    unique_by=lambda row: row[0],
).map(tuple)
FILES = st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Delegated, ...]:
    """Roles that delegate to each other, also in circles, of which one may have a fault."""
    top = Delegated("targets", draw(st.just(()) | FILES), draw(ROWS.filter(bool)))
    fault = draw(st.sampled_from(FAULTS))
    faulty = draw(st.sampled_from([row[0] for row in top.rows]))
    return (
        top,
        *(
            Delegated(name, draw(FILES), draw(ROWS), fault if name == faulty else "none")
            for name in ROLE_NAMES
        ),
    )


@settings(max_examples=40, deadline=None)
@given(trees(), st.sampled_from(NAMES))
def test_node_finds_and_refuses_the_same_as_python_tuf(
    roles: tuple[Delegated, ...], name: str
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        clients = Clients(Tree(place / "channel", roles).write(), place / "state")
        assert of_node(clients, name) == of_reference(clients, name)
    finally:
        shutil.rmtree(place)


def chain(length: int, circle: bool = False) -> tuple[Delegated, ...]:
    """Roles of which each delegates all to the next; the last one has the file."""
    names = ["targets", *(f"role{number}" for number in range(1, length + 1))]
    roles = [
        Delegated(name, (), ((following, ("*",), False, False),))
        for name, following in itertools.pairwise(names)
    ]
    back = ((names[1], ("*",), False, False),) if circle else ()
    return (*roles, Delegated(names[-1], () if circle else ("a",), back))


@pytest.mark.parametrize(("length", "found"), [(32, True), (33, False)])
def test_a_search_ends_after_as_many_roles_as_that_of_python_tuf(
    tmp_path: Path, length: int, found: bool
) -> None:
    clients = Clients(Tree(tmp_path / "channel", chain(length)).write(), tmp_path / "state")
    assert of_node(clients, "a") == of_reference(clients, "a")
    assert (of_node(clients, "a") is not None) is found


def test_a_circle_of_delegations_ends(tmp_path: Path) -> None:
    clients = Clients(Tree(tmp_path / "channel", chain(3, circle=True)).write(), tmp_path)
    assert of_node(clients, "a") is None
    assert of_reference(clients, "a") is None


@pytest.mark.parametrize(("terminating", "found"), [(True, None), (False, b"a of two")])
def test_terminating_delegation_ends_the_search_in_other_branches_too(
    tmp_path: Path, terminating: bool, found: bytes | None
) -> None:
    both = (("one", ("*",), False, False), ("two", ("*",), False, False))
    roles = (
        Delegated("targets", (), both),
        Delegated("one", (), (("three", ("*",), terminating, False),)),
        Delegated("two", ("a",)),
        Delegated("three"),
    )
    clients = Clients(Tree(tmp_path / "channel", roles).write(), tmp_path / "state")
    assert of_node(clients, "a") == of_reference(clients, "a") == found


def delegating(place: Path, *, fault: str = "none") -> Tree:
    team = Delegated("team", ("x/a",), fault=fault)
    return Tree(place, (Delegated("targets", ("a",), (("team", ("x/*",), True, False),)), team))


def test_an_older_release_of_a_role_is_refused_by_a_node_that_saw_a_newer_one(
    tmp_path: Path,
) -> None:
    tree = delegating(tmp_path / "channel")
    channel = tree.write()
    clients = Clients(channel, tmp_path / "state")
    meta = {"targets.json": MetaFile(1), "team.json": MetaFile(2)}
    team = Metadata.from_bytes(channel.file("1.team.json").read_bytes()).signed
    team.version = 2
    channel.save("team", team, [tree.keys["team"]])
    for version, named in (
        (2, meta),
        (3, {**meta, "team.json": MetaFile(1)}),
        (4, {"targets.json": MetaFile(1)}),
    ):
        channel.save("snapshot", Snapshot(version, expires=YEAR, meta=named), [ED25519[2]])
        stamp = Timestamp(version, expires=YEAR, snapshot_meta=MetaFile(version))
        channel.save("timestamp", stamp, [ED25519[2]])
        if version == 2:
            assert of_node(clients, "x/a") == b"x/a of team"
        else:
            with pytest.raises(ChannelRefusedError, match=r"team\.json"):
                clients.refresh()


def test_a_role_outside_its_paths_is_not_believed(tmp_path: Path) -> None:
    """The team signs files of others too: what `targets` does not delegate to it is not found."""
    tree = delegating(tmp_path / "channel")
    tree.roles[1].files = ("x/a", "a", "goldnode-node", "y/a.json")
    clients = Clients(tree.write(), tmp_path / "state")
    assert of_node(clients, "a") == b"a of targets"
    assert of_node(clients, "goldnode-node") is None
    assert of_node(clients, "y/a.json") is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": "root"},
        {"name": ""},
        {"name": "../../x"},
        {"name": "x" * 65},
        {"paths": ["x/*"], "path_hash_prefixes": ["0"]},
        {"paths": None},
        {"threshold": 0},
        {"keyids": ["a", "a"]},
        {"paths": [1]},
    ],
)
def test_a_delegation_in_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    channel = delegating(tmp_path / "channel").write()
    document = Metadata.from_bytes(channel.file("1.targets.json").read_bytes())
    content = document.signed.to_dict()
    content["delegations"]["roles"][0].update(change)
    signed_again(channel, "targets", content)
    with pytest.raises(ChannelRefusedError, match="no metadata of TUF"):
        Clients(channel, tmp_path / "state").refresh()


def signed_again(channel: Channel, role: str, content: dict[str, object]) -> None:
    """Sign a document as it is, also in a form that python-tuf does not write."""
    import json

    from goldnode.node.follow import canonical

    signature = ED25519[2].sign(canonical.encoded(content))
    row = {"keyid": signature.keyid, "sig": signature.signature}
    path = channel.file(f"1.{role}.json")
    path.write_text(json.dumps({"signed": content, "signatures": [row]}))


def test_roles_in_bins_are_refused(tmp_path: Path) -> None:
    """TAP 15, which python-tuf reads: goldnode writes none."""
    channel = delegating(tmp_path / "channel").write()
    content = Metadata.from_bytes(channel.file("1.targets.json").read_bytes()).signed.to_dict()
    del content["delegations"]["roles"]
    row = {"keyids": [], "threshold": 1, "bit_length": 8, "name_prefix": "bin"}
    content["delegations"]["succinct_roles"] = row
    signed_again(channel, "targets", content)
    with pytest.raises(ChannelRefusedError, match="no metadata of TUF"):
        Clients(channel, tmp_path / "state").refresh()


def test_a_role_is_judged_by_the_clock_at_each_search(tmp_path: Path) -> None:
    clients = Clients(delegating(tmp_path / "channel").write(), tmp_path / "state")
    assert of_node(clients, "x/a") == b"x/a of team"
    node = clients.node(NOW + dt.timedelta(days=1))
    assert node.target(node.refresh(), "x/a") == b"x/a of team"
