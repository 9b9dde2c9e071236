"""The matrix: goldnode's own, rows that follow from one, and the faults of one, each at its line."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.commands.schema.kinds import schema_text
from goldnode.core.errors import ImageError
from goldnode.facts import host as facts
from goldnode.images import hostpackage
from goldnode.images.build import recipes
from goldnode.images.imagelock import ImageLock, find_lock, intent_digest
from goldnode.images.matrix import ImageMatrix, builtin_matrix, load_matrix

HEAD = """\
matrix: 1
systems:
  debian12: {id: debian, release: "12", codename: bookworm, architectures: [amd64], python: "3.11", glibc: "2.36", archives: [debian]}
  debian13: {id: debian, release: "13", codename: trixie, architectures: [amd64], python: "3.13", glibc: "2.41", archives: [debian]}
licences:
  closed: {title: LicenseRef-Closed, redistribution: private, note: read}
  open: {title: MIT, redistribution: free, note: read}
backends:
  cpu:
    title: Nothing
    purity: cpu
    releases:
      - version: "1"
        os: [debian12, debian13]
        flavours:
          base: {parent: null, debs: ["?essential"]}
"""

CUDA = """\
  cuda:
    title: CUDA
    purity: cuda
    releases:
      - version: 12.4.1
        os: [debian12, debian13]
        prefer: {debian13: debs}
        components:
          cudart: {version: 12.4.127, wheel: nvidia-cuda-runtime-cu12, debs: [libcudart12], layout: cuda, licence: closed}
          nccl: {version: 2.21.5, wheel: nvidia-nccl-cu12, layout: cuda, licence: open}
        flavours:
          base: {parent: cpu-1-base, components: [cudart]}
          runtime: {parent: base, components: [nccl]}
