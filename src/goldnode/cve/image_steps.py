"""The steps of `goldnode cve prepare` for the container images that a class names: locks, builds and smoke tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from goldnode.catalog.models import NodeClass
from goldnode.channels.lines import CHANNELS, line_of
from goldnode.channels.requirements import Decisions
from goldnode.compat.workloads import ImageReference, parse_reference
from goldnode.core.errors import GoldnodeError
from goldnode.cve import subjects
from goldnode.cve.claims import OsRelease
from goldnode.cve.prepare_steps import PrepareStep
from goldnode.images.imagelock import find_lock, lock_file
from goldnode.images.matrix import ImageMatrix, MatrixRow
from goldnode.images.requirements import judge
from goldnode.images.store import ImageStore
from goldnode.oci.model import BUILD_ID_LENGTH, Built, ImageSpec

Judge = Callable[[subjects.CarrierContents], str]
Store = Callable[[], ImageStore | None]


def images_of(item: NodeClass, matrix: ImageMatrix, store: Store) -> list[str]:
    """Return the images of the matrix that a class names: by digest, immutable tag, short tag or channel."""
    opened = store()
    built = {row.digest: row.image for row in opened.built().values()} if opened else {}
    names: dict[str, None] = {}
    for declared in item.images:
        reference = parse_reference(declared.ref)
        if reference.digest is not None:
            names |= dict.fromkeys(name for name in [built.get(reference.digest)] if name)
        else:
            names |= dict.fromkeys(
                name for name, row in matrix.images.items() if _tagged(reference, row.image)
            )
    return sorted(name for name in names if lock_file(matrix.row(name)) is not None)


def _tagged(reference: ImageReference, spec: ImageSpec) -> bool:
    """Return whether a tag is one of an image: with or without a build, or a channel of its line."""
    tag = reference.tag
    if tag is None or not f"/{reference.name}".endswith(f"/{spec.backend}"):
        return False
    try:
        line = line_of(spec.backend, f"{spec.tag}-{'0' * BUILD_ID_LENGTH}")
    except GoldnodeError:  # of another architecture: its line is that of an index
        return tag == spec.tag or tag.startswith(f"{spec.tag}-")
    named = {spec.tag, *(line.pointer(channel) for channel in CHANNELS)}
    return tag in named or tag.startswith(f"{spec.tag}-")


def image_steps(
    names: list[str], matrix: ImageMatrix, store: Store, is_open: Judge
) -> Iterator[PrepareStep]:
    """Yield the steps of images, parents before their children; a lock that several have is one step."""
    locked: set[str] = set()
    for name in names:
        for row in matrix.chain(name):
            if row.name not in locked and lock_file(row) is not None:
                locked.add(row.name)
                yield _lock(row, is_open)
        yield from _made(matrix.row(name), store)


def _lock(row: MatrixRow, is_open: Judge) -> PrepareStep:
    system = OsRelease(row.system.id, row.system.release, row.system.codename)

    def missing() -> str:
        return is_open(subjects.of_image("image", row.name, system, [find_lock(row)]))

    # Without --upgrade, a lock changes only where a version has left its archive.
    return PrepareStep(f"image lock {row.name}", ("images", "lock", row.name, "--upgrade"), missing)


def _made(row: MatrixRow, store: Store) -> Iterator[PrepareStep]:
    def built() -> Built | None:
        opened, digest = store(), find_lock(row).digest
        rows = opened.built().values() if opened is not None else ()
        return next((one for one in rows if (one.image, one.lock) == (row.name, digest)), None)

    def build_missing() -> str:
        return "" if built() is not None else "no image was built from this lock"

    def smoke_missing() -> str:
        opened, image = store(), built()
        if opened is None or image is None:
            return "there is no image"
        rows = judge("candidate", opened.layout, image.digest, Decisions())
        result = next(one for one in rows if one.name == "smoke-cpu")
        return "" if result.met else result.why

    def smoke() -> tuple[str, ...]:
        # The name means the latest build, which need not be one of this lock.
        image = built()
        named = image.digest if image is not None else row.name
        return ("images", "smoke", named, "--tier", "cpu")

    yield PrepareStep(f"image build {row.name}", ("images", "build", row.name), build_missing)
    words = ("images", "smoke", row.name, "--tier", "cpu")
    yield PrepareStep(f"image smoke {row.name}", words, smoke_missing, smoke)
