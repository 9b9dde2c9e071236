"""Published images examined with Debian 13's cosign, skopeo and oras, in a container of that release."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container
from release import provenance
from tests.images.registry_server import PASSWORD, USER, DockerRegistry
from tests.unit.disks.disk_trees import EPOCH, RELEASE, tree
from tests.unit.images.registries import make_ecdsa_key, make_image, make_key, prove

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.core.files import sha256_of
from goldnode.disks import formats
from goldnode.disks.model import FORMATS
from goldnode.evidence import cosign, release_files
from goldnode.evidence.signatures import load_public, load_signer, statement
from goldnode.evidence.trust import load_trust
from goldnode.images.cosign_tags import layers
from goldnode.images.publish import ImagePublication, PublishedImage, publish, push
from goldnode.images.pull import ImagePull, pull
from goldnode.oci.layout import MANIFEST, Layout, canonical
from goldnode.oci.registry import RegistryAddress, referrers_tag
from goldnode.testing.lab import images as lab

pytestmark = pytest.mark.images

PREDICATE = "https://slsa.dev/provenance/v1"
PROVENANCE = {
    "buildDefinition": {"buildType": "urn:goldnode:image-build:1", "externalParameters": {}},
    "runDetails": {"builder": {"id": "urn:goldnode:builder"}},
}
KINDS = ("ed25519", "ecdsa")
PACKAGES = ("cosign", "oras", "skopeo", "umoci")


def inside(
    container: Container, command: list[str], environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command in a container; returns exit status and output."""
    done = container.exec_run(command, environment=dict(environment or {}))
    assert isinstance(done.output, bytes)
    return int(done.exit_code or 0), done.output.decode()


class VerifierContainer:
    """A Debian 13 with the tools. `directory` has keys, the registry's certificate and the login, as /t."""

    def __init__(
        self, client: DockerClient, image: str, directory: Path, registry: DockerRegistry
    ) -> None:
        self.directory, self.registry = directory, registry
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (directory / "config.json").write_text(
            json.dumps({"auths": {registry.host: {"auth": login}}})
        )
        (directory / "ca.crt").write_bytes(registry.ca.read_bytes())
        (directory / "root.json").write_text(
            '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
        )
        folder = directory / "registries.d"
        folder.mkdir()
        (folder / "test.yaml").write_text(
            f"docker:\n  {registry.host}:\n    use-sigstore-attachments: true\n"
        )
        self.container = client.containers.run(
            image,
            ["sleep", "3600"],
            detach=True,
            network_mode="host",
            labels={lab.LABEL: "verifiers"},
            volumes={str(directory): {"bind": "/t", "mode": "ro"}},
            environment={
                "SSL_CERT_FILE": "/t/ca.crt",
                "DOCKER_CONFIG": "/t",
                "REGISTRY_AUTH_FILE": "/t/config.json",
            },
        )

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run a command; returns exit status and output."""
        return inside(self.container, list(command), environment)

    def cosign(self, command: str, key: str, *rest: str) -> tuple[int, str]:
        """Run cosign with a public key, without a transparency log."""
        return self.run(
            "cosign",
            *command.split(),
            "--key",
            f"/t/{key}.pub",
            "--insecure-ignore-tlog=true",
            *rest,
        )


class PublishedWithKey:
    """An image that was published with signatures of one key."""

    def __init__(self, directory: Path, registry: DockerRegistry, kind: str) -> None:
        self.kind = kind
        make = make_ecdsa_key if kind == "ecdsa" else make_key
        self.secret, self.public = make(directory, kind)
        self.layout = Layout(directory / f"store-{kind}")
        build = {"ecdsa": "e", "ed25519": "d"}[kind] * 12
        self.ref, self.digest = make_image(self.layout, build=build, content=kind.encode())
        signer = load_signer(self.secret)
        signed = signer.sign(statement(self.ref, self.digest, PREDICATE, PROVENANCE))
        self.layout.attach(self.digest, evidence.PROVENANCE, signed)
        for document in (evidence.CYCLONEDX, evidence.SPDX):
            self.layout.attach(self.digest, document, canonical({"kind": document}))
        prove(self.layout, self.digest, self.secret, papers=False)
        self.repository = f"{registry.host}/{kind}/cuda"
        cosign.attach(self.layout, self.digest, self.repository, self.ref, signer)
        how = ImagePublication(load_public(self.public), settle=0)
        publish(self.layout, self.ref, RegistryAddress(registry.host, kind), registry.client(), how)
        self.target = registry.client().repository(f"{kind}/cuda")
        self.name = f"{self.repository}@{self.digest}"


def prepared(client: DockerClient) -> str:
    """Return the image of a Debian 13 with the tools, made from the lab's bare one unless the engine has it."""
    base = lab.ensure(client, "debian13", "bare", say=print)
    wanted = lab.snapshot_reference(["verifiers", base, *PACKAGES])
    if lab.exists(client, wanted):
        return wanted
    container = client.containers.run(
        base, ["sleep", "600"], detach=True, network_mode="host", labels={lab.LABEL: "verifiers"}
    )
    try:
        install = f"apt-get -q update && apt-get -q install -y --no-install-recommends {' '.join(PACKAGES)}"
        status, text = inside(
            container, ["sh", "-ec", install], {"DEBIAN_FRONTEND": "noninteractive"}
        )
        assert status == 0, text
        repository, _, tag = wanted.partition(":")
        container.commit(repository, tag, changes=f"LABEL {lab.LABEL}=snapshot")
    finally:
        container.remove(force=True)
    return wanted


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    found = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield found
    found.kill()


