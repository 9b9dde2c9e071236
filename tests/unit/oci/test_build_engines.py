"""Engines: which is chosen, what BuildKit is given, what is said when they fail. None is run here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from goldnode.core.errors import ImageError
from goldnode.oci import engines
from goldnode.oci.engines import EngineStep, bake_file, choose
from goldnode.oci.layers import LayerEntry, write_layer
from goldnode.oci.layout import Layout

OWN = "Driver: {driver}\nNodes:\n BuildKit version: v0.13.2\n Labels:\n  org.mobyproject.buildkit.worker.snapshotter: overlayfs\n"
INSIDE_20 = "Driver:        docker\n\nNodes:\nName:  default\nBuildKit version: v0.8+unknown\n"
Answers = dict[str, tuple[int, str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answers], None]]:
    """A machine on which programs answer as told; what is not named is not installed."""
    monkeypatch.delenv(engines.VARIABLE, raising=False)

    def have(answers: Answers) -> None:
        def run(command: list[str], **named: Any) -> subprocess.CompletedProcess[str]:
            for start, (code, text) in answers.items():
                if " ".join(command).startswith(start):
                    return subprocess.CompletedProcess(command, code, text, "")
            raise FileNotFoundError(2, "No such file", command[0])

        monkeypatch.setattr(subprocess, "run", run)
        for cached in (engines.program_version, engines.builder_version, engines.package_tools):
            cached.cache_clear()

    yield have
    for cached in (engines.program_version, engines.builder_version, engines.package_tools):
        cached.cache_clear()


BUILDAH = {"buildah --version": (0, "buildah version 1.28.2 (image-spec 1.1.0-rc2)\n")}
BUILDX = {"docker buildx version": (0, "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n")}


def test_buildkit_is_preferred(machine: Callable[[Answers], None]) -> None:
    machine(
        {**BUILDAH, **BUILDX, "docker buildx inspect": (0, OWN.format(driver="docker-container"))}
    )
    found = choose()
    assert (found.name, found.version) == ("buildkit", "0.13.1+ds1/v0.13.2")
    assert choose("buildah").name == "buildah"


def test_a_builder_without_oci_layouts_is_passed_over(machine: Callable[[Answers], None]) -> None:
    machine({**BUILDAH, **BUILDX, "docker buildx inspect": (0, INSIDE_20)})
    assert (choose().name, choose().version) == ("buildah", "1.28.2")
    with pytest.raises(
        ImageError,
        match=r"v0\.8\+unknown inside this dockerd hands out no OCI layouts.*docker buildx create",
    ):
        choose("buildkit")


def test_a_builder_that_does_not_answer(machine: Callable[[Answers], None]) -> None:
    machine({**BUILDX, "docker buildx inspect": (1, "Cannot connect to the Docker daemon")})
    with pytest.raises(
        ImageError,
        match=r"no engine builds images here: docker's builder does not answer: Cannot connect.*; buildah is not",
    ):
        choose()


def test_choose_fails_without_a_known_engine(
    machine: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({})
    with pytest.raises(
        ImageError,
        match=r"docker has no buildx here; buildah is not on this machine.*Install buildah",
    ):
        choose()
    monkeypatch.setenv(engines.VARIABLE, "kaniko")
    with pytest.raises(ImageError, match='"kaniko" is no engine'):
        choose()


def test_tools_have_their_versions_or_one_is_missing(machine: Callable[[Answers], None]) -> None:
    programs = {
        "mmdebstrap --version": (0, "mmdebstrap 1.3.5\n"),
        "apt-get --version": (0, "apt 2.6.1 (amd64)\n"),
        "dpkg --version": (0, "version 1.21.22 (amd64).\n"),
        "qemu-": (0, "qemu-aarch64 version 7.2.22\n"),  # asked where the machine has it
    }
    machine({**BUILDAH, **programs})
    found = engines.tools(choose())
    assert {name: found[name] for name in ("mmdebstrap", "apt", "dpkg", "engine")} == {
        "mmdebstrap": "1.3.5",
        "apt": "2.6.1",
        "dpkg": "1.21.22",
        "engine": "buildah 1.28.2",
    }
    machine(BUILDAH)
    with pytest.raises(
        ImageError,
        match=r"mmdebstrap is not on this machine\. Install it: apt-get install mmdebstrap",
    ):
        engines.tools(choose())


def step(place: Path) -> EngineStep:
    layout = Layout(place / "store")
    (place / "work").mkdir()
    layer = write_layer(layout, [LayerEntry.text("a", "b", 1)])
    text = "FROM parent\nRUN --mount=type=bind,from=step,target=/mnt sh /mnt/script /mnt\n"
    return EngineStep(
        "k" * 64,
        parent=[layer],
        layout=layout,
        containerfile=text,
        directory=place / "step",
        work=place / "work",
        epoch=1000,
    )


def test_bake_file_has_no_network_and_no_provenance(tmp_path: Path) -> None:
    one = step(tmp_path)
    target = json.loads(json.dumps(bake_file(one, "sha256:" + "1" * 64)))["target"]["step"]
    assert target["network"] == "none"
    assert (
        target["dockerfile-inline"]
        .splitlines()[1]
        .startswith("RUN --network=none --mount=type=bind,from=step")
    )
    assert target["contexts"] == {
        "parent": f"oci-layout://{tmp_path}/work/parent@sha256:{'1' * 64}",
        "step": f"{tmp_path}/step",
    }
    assert target["output"] == [
        f"type=oci,dest={tmp_path}/work/out,tar=false,compression=uncompressed"
    ]
    assert target["attest"] == [
        "type=provenance,disabled=true"
    ]  # goldnode's own are referrers, not entries of an index


def test_the_parent_is_handed_over_as_it_is(tmp_path: Path) -> None:
    one = step(tmp_path)
    digest = engines.write_parent(one, tmp_path / "parent")
    image = Layout(tmp_path / "parent", create=False).image("parent")
    assert image.digest == digest
    assert [row.digest for row in image.layers] == [one.parent[0].blob.digest]
    assert image.config["rootfs"]["diff_ids"] == [one.parent[0].diff]
    assert engines.write_parent(one, tmp_path / "again") == digest


@pytest.mark.parametrize(
    ("said", "tries"),
    [
        (
            'Error: pushing image "x": reading blob: locating image with ID "ada5": image not known',
            3,
        ),
        ("Error: creating image: layer not known", 3),
        ("E: Unable to locate package x", 1),
    ],
)
def test_a_step_whose_image_buildah_lost_is_made_again(
    machine: Callable[[Answers], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    tries: int,
) -> None:
    machine(BUILDAH)
    one, runs = step(tmp_path), 0

    def run(*_: object) -> None:
        nonlocal runs
        runs += 1
        (one.work / "out").mkdir()  # what is left of an earlier run would be in the way
        raise ImageError(f"buildah cannot make the layer: exit 125\n  {said}")

    monkeypatch.setattr(engines, "_run", run)
    monkeypatch.setattr(engines, "_root", lambda: None)
    with (
        pytest.raises(ImageError, match="buildah cannot make the layer"),
        engines.Buildah(tmp_path / "storage").run(one),
    ):
        pass
    assert runs == tries


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "exit 1\ndpkg: error: cannot write: No space left on device",
            r"the disk is full\. Make room",
        ),
        (
            "E: You do not have enough free space in /x/var/cache/apt/archives/.\nE: mmdebstrap failed to run",
            r"the disk is full\. Make room",
        ),
        ("\n".join(f"line {number}" for number in range(20)), r"exit 1\n  line 12"),
    ],
)
def test_failed_command_reports_disk_full_or_its_last_lines(text: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        engines._run(
            ["sh", "-c", f"printf '%s\\n' '{text}'; exit 1"], {"PATH": "/usr/bin:/bin"}, "it cannot"
        )


def test_nothing_of_this_shell_reaches_a_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    found = engines.builder_environment()
    assert found["TZ"] == "UTC"
    assert not {"SECRET_TOKEN", "DOCKER_CONFIG"} & found.keys()
    assert engines.builder_environment(*engines.DOCKER_VARIABLES)["DOCKER_CONFIG"] == "/nowhere"
