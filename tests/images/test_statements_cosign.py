"""Statements of evidence verified by cosign of Debian 13 and of Debian's unstable, by the line of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container
from tests.images.test_standard_verifiers import inside, prepared
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_ecdsa_key, make_key

from goldnode.core.site import archive_url, load_site
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope
from goldnode.testing.lab import images as lab

pytestmark = pytest.mark.images

PAGE = Path(__file__).parents[2] / "docs/how-to/evidence.md"
MAKERS = {"ed25519": make_key, "ecdsa": make_ecdsa_key}
UNSTABLE = """
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {archive} sid main" > /etc/apt/sources.list
# A mirror may be older than unstable's indexes allow.
apt-get -q -o Acquire::Check-Valid-Until=false update
DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends cosign
"""


def documented() -> str:
    """Return the line that a reader types."""
    block = re.search(r"```console\n\$ (cosign .*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per sort of key, with a record, its statement and the public key, as the line names them."""
    folder = tmp_path_factory.mktemp("statements")
    document = records.case_class()
    for name, make in MAKERS.items():
        own = folder / name
        own.mkdir()
        secret, _ = make(own, "evidence")
        record = records.write("canary", document, own)
        record.rename(own / "canary.json")
        proof = prove(ProofRequest("canary", own / "canary.json", document), DETAIL)
        (own / "canary.dsse.json").write_bytes(envelope(proof, load_signer(secret)))
        make(own, "old")
        (own / "altered.json").write_text((own / "canary.json").read_text() + " ")
        signed = (own / "canary.dsse.json").read_text()
        at = signed.index('"payload":"') + 40
        other = "A" if signed[at] != "A" else "B"
        (own / "tampered.dsse.json").write_text(f"{signed[:at]}{other}{signed[at + 1 :]}")
    return folder


@pytest.fixture(scope="module")
def debian13(statements: Path, docker_client: DockerClient) -> Iterator[Container]:
    container = docker_client.containers.run(
        prepared(docker_client),
        ["sleep", "3600"],
        detach=True,
        network_mode="host",
        labels={lab.LABEL: "verifiers"},
        volumes={str(statements): {"bind": "/t", "mode": "ro"}},
    )
    yield container
    container.remove(force=True)


# change of the line -> whether cosign refuses it
CASES: dict[str, tuple[dict[str, str], bool]] = {
    "good": ({}, False),
    "another-subject": ({" canary.json": " altered.json"}, True),
    "tampered": ({"canary.dsse.json": "tampered.dsse.json"}, True),
    "old-key": ({"evidence.pub": "old.pub"}, True),
    "another-kind": ({"evidence:canary:1": "evidence:floors:1"}, True),
}


def verify(container: Container, key: str, changes: dict[str, str]) -> tuple[int, str]:
    line = documented()
    for old, new in changes.items():
        assert old in line
        line = line.replace(old, new)
    return inside(container, ["sh", "-c", f"cd /t/{key} && {line}"])


@pytest.mark.parametrize("key", MAKERS)
@pytest.mark.parametrize("case", CASES)
def test_cosign_of_debian_13_verifies_a_statement(debian13: Container, key: str, case: str) -> None:
    changes, refused = CASES[case]
    status, text = verify(debian13, key, changes)
    assert (status != 0, "Verified OK" in text) == (refused, not refused), text


@pytest.mark.long
def test_cosign_of_unstable_verifies_a_statement(debian13: Container) -> None:
    """A newer cosign reads the same line: Debian's unstable has one of the next major version."""
    archive = archive_url(load_site(), "debian")
    status, text = inside(debian13, ["sh", "-ec", UNSTABLE.replace("{archive}", archive)])
    assert status == 0, text[-2000:]
    # Debian's build calls itself "devel", so that its package names the version.
    _, version = inside(debian13, ["dpkg-query", "-W", "-f", "${Version}", "cosign"])
    assert int(version.partition(".")[0]) >= 3
    print(f"cosign {version}")
    for key in MAKERS:
        for case, (changes, refused) in CASES.items():
            status, text = verify(debian13, key, changes)
            assert (status != 0) == refused, (key, case, text)