@pytest.fixture(scope="module")
def images(
    tmp_path_factory: pytest.TempPathFactory, registry: DockerRegistry
) -> dict[str, PublishedWithKey]:
    directory = tmp_path_factory.mktemp("keys")
    return {kind: PublishedWithKey(directory, registry, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def tools(
    images: dict[str, PublishedWithKey],
    registry: DockerRegistry,
    docker_client: DockerClient,
) -> Iterator[VerifierContainer]:
    wanted = prepared(docker_client)
    directory = images["ecdsa"].public.parent
    found = VerifierContainer(docker_client, wanted, directory, registry)
    yield found
    found.container.remove(force=True)


@pytest.mark.parametrize("kind", KINDS)
def test_cosign_verifies_the_image(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], kind: str
) -> None:
    image = images[kind]
    status, text = tools.cosign("verify", kind, image.name)
    assert status == 0, text
    assert f'"docker-reference":"{image.repository}"' in text
    # By the referrers instead of the tag.
    status, text = tools.run(
        *f"cosign verify --experimental-oci11 --key /t/{kind}.pub --insecure-ignore-tlog=true".split(),
        image.name,
        environment={"COSIGN_EXPERIMENTAL": "1"},
    )
    assert status == 0, text
    other = next(name for name in KINDS if name != kind)
    status, text = tools.cosign("verify", other, image.name)
    assert status != 0
    assert "invalid signature" in text or "no matching signatures" in text


def test_cosign_verifies_the_signature_of_a_release(tools: VerifierContainer) -> None:
    """By the line of docs/how-to/install.md, and not after one byte has changed."""
    directory = tools.directory / "release"
    directory.mkdir()
    sums = directory / release_files.SUMS
    sums.write_bytes(b"0" * 64 + b"  goldnode-0.2.0-py3-none-any.whl\n")
    secret, _ = make_ecdsa_key(directory, "release")
    provenance.sign(directory, provenance.signer(secret))
    words = (
        *("cosign", "verify-blob", "--key", "/t/release/release.pub", "--insecure-ignore-tlog"),
        *(
            "--signature",
            f"/t/release/{release_files.SIGNATURE}",
            f"/t/release/{release_files.SUMS}",
        ),
    )
    status, text = tools.run(*words)
    assert (status, "Verified OK" in text) == (0, True), text
    sums.write_bytes(b"1" + sums.read_bytes()[1:])
    status, text = tools.run(*words)
    assert status != 0, text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "type_", ["slsaprovenance1", "cyclonedx", "spdxjson", "urn:goldnode:image-evidence:1"]
)
def test_cosign_verifies_the_attestations(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], kind: str, type_: str
) -> None:
    image = images[kind]
    status, text = tools.cosign("verify-attestation", kind, "--type", type_, image.name)
    assert status == 0, text
    # By the referrers, as Sigstore bundles.
    bundle = ("--new-bundle-format", "--trusted-root", "/t/root.json")
    status, text = tools.cosign("verify-attestation", kind, *bundle, "--type", type_, image.name)
    assert status == 0, text
    other = next(name for name in KINDS if name != kind)
    for form in ((), bundle):
        status, text = tools.cosign("verify-attestation", other, *form, "--type", type_, image.name)
        assert status != 0
        assert "no matching attestations" in text