"""


def read(tmp_path: Path, text: str) -> ImageMatrix:
    path = tmp_path / "matrix.yml"
    path.write_text(text, encoding="utf-8")
    return load_matrix(path)


@pytest.fixture(scope="module")
def own() -> ImageMatrix:
    return load_matrix()


@pytest.fixture(scope="module")
def locks(own: ImageMatrix) -> dict[str, ImageLock]:
    return {row.name: find_lock(row) for row in own.images.values() if row.exercised}


def test_the_own_matrix_has_what_was_promised(own: ImageMatrix) -> None:
    flavours = {
        (row.image.backend, row.image.version, row.image.flavour) for row in own.images.values()
    }
    for version in ("11.8.0", "12.4.1", "12.9.1", "13.5.0"):
        assert {("cuda", version, "base"), ("cuda", version, "runtime")} <= flavours
    assert {("cuda", version, "devel") for version in ("11.8.0", "12.4.1", "13.5.0")} <= flavours
    assert ("cuda", "12.9.1", "devel") not in flavours  # its wheels hold no whole compiler
    assert {("cpu", "1", name) for name in ("base", "runtime", "devel")} <= flavours
    assert {"rocm", "oneapi"} <= {row.image.backend for row in own.images.values()}


def test_every_image_that_is_built_has_a_lock_of_this_matrix(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name, lock in locks.items():
        parent = own.row(name).image.parent
        assert bool(lock.debs or lock.wheels), name
        assert (lock.parent.lock if lock.parent is not None else None) == (
            locks[parent].digest if parent is not None else None
        ), name


def test_no_image_locks_again_what_it_stands_on(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name, lock in locks.items():
        below = {deb.name for other in own.chain(name)[:-1] for deb in locks[other.name].debs}
        assert not below & {deb.name for deb in lock.debs}, name


def test_every_image_has_the_python_of_the_smoke_runner(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name in locks:
        assert "python3" in {
            deb.name for other in own.chain(name) for deb in locks[other.name].debs
        }, name


def test_parts_of_a_release_are_the_versions_that_are_locked(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name, lock in locks.items():
        row = own.row(name)
        locked = {wheel.name: wheel.version for wheel in lock.wheels}
        for part, component in row.components.items():
            if component.wheel in locked:
                assert locked[component.wheel] == row.parts[part], name


def test_nothing_of_cuda_is_in_another_backend(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name, lock in locks.items():
        if own.row(name).image.backend != "cuda":
            found = [item.name for item in lock.debs] + [item.name for item in lock.wheels]
            assert not [
                package
                for package in found
                if package.startswith(("nvidia-", "libcud", "libcub", "libnvidia"))
            ], name


def test_no_driver_is_in_an_image(locks: dict[str, ImageLock]) -> None:
    drivers = (
        "libcuda1",
        "libnvidia-ml1",
        "libnvidia-ptxjitcompiler1",
        "nvidia-alternative",
        "nvidia-kernel-support",
    )
    for name, lock in locks.items():
        assert not [deb.name for deb in lock.debs if deb.name in drivers], name


def test_locks_of_debian_devel_images_provide_the_host_driver(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    for name, version in (
        ("cuda-11.8.0-devel-debian12", "520"),
        ("cuda-12.4.1-devel-debian13", "550"),
    ):
        made = [deb for deb in locks[name].debs if deb.made]
        assert [deb.provides for deb in made] == [
            (f"libcuda.so.1 (= {version})", f"libnvidia-ml.so.1 (= {version})")
        ]
        assert made[0] == hostpackage.locked(
            hostpackage.stated(made[0].provides)
        )  # this goldnode makes that very file
    assert not own.row("cuda-12.4.1-runtime-debian13").from_host


def test_parts_of_each_cuda_release_equal_the_facts(own: ImageMatrix) -> None:
    known = {
        str(row["version"]): row["parts"]
        for row in facts.load("cuda.yml")["releases"]
        if "parts" in row
    }
    rows = [row for row in own.images.values() if row.image.backend == "cuda"]
    assert {
        row.image.version for row in rows
    } <= known.keys()  # so that the inspection can tell each release of the matrix
    for row in rows:
        pinned = known[row.image.version]
        assert {name: row.parts[name] for name in row.parts.keys() & pinned.keys()} == {
            name: str(pinned[name]) for name in row.parts.keys() & pinned.keys()
        }, row.name


def test_the_locks_name_no_host(own: ImageMatrix) -> None:
    for path in (own.file.parent / "locks").iterdir():
        assert "://" not in path.read_text(encoding="utf-8"), path


def test_min_driver_is_that_of_the_facts(own: ImageMatrix) -> None:
    assert own.row("cuda-11.8.0-base-debian12").min_driver == "450.80.02"
    assert own.row("cuda-13.5.0-devel-debian13").min_driver == "580.65.06"
    assert own.row("cpu-1-base-debian12").min_driver is None


def test_rows_of_a_release(tmp_path: Path) -> None:
    matrix = read(tmp_path, HEAD + CUDA)
    on12, on13 = matrix.row("cuda-12.4.1-base-debian12"), matrix.row("cuda-12.4.1-base-debian13")
    assert (on12.debs, on12.wheels, on12.layout) == (
        (),
        ("nvidia-cuda-runtime-cu12==12.4.127",),
        "cuda",
    )
    assert (on13.debs, on13.wheels, on13.layout) == (("libcudart12",), (), "none")
    assert on12.image.parent == "cpu-1-base-debian12"
    assert on12.cuda_home == "/usr/local/cuda-12.4"
    runtime = matrix.row("cuda-12.4.1-runtime-debian13")
    assert dict(runtime.parts) == {"cudart": "12.4.127", "nccl": "2.21.5"}  # its parent's included
    assert runtime.wheels == ("nvidia-nccl-cu12==2.21.5",)  # of nccl there is no package
    assert runtime.redistribution == "private"  # because of what it stands on
    assert runtime.licences == ("LicenseRef-Closed", "MIT")
    assert matrix.row("cpu-1-base-debian12").redistribution == "free"


def test_select_gives_parents_first(tmp_path: Path) -> None:
    matrix = read(tmp_path, HEAD + CUDA)
    names = [row.name for row in matrix.select(["cuda-*-runtime-debian12"])]
    assert names == [
        "cpu-1-base-debian12",
        "cuda-12.4.1-base-debian12",
        "cuda-12.4.1-runtime-debian12",
    ]
    assert len(matrix.select(["cuda"])) == 6
    assert len(matrix.select()) == 6


def test_images_on_a_system_that_is_not_released_are_built_only_by_name(tmp_path: Path) -> None:
    own = HEAD.replace(
        'glibc: "2.41", archives: [debian]}', 'glibc: "2.41", archives: [debian], released: false}'
    )
    matrix, released = read(tmp_path, own), read(tmp_path, HEAD)

    def names(*patterns: str) -> list[str]:
        return [row.name for row in matrix.select(patterns, exercised=True)]

    assert names() == names("cpu") == ["cpu-1-base-debian12"]
    assert names("cpu-1-base-debian13") == names("*debian13") == ["cpu-1-base-debian13"]
    assert len(matrix.select()) == len(matrix.select(["cpu"])) == 2
    # A lock is not of another request for it.
    name = "cpu-1-base-debian13"
    assert intent_digest(matrix.row(name)) == intent_digest(released.row(name))


def test_a_vendors_base_is_named_by_digest(tmp_path: Path) -> None:
    reference = "registry.example:5000/vendor/cuda@sha256:" + "a" * 64
    text = HEAD + CUDA.replace(
        "prefer: {debian13: debs}", f'source: {{vendor: "{reference}"}}\n        exercised: false'
    ).replace("parent: cpu-1-base", "parent: null")
    row = read(tmp_path, text).row("cuda-12.4.1-base-debian12")
    assert row.vendor == reference
    assert not row.exercised
    with pytest.raises(ImageError, match="no reference by digest"):
        read(tmp_path, text.replace("@sha256:" + "a" * 64, ":12.4.1"))


FAULTS = [
    (
        "components: [cudart]",
        "components: [cudrt]",
        'component "cudrt" is not declared. Use "cudart"',
    ),
    (
        "parent: cpu-1-base,",
        "parent: cpu-1-bas,",
        'has the parent "cpu-1-bas-debian12", which is not in the matrix. Use "cpu-1-base-debian12"',
    ),
    ("licence: closed", "licence: clsed", 'licence "clsed" is not declared. Use "closed"'),
    (
        "os: [debian12, debian13]\n        prefer",
        "os: [debian12, debian14]\n        prefer",
        'OS "debian14" is not declared',
    ),
    ("wheel: nvidia-nccl-cu12, ", "", 'component "nccl" is neither a wheel nor a Debian package'),
    ("version: 2.21.5, ", "", 'component "nccl" is a wheel without a version'),
    ("layout: cuda, licence: open", "layout: cudas, licence: open", 'Use "cuda"'),
    (
        "flavours:\n          base: {parent: cpu-1-base, comp",
        "flavors:\n          base: {parent: cpu-1-base, comp",
        'Use "flavours"',
    ),
    ("base: {parent: cpu-1-base,", "base: {parent: runtime,", "is its own parent"),
    ("version: 12.4.1", "version: 12.4-1", "is no version"),
    ("[libcudart12]", "[LibCudart]", "is no package name"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), FAULTS, ids=[row[2][:40] for row in FAULTS])
def test_faults_name_their_line(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert right in CUDA
    with pytest.raises(ImageError) as caught:
        read(tmp_path, HEAD + CUDA.replace(right, wrong, 1))
    assert message in str(caught.value)
    assert caught.value.line is not None
    assert caught.value.line > len(HEAD.splitlines())


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "matrix: 1",
            "matrix: 2",
            ":1: this file has format 2, and this goldnode reads 1. Install the goldnode that it was written for.",
        ),
        (
            "purity: cpu",
            "purity: cdua",
            ':11: there is no policy "cdua" in purity.yml. Use "cuda".',
        ),
    ],
)
def test_faults_of_the_head(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    with pytest.raises(ImageError) as caught:
        read(tmp_path, HEAD.replace(right, wrong, 1))
    assert message in str(caught.value)


def test_a_component_of_one_os_only(tmp_path: Path) -> None:
    text = HEAD + CUDA.replace("debs: [libcudart12],", "debs: {debian13: [libcudart12]},").replace(
        "wheel: nvidia-cuda-runtime-cu12, ", ""
    )
    with pytest.raises(ImageError, match='component "cudart" has no package on debian12'):
        read(tmp_path, text)


def test_an_image_declared_twice(tmp_path: Path) -> None:
    again = textwrap.indent(textwrap.dedent(CUDA.split("releases:\n")[1]), " " * 6)
    with pytest.raises(ImageError, match="is declared twice, first on line"):
        read(tmp_path, HEAD + CUDA + again)


def test_unknown_names_get_the_nearest(own: ImageMatrix) -> None:
    with pytest.raises(ImageError, match=r"cuda-12\.4\.1-runtime-debian12"):
        own.select(["cuda-12.4.1-runtme-debian12"])
    with pytest.raises(ImageError, match='Use "oneapi"'):
        own.select(["onapi"])


def test_the_schema_is_that_of_the_models() -> None:
    assert (builtin_matrix().parents[2] / "schemas/images.json").read_text(
        encoding="utf-8"
    ) == schema_text("images")


def test_list_shows_every_image(own: ImageMatrix) -> None:
    done = CliRunner().invoke(main, ["images", "list"])
    assert done.exit_code == 0, done.output
    for name in own.images:
        assert name in done.output
    rows = json.loads(
        CliRunner()
        .invoke(main, ["images", "list", "cuda-11.8.0-base-debian12", "--format", "json"])
        .stdout
    )["images"]
    assert [row["name"] for row in rows] == ["cpu-1-base-debian12", "cuda-11.8.0-base-debian12"]
    assert rows[1]["redistribution"] == "private"


def test_the_group_lists_all_commands_without_their_files() -> None:
    text = CliRunner().invoke(main, ["images", "--help"]).output
    for name in (
        "list",
        "lock",
        "build",
        "inspect",
        "smoke",
        "publish",
        "promote",
        "rollback",
        "diff",
        "gc",
    ):
        assert f"\n  {name} " in text


def test_a_new_cudnn_is_a_new_build_of_what_holds_it_alone(
    own: ImageMatrix, locks: dict[str, ImageLock]
) -> None:
    rows = [row for row in own.images.values() if row.name in locks]
    tools = dict.fromkeys(("zlib", "layer", "mmdebstrap", "apt", "dpkg", "engine"), "1")

    def builds(changed: str | None) -> dict[str, str]:
        digests: dict[str, str] = {}
        pairs = []
        for row in rows:
            lock = locks[row.name]
            if row.name == changed:
                other = [
                    wheel.model_copy(update={"sha256": "0" * 64})
                    if wheel.name.startswith("nvidia-cudnn")
                    else wheel
                    for wheel in lock.wheels
                ]
                lock = lock.model_copy(update={"wheels": other})
            if lock.parent is not None:
                lock = lock.model_copy(
                    update={
                        "parent": lock.parent.model_copy(
                            update={"lock": digests[lock.parent.image]}
                        )
                    }
                )
            digests[row.name] = lock.digest
            pairs.append((row, lock))
        return {item.image.name: item.build_id for item in recipes(pairs, tools, b"runner")}

    before = builds(None)
    holders = [
        name
        for name, lock in locks.items()
        if any(wheel.name.startswith("nvidia-cudnn") for wheel in lock.wheels)
    ]
    assert len(holders) >= 6
    for name in holders:
        after = builds(name)
        above = {row.name for row in rows if name in [below.name for below in own.chain(row.name)]}
        assert {other for other in after if after[other] != before[other]} == above, name


SITE = """\
matrix: 1
extends: goldnode
licences:
  ours: {title: LicenseRef-Ours, redistribution: private, note: ours}
