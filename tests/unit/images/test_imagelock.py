"""Locks of images: writing, reading, what is refused; following wheels; indexes; and the pool."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError, SiteError
from goldnode.core.site import Site, SiteArchive, SiteIndex, load_site
from goldnode.images import hostpackage, resolve
from goldnode.images.imagelock import (
    ImageLock,
    dump_lock,
    find_lock,
    intent_digest,
    load_lock,
    lock_directories,
    write_lock,
)
from goldnode.images.locking import check_images, line, lock_images
from goldnode.images.matrix import MatrixRow, load_matrix
from goldnode.images.resolve import fetch_all, index_url
from goldnode.images.wheelindex import Index, WheelFile, files_of_html, files_of_json, tags
from goldnode.lock import locked_files
from goldnode.lock.locked_files import LockedDeb, LockedWheel, pool_path

WHEEL = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, MatrixRow]:
    path = tmp_path / "images" / "matrix.yml"
    path.parent.mkdir()
    path.write_text(
        """\
matrix: 1
systems:
  debian12: {id: debian, release: "12", codename: bookworm, architectures: [amd64], python: "3.11", glibc: "2.36", archives: [debian]}
backends:
  cpu:
    title: Test
    purity: cpu
    releases:
      - version: "1"
        os: [debian12]
        components:
          demo: {version: "1.0", wheel: demo}
          own: {version: "1.0", wheel: demo, index: mine}
        flavours:
          base: {parent: null, components: [demo]}
          framework: {parent: base, debs: [hello]}
          own: {parent: null, components: [own], exercised: false}
""",
        encoding="utf-8",
    )
    return load_matrix(path).images


def lock_of(row: MatrixRow, **more: object) -> ImageLock:
    content: dict[str, object] = {
        "lock": 1,
        "image": row.name,
        "intent": intent_digest(row),
        "resolved": "2026-11-22",
        "parent": None,
        "archives": [],
        "debs": [],
        "wheels": [],
    }
    return ImageLock.model_validate(content | more)


def wheel_in(
    directory: Path, name: str = "demo", version: str = "1.0", requires: tuple[str, ...] = ()
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {text}" for text in requires),
            "",
            "",
        ]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines))
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all pip and the index know."""
    place = tmp_path / "wheels"
    place.mkdir()
    settings = {"no-index": "1", "find-links": str(place)}
    monkeypatch.setattr(resolve, "Index", lambda url=None: Index(url, settings=settings))
    return place


def test_written_image_lock_loads_unchanged(rows: dict[str, MatrixRow], tmp_path: Path) -> None:
    row = rows["cpu-1-base-debian12"]
    deb = LockedDeb(
        name="hello",
        version="1:2.10-3",
        architecture="amd64",
        sha256="a" * 64,
        size=5,
        path="pool/h/hello_2.10-3_amd64.deb",
        archive="debian",
        why="x",
    )
    wheel = LockedWheel(
        name="demo", version="1.0", file=WHEEL, sha256="b" * 64, size=7, why="requested"
    )
    lock = lock_of(row, debs=[deb], wheels=[wheel], tools={"zlib": "1.2.13"})
    path = write_lock(lock, tmp_path / "locks")
    assert load_lock(path) == lock
    assert load_lock(path).digest == lock.digest
    assert lock.size == 12
    assert lock.epoch == 1795305600
    assert path.read_text(encoding="utf-8").count("\n") == len(dump_lock(lock).splitlines())
    assert deb.file == "hello_2.10-3_amd64.deb"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("size: 7", "size: 8", "was edited after goldnode wrote it"),
        ("lock: 1", "lock: 2", "has schema 2"),
        ("image: cpu-1-base-debian12", "imag: cpu-1-base-debian12", 'Use "image"'),
    ],
)
def test_a_lock_that_was_changed_is_refused(
    rows: dict[str, MatrixRow], right: str, wrong: str, message: str
) -> None:
    row = rows["cpu-1-base-debian12"]
    wheel = LockedWheel(
        name="demo", version="1.0", file=WHEEL, sha256="b" * 64, size=7, why="requested"
    )
    path = write_lock(lock_of(row, wheels=[wheel]), row.locks)
    path.write_text(path.read_text(encoding="utf-8").replace(right, wrong, 1), encoding="utf-8")
    with pytest.raises(ImageError, match=message) as caught:
        find_lock(row)
    assert caught.value.file == str(path)
    assert caught.value.line is not None