def test_cosign_refuses_a_signature_that_was_moved_to_another_image(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], registry: DockerRegistry
) -> None:
    image = images["ecdsa"]
    other = Layout(tools.directory / "tampered")
    _, digest = make_image(other, build="f" * 12, content=b"tampered")
    prove(other, digest, image.secret, papers=False)
    found = ImagePublication(load_public(image.public), settle=0)
    publish(
        other,
        next(iter(other.refs())),
        RegistryAddress(registry.host, "ecdsa"),
        registry.client(),
        found,
    )
    for suffix in ("sig", "att"):
        moved = image.target.manifest(f"{referrers_tag(image.digest)}.{suffix}")
        assert moved is not None
        image.target.put_manifest(f"{referrers_tag(digest)}.{suffix}", moved.data, MANIFEST)
    name = f"{image.repository}@{digest}"
    status, text = tools.cosign("verify", "ecdsa", name)
    assert status != 0
    assert "invalid or missing digest in claim" in text or "no matching signatures" in text
    status, text = tools.cosign("verify-attestation", "ecdsa", "--type", "cyclonedx", name)
    assert status != 0
    assert "no matching attestations" in text


def test_cosign_signs_beside_goldnode_and_neither_loses_the_other(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], registry: DockerRegistry
) -> None:
    image = images["ecdsa"]
    status, text = tools.run(
        *(
            "sh",
            "-ec",
            "cd /root && COSIGN_PASSWORD= cosign generate-key-pair && cp cosign.pub /tmp/team.pub",
        ),
    )
    assert status == 0, text
    status, text = tools.run(
        *["cosign", "sign", "--yes", "--tlog-upload=false", "--key", "/root/cosign.key"],
        image.name,
        environment={"COSIGN_PASSWORD": ""},
    )
    assert status == 0, text
    how = ImagePublication(load_public(image.public), settle=0)
    publish(
        image.layout, image.ref, RegistryAddress(registry.host, "ecdsa"), registry.client(), how
    )
    assert len(layers(image.target, f"{referrers_tag(image.digest)}.sig")) == 2
    verify = ["cosign", "verify", "--insecure-ignore-tlog=true", "--key"]
    for key in ("/tmp/team.pub", "/t/ecdsa.pub"):
        status, text = tools.run(*verify, key, image.name)
        assert status == 0, text


def test_cosign_tree_and_oras_list_signatures_and_attestations(
    tools: VerifierContainer, images: dict[str, PublishedWithKey]
) -> None:
    image = images["ed25519"]
    status, text = tools.run("cosign", "tree", image.name)
    assert status == 0, text
    tag = f"{image.repository}:{referrers_tag(image.digest)}"
    assert f"{tag}.sig" in text
    assert f"{tag}.att" in text
    status, text = tools.run("oras", "discover", "--format", "json", image.name)
    assert status == 0, text
    found = {row["artifactType"] for row in json.loads(text)["manifests"]}
    assert found >= {cosign.SIGNATURE, cosign.BUNDLE, evidence.SIGNATURE, evidence.CYCLONEDX}


def test_skopeo_and_goldnode_read_one_policy(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], tmp_path: Path
) -> None:
    image, other = images["ecdsa"], images["ed25519"]

    def policy(key: Path) -> Path:
        required = {
            "type": "sigstoreSigned",
            "keyData": base64.b64encode(key.read_bytes()).decode(),
            "signedIdentity": {"type": "matchRepository"},
        }
        file = tools.directory / f"policy-{key.stem}.json"
        document = {
            "default": [{"type": "reject"}],
            "transports": {"docker": {image.repository: [required]}},
        }
        file.write_text(json.dumps(document))
        return file

    def skopeo(file: Path, name: str) -> tuple[int, str]:
        return tools.run(
            *f"skopeo copy --policy /t/{file.name} --registries.d /t/registries.d docker://{name} dir:/tmp/x".split()
        )

    right, wrong = policy(image.public), policy(other.public)
    status, text = skopeo(right, image.name)
    assert status == 0, text
    trust = load_trust([right])
    assert pull(Layout(tmp_path / "a"), image.target, image.digest, ImagePull(trust)).signed_by
    for file, one in ((wrong, image), (right, other)):
        status, text = skopeo(file, one.name)
        assert status != 0
        assert "Source image rejected" in text
        with pytest.raises(ImageError, match="is not trusted"):
            pull(Layout(tmp_path / "b"), one.target, one.digest, ImagePull(load_trust([file])))