backends:
  cpu:
    releases:
      - version: "7"
        os: [debian12]
        components:
          tool: {version: 1.2.3, wheel: packaging, licence: ours}
        flavours:
          team1: {parent: cpu-1-runtime, components: [tool]}
"""


def test_site_matrix_adds_images_and_keeps_our_locks(tmp_path: Path, own: ImageMatrix) -> None:
    (tmp_path / "site.yml").write_text(SITE)
    found = load_matrix(tmp_path / "site.yml")
    row = found.row("cpu-7-team1-debian12")
    assert row.locks == tmp_path / "locks"
    assert (row.purity, row.title, row.redistribution) == (
        "cpu",
        "Debian without a GPU runtime, team1",
        "private",
    )
    assert row.parts["openblas"] == own.row("cpu-1-runtime-debian12").parts["openblas"]
    assert {name: found.row(name) for name in own.images} == own.images
    assert find_lock(found.row("cpu-1-base-debian12")) == find_lock(own.row("cpu-1-base-debian12"))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('version: "7"', 'version: "1"', "declared twice"),
        ("  ours: {", "  debian: {", "declared by goldnode's own matrix"),
        ("parent: cpu-1-runtime", "parent: cpu-1-runtme", "not in the matrix"),
        ("extends: goldnode", "extends: other", "extends"),
        ("extends: goldnode\n", "", 'backend "cpu" has no title'),
    ],
)
def test_faults_of_a_site_matrix(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    text = SITE.replace(right, wrong).replace("team1:", "base:" if "twice" in message else "team1:")
    (tmp_path / "site.yml").write_text(text)
    with pytest.raises(ImageError, match=message):
        load_matrix(tmp_path / "site.yml")