def test_a_lock_for_something_else_is_refused(rows: dict[str, MatrixRow], tmp_path: Path) -> None:
    row, other = rows["cpu-1-base-debian12"], rows["cpu-1-framework-debian12"]
    with pytest.raises(
        ImageError, match=r"has no lock\. Run `goldnode images lock cpu-1-base-debian12`"
    ):
        find_lock(row)
    write_lock(lock_of(row, intent="sha256:" + "0" * 64), row.locks)
    with pytest.raises(ImageError, match="stale"):
        find_lock(row)
    write_lock(lock_of(other), tmp_path).replace(row.locks / f"{row.name}.lock.yml")
    with pytest.raises(ImageError, match='the lock of "cpu-1-framework-debian12"'):
        find_lock(row)


def test_locks_of_a_site_come_first(
    rows: dict[str, MatrixRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows["cpu-1-base-debian12"]
    write_lock(lock_of(row), row.locks)
    write_lock(lock_of(row, resolved="2026-11-23"), tmp_path / "site")
    monkeypatch.setenv("GOLDNODE_IMAGE_LOCKS", str(tmp_path / "site"))
    assert find_lock(row).resolved == "2026-11-23"
    monkeypatch.setenv("GOLDNODE_IMAGE_LOCKS", str(tmp_path / "siet"))
    with pytest.raises(
        SiteError,
        match=r"^GOLDNODE_IMAGE_LOCKS names .*/siet, which is not a directory\. Make it, or correct",
    ):
        find_lock(row)
    assert lock_directories(row, to_write=True) == [tmp_path / "siet", row.locks]


def test_tags_follow_python_and_glibc_of_the_image(rows: dict[str, MatrixRow]) -> None:
    system = rows["cpu-1-base-debian12"].system
    known = [str(tag) for tag in tags(system)]
    assert known[0] == "cp311-cp311-manylinux_2_36_x86_64"
    for tag in (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp310-abi3-manylinux2014_x86_64",
        "py3-none-manylinux1_x86_64",
        "py3-none-any",
    ):
        assert tag in known
    assert "cp313-cp313-manylinux_2_28_x86_64" not in known
    assert "cp311-cp311-manylinux_2_39_x86_64" not in known


def test_an_index_page_in_both_forms() -> None:
    page = (
        '<a href="../../f/demo-1.0-py3-none-any.whl#sha256=%s" data-core-metadata="sha256=00">x</a><a href="demo-1.0.tar.gz">y</a>'
        % ("a" * 64)
    )
    assert list(files_of_html(page, "http://index/simple/demo/")) == [
        WheelFile(WHEEL, f"http://index/f/{WHEEL}", "a" * 64, None, True)
    ]
    document = {
        "files": [
            {
                "filename": WHEEL,
                "url": f"../../f/{WHEEL}",
                "hashes": {"sha256": "a" * 64},
                "size": 9,
                "core-metadata": False,
            }
        ]
    }
    assert list(files_of_json(json.loads(json.dumps(document)), "http://index/simple/demo/")) == [
        WheelFile(WHEEL, f"http://index/f/{WHEEL}", "a" * 64, 9, False)
    ]


def test_the_wheel_that_fits_best_is_taken(tmp_path: Path, rows: dict[str, MatrixRow]) -> None:
    for file in (
        "demo-1.0-py3-none-any.whl",
        "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "demo-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "demo-1.1-py3-none-any.whl",
        "demo-1.0-py3-none-win_amd64.whl",
    ):
        (tmp_path / file).write_bytes(file.encode())
    index = Index(settings={"no-index": "true", "find-links": str(tmp_path)})
    system = rows["cpu-1-base-debian12"].system
    found = index.wheel("Demo", "1.0", system)
    assert found is not None
    assert found.file == "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert index.size(found) == len(found.file)
    assert index.sha256(found) == hashlib.sha256(found.file.encode()).hexdigest()
    assert index.wheel("demo", "2.0", system) is None
    assert index.files("other") == []


def found_of(*wheels: tuple[str, str, tuple[str, ...]]) -> dict[str, resolve.PipWheel]:
    return {
        name: resolve.PipWheel(
            name,
            version=version,
            file=f"{name}.whl",
            sha256="a" * 64,
            url="file:///x",
            requires=requires,
        )
        for name, version, requires in wheels
    }


def test_markers_are_judged_for_the_python_of_the_image(rows: dict[str, MatrixRow]) -> None:
    row = rows["cpu-1-base-debian12"]
    found = found_of(
        (
            "demo",
            "1.0",
            (
                'new>=2; python_version < "3.12"',
                'old; python_version >= "3.12"',
                'extra; extra == "more"',
                "sub[fast]",
            ),
        ),
        ("new", "2.1", ()),
        ("sub", "1", ('speed; extra == "fast"',)),
        ("speed", "3", ()),
        ("old", "1", ()),
    )
    reasons, missing = resolve.reached(row, found)
    assert reasons == {
        "demo": "requested",
        "new": "needed by demo",
        "sub": "needed by demo",
        "speed": "needed by sub",
    }  # and not old
    assert missing == []
    del found["new"], found["speed"]
    assert resolve.reached(row, found)[1] == ["new>=2", "speed"]


def test_cuda_wheels_need_what_they_require(rows: dict[str, MatrixRow]) -> None:
    matrix = load_matrix()
    row, base = matrix.row("cuda-12.4.1-runtime-debian13"), matrix.row("cuda-12.4.1-base-debian13")
    chain = [(base, find_lock(base))]
    cudnn = resolve.PipWheel(
        "nvidia-cudnn-cu12",
        version="9.1.0.70",
        file="cudnn.whl",
        sha256="a" * 64,
        url="x",
        requires=("nvidia-cublas-cu12",),
    )
    resolve.check_release(row, chain, [cudnn])  # Debian's libcublas12 is there for it
    with pytest.raises(ImageError, match="requires nvidia-nothing, which is not there"):
        resolve.check_release(
            row,
            chain,
            [
                resolve.PipWheel(
                    "x",
                    version="1",
                    file="x.whl",
                    sha256="a" * 64,
                    url="x",
                    requires=("nvidia-nothing",),
                )
            ],
        )
    with pytest.raises(ImageError, match=r"requires nvidia-cublas-cu12>=13, which is 12\.4\.5\.8"):
        resolve.check_release(
            row,
            chain,
            [
                resolve.PipWheel(
                    "x",
                    version="1",
                    file="x.whl",
                    sha256="a" * 64,
                    url="x",
                    requires=("nvidia-cublas-cu12>=13",),
                )
            ],
        )


def test_debs_have_the_version_that_is_declared() -> None:
    row = load_matrix().row("cuda-11.8.0-runtime-debian12")
    lock = find_lock(row)
    resolve.check_parts(row, lock)
    other = [
        deb.model_copy(update={"version": "11.7.1-1"}) if deb.name == "libcublas11" else deb
        for deb in lock.debs
    ]
    with pytest.raises(
        ImageError,
        match=r'component "cublas" is declared as 11\.11\.3\.6, and libcublas11 is 11\.7\.1-1',
    ):
        resolve.check_parts(row, lock.model_copy(update={"debs": other}))


def test_an_index_of_the_site(rows: dict[str, MatrixRow], tmp_path: Path) -> None:
    row = rows["cpu-1-own-debian12"]
    with pytest.raises(ImageError, match=r'needs index "mine".*goldnode-site\.yml'):
        index_url(row, Site())
    assert (
        index_url(row, Site(indexes={"mine": SiteIndex(url="file:///srv/simple")}))
        == "file:///srv/simple"
    )
    (tmp_path / "site.yml").write_text("indexes: {mine: {url: srv/simple}}\n", encoding="utf-8")
    with pytest.raises(SiteError, match='the url of index "mine"'):
        load_site(tmp_path / "site.yml")


@pytest.fixture
def fetchable(
    rows: dict[str, MatrixRow], tmp_path: Path, offline_pip: Path
) -> tuple[list[tuple[MatrixRow, ImageLock]], Site]:
    """A row with a wheel of a directory and a package of a local archive."""
    row = rows["cpu-1-base-debian12"]
    wheel = wheel_in(offline_pip)
    package = tmp_path / "archive" / "pool" / "hello_1_amd64.deb"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"a package" * 100_000)
    locked_wheel = LockedWheel(
        name="demo",
        version="1.0",
        file=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        why="requested",
    )
    locked_deb = LockedDeb(
        name="hello",
        version="1",
        architecture="amd64",
        sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
        size=package.stat().st_size,
        path="pool/hello_1_amd64.deb",
        archive="debian",
        why="requested",
    )
    site = Site(archives={"debian": SiteArchive(url=(tmp_path / "archive").as_uri())})
    return [(row, lock_of(row, debs=[locked_deb], wheels=[locked_wheel]))], site


def test_the_pool_is_filled_once_and_mended(
    fetchable: tuple[list[tuple[MatrixRow, ImageLock]], Site], tmp_path: Path
) -> None:
    pairs, site = fetchable
    lock, pool = pairs[0][1], tmp_path / "pool"
    assert fetch_all(pairs, pool, site=site) == lock.size
    items: list[LockedDeb | LockedWheel] = [*lock.debs, *lock.wheels]
    for item in items:
        assert hashlib.sha256(pool_path(pool, item).read_bytes()).hexdigest() == item.sha256
    assert fetch_all(pairs, pool, site=site) == 0
    damaged = pool_path(pool, lock.debs[0])
    damaged.write_bytes(b"b" + damaged.read_bytes()[1:])  # the same size
    assert fetch_all(pairs, pool, site=site, verify=False) == 0
    assert fetch_all(pairs, pool, site=site) == lock.debs[0].size
    assert hashlib.sha256(damaged.read_bytes()).hexdigest() == lock.debs[0].sha256


def test_a_package_that_left_its_archive_comes_from_the_snapshot_of_the_locks_day(
    fetchable: tuple[list[tuple[MatrixRow, ImageLock]], Site], tmp_path: Path
) -> None:
    pairs, site = fetchable
    lock, pool = pairs[0][1], tmp_path / "pool"
    (tmp_path / "archive").rename(tmp_path / lock.resolved.replace("-", ""))
    with pytest.raises(ImageError, match="vanished: hello 1 of archive debian"):
        fetch_all(pairs, pool, site=site)
    address = f"{tmp_path.as_uri()}/{{date}}"
    archive = site.archives["debian"].model_copy(update={"snapshot": address})
    assert fetch_all(pairs, pool, site=Site(archives={"debian": archive})) == lock.debs[0].size
    assert (
        hashlib.sha256(pool_path(pool, lock.debs[0]).read_bytes()).hexdigest()
        == lock.debs[0].sha256
    )


def test_package_made_by_goldnode_is_written_to_the_pool_not_fetched(
    rows: dict[str, MatrixRow], tmp_path: Path
) -> None:
    made = hostpackage.locked({"libcuda.so.1": "520"})
    pairs = [(rows["cpu-1-base-debian12"], lock_of(rows["cpu-1-base-debian12"], debs=[made]))]
    assert fetch_all(pairs, tmp_path / "pool", site=Site(archives={})) == 0
    path = pool_path(tmp_path / "pool", made)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made.sha256
    path.write_bytes(b"x" * made.size)
    resolve.make_all([pairs[0][1]], tmp_path / "pool", verify=False)
    assert path.read_bytes() == b"x" * made.size
    resolve.make_all([pairs[0][1]], tmp_path / "pool")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made.sha256
    (tmp_path / "no").write_text("a file in the way")
    with pytest.raises(ImageError, match="the pool cannot be written"):
        fetch_all(pairs, tmp_path / "no", site=Site(archives={}))


def test_fetch_completes_a_partial_download(
    fetchable: tuple[list[tuple[MatrixRow, ImageLock]], Site], tmp_path: Path
) -> None:
    pairs, site = fetchable
    deb, pool = pairs[0][1].debs[0], tmp_path / "pool"
    (pool / "partial").mkdir(parents=True)
    (pool / "partial" / deb.sha256).write_bytes((b"a package" * 100_000)[:300_001])
    fetch_all(pairs, pool, site=site)
    assert hashlib.sha256(pool_path(pool, deb).read_bytes()).hexdigest() == deb.sha256
    assert not list((pool / "partial").iterdir())


def test_other_bytes_are_refused(
    fetchable: tuple[list[tuple[MatrixRow, ImageLock]], Site], tmp_path: Path
) -> None:
    pairs, site = fetchable
    row, lock = pairs[0]
    (tmp_path / "archive/pool/hello_1_amd64.deb").write_bytes(b"other" * 180_000)
    with pytest.raises(ImageError, match="altered: hello 1 of archive debian"):
        fetch_all(pairs, tmp_path / "pool", site=site)
    assert not pool_path(tmp_path / "pool", lock.debs[0]).exists()
    assert pool_path(tmp_path / "pool", lock.wheels[0]).exists()  # the others came all the same
    gone = lock.model_copy(
        update={
            "debs": [],
            "wheels": [
                lock.wheels[0].model_copy(
                    update={"file": "demo-0.9-py3-none-any.whl", "sha256": "c" * 64}
                )
            ],
        }
    )
    with pytest.raises(
        ImageError, match=r"demo-0\.9-py3-none-any\.whl is not in the index any more"
    ):
        fetch_all([(row, gone)], tmp_path / "pool", site=site)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine whose tools are told, with `Fake` for its archives."""
    tools = {"zlib": "1"}
    monkeypatch.setattr("goldnode.images.locking.Resolver", Fake)
    monkeypatch.setattr("goldnode.images.locking._tools", lambda: dict(tools))
    Fake.answers, Fake.moved, Fake.asked = {}, {}, []
    return tools


def test_fetch_fails_when_the_index_states_another_hash(
    rows: dict[str, MatrixRow], tmp_path: Path, offline_pip: Path
) -> None:
    row = rows["cpu-1-base-debian12"]
    wheel = wheel_in(offline_pip)
    (offline_pip / "index.html").write_text(
        f'<a href="{wheel.name}#sha256={"d" * 64}">{wheel.name}</a>', encoding="utf-8"
    )
    locked = LockedWheel(
        name="demo",
        version="1.0",
        file=wheel.name,
        sha256="a" * 64,
        size=wheel.stat().st_size,
        why="requested",
    )
    with pytest.raises(
        ImageError,
        match=r"has other bytes in the index than were locked. Run `goldnode images lock cpu-1-base-debian12`",
    ):
        fetch_all([(row, lock_of(row, wheels=[locked]))], tmp_path / "pool", site=Site())


class Fake:
    """A resolver that answers from a table instead of an archive."""

    answers: dict[str, list[LockedWheel]]
    moved: dict[str, list[locked_files.MovedFile]]
    asked: list[str]

    def __init__(self, *, tools: dict[str, str] | None = None, **_: object) -> None:
        self.tools = tools or {}

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def check_all(
        self, locks: list[tuple[MatrixRow, ImageLock]]
    ) -> list[list[locked_files.MovedFile]]:
        return [self.moved.get(row.name, []) for row, _ in locks]

    def lock(
        self,
        row: MatrixRow,
        chain: list[tuple[MatrixRow, ImageLock]],
        *,
        keep: ImageLock | None = None,
    ) -> resolve.ImageLockResult:
        self.asked.append(row.name)
        below = {"image": chain[-1][0].name, "lock": chain[-1][1].digest} if chain else None
        lock = lock_of(
            row,
            wheels=self.answers.get(row.name, []),
            parent=below,
            resolved="2026-12-01",
            tools=self.tools,
        )
        return resolve.ImageLockResult(row, lock, keep, True)


def test_a_good_lock_is_kept_and_a_child_follows_its_parent(
    rows: dict[str, MatrixRow], machine: dict[str, str]
) -> None:
    row = rows["cpu-1-base-debian12"]
    one = LockedWheel(
        name="demo", version="1.0", file=WHEEL, sha256="a" * 64, size=1, why="requested"
    )
    Fake.answers = {row.name: [one]}
    assert (
        len(list(lock_images([], matrix_file=row.file))) == 2
    )  # what is not exercised is not asked for
    before = {path.name: path.read_bytes() for path in row.locks.iterdir()}
    Fake.asked = []
    assert not any(done.changed for done in lock_images([], matrix_file=row.file))
    assert Fake.asked == []
    assert list(lock_images([], matrix_file=row.file, upgrade=True)) != []
    assert {
        path.name: path.read_bytes() for path in row.locks.iterdir()
    } == before  # asked, and the same but for the day

    Fake.answers[row.name] = [one.model_copy(update={"sha256": "b" * 64})]
    Fake.moved = {row.name: [locked_files.MovedFile("changed", "demo", "demo has other bytes")]}
    assert [problems for _, problems in check_images([], matrix_file=row.file)] == [
        ["changed: demo has other bytes"],
        [],
    ]
    Fake.asked = []
    lines = [line(done) for done in lock_images([], matrix_file=row.file)]
    assert Fake.asked == ["cpu-1-base-debian12", "cpu-1-framework-debian12"]
    assert "on another lock of its parent" in lines[1]


def test_other_tools_move_only_with_upgrade(
    rows: dict[str, MatrixRow], machine: dict[str, str]
) -> None:
    row = rows["cpu-1-base-debian12"]
    list(lock_images([], matrix_file=row.file))
    machine["zlib"] = "2"
    list(lock_images([], matrix_file=row.file))
    assert find_lock(row).tools == {"zlib": "1"}
    list(lock_images([], matrix_file=row.file, upgrade=True))
    assert find_lock(row).tools == {"zlib": "2"}


def test_check_reports_a_lock_on_an_earlier_parent(
    rows: dict[str, MatrixRow], machine: dict[str, str]
) -> None:
    row, child = rows["cpu-1-base-debian12"], rows["cpu-1-framework-debian12"]
    list(lock_images([], matrix_file=row.file))
    write_lock(lock_of(row, resolved="2026-12-24"), row.locks)
    assert dict(check_images([child.name], matrix_file=row.file))[child.name] == [
        "it was made on an earlier lock of cpu-1-base-debian12"
    ]


@pytest.mark.parametrize(
    ("printed", "raised"),
    [
        ("ERROR: No matching distribution found for demo==1.0", resolve.ResolutionError),
        ("ERROR: ResolutionImpossible: for help visit", resolve.ResolutionError),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': /simple/demo/\n"
            "ERROR: No matching distribution found for demo==1.0",
            ImageError,
        ),
        (
            "WARNING: Could not fetch URL https://index/simple/demo/: 503 Server Error - skipping\n"
            "ERROR: No matching distribution found for demo==1.0",
            ImageError,
        ),
    ],
)
def test_an_index_that_does_not_answer_is_not_a_conflict(
    rows: dict[str, MatrixRow],
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    raised: type[ImageError],
) -> None:
    """A conflict drops the pins of the old lock; a moment without network must not."""
    failed = subprocess.CompletedProcess([], 1, "", printed)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(ImageError) as refused:
        resolve.pip_wheels(rows["cpu-1-base-debian12"], Site(), ["demo"], {"demo": "1.0"})
    assert type(refused.value) is raised