def test_goldnode_pulls_an_image_that_only_cosign_signed(
    tools: VerifierContainer, images: dict[str, PublishedWithKey], tmp_path: Path
) -> None:
    image = images["ed25519"]
    _, digest = make_image(
        image.layout, build="a" * 12, content=b"of a team", labels={"backend": ""}
    )
    push(image.layout, digest, image.target, PublishedImage("", digest))
    status, text = tools.run(
        *["sh", "-ec"],
        "cd /tmp && COSIGN_PASSWORD= cosign generate-key-pair --output-key-prefix only && cat only.pub",
    )
    assert status == 0, text
    key = tmp_path / "only.pub"
    key.write_text(text[text.index("-----BEGIN") :])
    status, text = tools.run(
        *["cosign", "sign", "--yes", "--tlog-upload=false", "--key", "/tmp/only.key"],
        f"{image.repository}@{digest}",
        environment={"COSIGN_PASSWORD": ""},
    )
    assert status == 0, text
    found = pull(Layout(tmp_path / "other"), image.target, digest, ImagePull(load_trust([key])))
    assert found.signed_by == (load_public(key)[0].keyid[:12],)
    with pytest.raises(ImageError, match="no signature of cosign is valid"):
        pull(
            Layout(tmp_path / "third"), image.target, digest, ImagePull(load_trust([image.public]))
        )


# -- disk images in a registry, as docs/how-to/disk-platforms.md has them


@pytest.fixture(scope="module")
def disk(tools: VerifierContainer) -> Path:
    """A small disk and its root in the forms for registries, where the tools see them."""
    place = tools.directory / "disk"
    place.mkdir()
    raw, root = place / "disk.raw", tree(place / "root")
    with raw.open("wb") as file:
        file.write(b"content" * 100_000)
        file.truncate(16 << 20)
    for kind in ("oci", "containerdisk", "vmdk"):
        out = place / f"cpu_only-0123456789ab{FORMATS[kind]}"
        formats.write(raw, root, kind, out, epoch=EPOCH, release=RELEASE)
    return place


@pytest.mark.parametrize("kind", ["oci", "containerdisk"])
def test_skopeo_copies_a_disk_with_its_digest(
    tools: VerifierContainer, disk: Path, kind: str
) -> None:
    archive = f"oci-archive:/t/disk/cpu_only-0123456789ab{FORMATS[kind]}"
    name = f"docker://{tools.registry.host}/ecdsa/{kind}:0123456789ab"
    status, text = tools.run("skopeo", "copy", "--preserve-digests", archive, name)
    assert status == 0, text
    status, digest = tools.run("skopeo", "inspect", "--format", "{{.Digest}}", name)
    assert status == 0, digest
    with tarfile.open(disk / f"cpu_only-0123456789ab{FORMATS[kind]}") as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (row,) = json.load(index)["manifests"]
    assert digest.strip() == row["digest"]


def test_umoci_unpacks_the_root_as_warewulf_does(tools: VerifierContainer, disk: Path) -> None:
    archive = f"oci-archive:/t/disk/cpu_only-0123456789ab{FORMATS['oci']}"
    for command in (
        ["skopeo", "copy", "--preserve-digests", archive, "oci:/tmp/layout:root"],
        ["umoci", "raw", "unpack", "--image", "/tmp/layout:root", "/tmp/unpacked"],
        ["diff", "-r", "--no-dereference", "-x", "fifo", "/t/disk/root", "/tmp/unpacked"],
    ):
        status, text = tools.run(*command)
        assert status == 0, text
    status, text = tools.run("stat", "-c", "%a %u %g", "/tmp/unpacked/etc/shadow")
    assert (status, text.strip()) == (0, "640 0 0")
    status, text = tools.run(
        "skopeo", "copy", archive, "docker-archive:/tmp/docker.tar:cpu_only:0123456789ab"
    )
    assert status == 0, text


def test_oras_pushes_a_disk_with_one_digest(tools: VerifierContainer, disk: Path) -> None:
    repository = f"{tools.registry.host}/ecdsa/disks"
    file = f"cpu_only-0123456789ab{FORMATS['vmdk']}"
    push = (
        f"cd /t/disk && oras push --artifact-type application/vnd.goldnode.disk "
        f"--annotation org.opencontainers.image.created=2026-11-29T00:00:00Z --format go-template='{{{{.digest}}}}' {repository}:TAG "
        f"{file}:application/octet-stream"
    )
    digests = set()
    for tag in ("one", "two"):
        status, text = tools.run("sh", "-ec", push.replace("TAG", tag))
        assert status == 0, text
        digests.add(text.strip().splitlines()[-1])
    (digest,) = digests
    status, text = tools.run("oras", "pull", "-o", "/tmp/pulled", f"{repository}@{digest}")
    assert status == 0, text
    status, text = tools.run("sha256sum", f"/tmp/pulled/{file}")
    assert status == 0, text
    assert text.split()[0] == sha256_of(disk / file)
