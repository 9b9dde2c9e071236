"""Known incompatibilities: site.yml refuses them, names what would fit, and leaves the node unchanged."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.support import Run, Site, inventory, site_yml, succeeded

from goldnode.catalog.load import builtin_catalog
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]

# What a node writes by itself while nobody does anything to it: journals, and systemd's and dpkg's timers.
OWN = re.compile(r"/var/log(/.*)?|/var/lib/systemd/.*|/var/lib/apt/(periodic|lists)(/.*)?")


@pytest.fixture(scope="module")
def bare(make: Make) -> tuple[LabNode, Site]:
    return make("untouched", "e2e_r535", "debian12_r535")


def hashes(node: LabNode) -> dict[str, str]:
    """Path -> SHA-256 of every file of the node, and kind, mode and owner of everything else."""
    listed = node.shell("find / -xdev -not -type f -printf '%p\\t%y %m %u:%g %l\\n'").output
    summed = node.shell("find / -xdev -type f -print0 | xargs -0 sha256sum").output
    found = dict(line.split("\t", 1) for line in listed.splitlines())
    found.update(
        (name, digest) for digest, _, name in (line.partition("  ") for line in summed.splitlines())
    )
    return {name: text for name, text in found.items() if not OWN.fullmatch(name)}


@pytest.fixture(scope="module")
def seen(bare: tuple[LabNode, Site]) -> list[dict[str, str]]:
    """The node as the tests have found it; each hashes it once, at its end."""
    found = hashes(bare[0])
    assert len(found) > 1000
    return [found]


@pytest.fixture
def untouched(bare: tuple[LabNode, Site], seen: list[dict[str, str]]) -> Iterator[None]:
    yield
    found = hashes(bare[0])
    before, seen[:] = seen[0], [found]
    assert found == before


def run(
    bare: tuple[LabNode, Site],
    tmp_path: Path,
    gpu: str,
    more: str = "",
    stack: str = "debian12_r535",
    text: str | None = None,
) -> Run:
    """site.yml on the node as a class of this GPU, stack and further keys; `text`: the stack, where it is not the catalog's."""
    node, site = bare
    own = tmp_path / "catalog"
    for part in ("classes", "stacks"):
        (own / part).mkdir(parents=True)
    head = f"class: tried\nbackend: cuda\nsimulated: true\nstack: {stack}\ngpu: {{model: {gpu}, count: 8}}\n"
    (own / "classes/tried.yml").write_text(head + more)
    if text is not None:
        (own / f"stacks/{stack}.yml").write_text(text)
    site = dataclasses.replace(site, catalog=Path(f"{site.catalog}{os.pathsep}{own}"))
    return site_yml(inventory(tmp_path / "hosts", {"tried": [node]}), "--check", site=site)


def stack_like(name: str, *changes: tuple[str, str]) -> str:
    """A stack of the catalog under the name `tried`, with words replaced."""
    text = (builtin_catalog() / f"stacks/{name}.yml").read_text(encoding="utf-8")
    for old, new in ((f"stack: {name}\n", "stack: tried\n"), *changes):
        assert old in text
        text = text.replace(old, new)
    return text


def reported(done: Run) -> str:
    return re.sub(r"\s+", " ", done.output)


WITHOUT = "images: [{ref: example/train:13, cuda: '13.0', forward_compat: false}]\n"
WITH = "images: [{ref: example/train:13, cuda: '13.0', forward_compat: true}]\n"
OLDER = "images: [{ref: example/train:12, cuda: '12.4', forward_compat: false}]\n"

BLOCKED = {
    "cuda-13-without-the-package": (
        ("A100-SXM4-40GB", WITHOUT),
        ("[cuda-driver]", "580.65.06", "CUDA 12.9"),
    ),
    "cuda-13-on-a-geforce": (
        ("GeForce-RTX-4090", WITH),
        ("[cuda-driver]", "580.65.06", "data-centre"),
    ),
    "b200-with-proprietary-modules": (
        (
            "B200-SXM-180GB",
            "",
            "tried",
            stack_like("debian12_r580", ("flavour: open", "flavour: proprietary")),
        ),
        ("[module-flavour]", "B200-SXM-180GB", "open kernel modules"),
    ),
    "a100-with-a-kernel-on-which-its-driver-does-not-build": (
        (
            "A100-SXM4-40GB",
            "",
            "tried",
            stack_like(
                "debian13_r550",
                ('series: "6.12", flavour: amd64', "release: 6.12.117+deb13-amd64"),
                ("flavour: proprietary", "flavour: open"),
                ("version: null", "version: 550.163.01"),
            ),
        ),
        ("[kernel-driver]", "550.163.01", "6.12.117"),
    ),
    "a-toolkit-below-the-safe-floor": (
        (
            "A100-SXM4-40GB",
            "",
            "tried",
            stack_like(
                "debian12_r580",
                (
                    "    version: null            # the newest at or above the safe floor",
                    "    version: 1.17.7",
                ),
            ),
        ),
        ("[toolkit-floor]", "1.17.7", "1.19.1"),
    ),
}


@pytest.mark.parametrize(("tried", "texts"), BLOCKED.values(), ids=BLOCKED)
@pytest.mark.usefixtures("untouched")
def test_blocked_class_is_refused_and_nothing_changes(
    bare: tuple[LabNode, Site], tmp_path: Path, tried: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    done = run(bare, tmp_path, *tried)
    assert done.rc != 0, done.output
    assert "class tried is blocked, and nothing was touched" in reported(done), done.output
    for text in texts:
        assert text in reported(done), done.output
    assert set(done.changed.values()) == {0}


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        pytest.param(
            WITH,
            ("[cuda-driver]", "only by forward compatibility"),
            id="cuda-13-with-the-package-on-a-data-centre-gpu",
        ),
        pytest.param(
            OLDER, ("[cuda-driver]", "minor-version compatibility", "PTX"), id="cuda-12.4-on-535"
        ),
    ],
)
def test_compat_warnings_are_reported_and_the_run_succeeds(
    bare: tuple[LabNode, Site], tmp_path: Path, more: str, texts: tuple[str, ...]
) -> None:
    done = succeeded(run(bare, tmp_path, "A100-SXM4-40GB", more))
    for text in texts:
        assert text in reported(done), done.output
