"""A kernel on which the driver's module does not build, with Debian's packages of today: check and lane stop the class, and name
what builds.

The kernel of the fix is 7.2, that of Debian 14, from the backports of Debian 13; the driver is Debian's 550.163.01. That the canary
stops a module that does not build is in `test_rollout.py`, with stand-ins.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import BIN, Site, environment
from tests.unit.cve.samples import CVE, tracker

from goldnode.catalog.load import builtin_catalog
from goldnode.core.site import Site as SiteFile
from goldnode.core.site import archive_url
from goldnode.facts.module_builds import builds
from goldnode.lock.model import Lock, load_lock

pytestmark = [pytest.mark.lab, pytest.mark.long]

OLD, STACK, CLASS = "debian13_r550", "stops", "moves"
ARCHIVES = {"real": "debian", "real-backports": "debian-backports"}
KERNEL = (
    "[linux-image-*, linux-binary-*, linux-modules-*, linux-headers-*, linux-kbuild-*, linux-base*]"
)
CHANGES = (
    (f"stack: {OLD}\n", f"stack: {STACK}\n"),
    (
        "archives: [debian, debian-security]\n",
        f"archives: [real, real-backports]\nfrom_archives:\n  real-backports: {KERNEL}\n",
    ),
    ('series: "6.12"', 'series: "7.2"'),
)


@dataclass
class Stopped:
    """A site with locks of both stacks, and its directory."""

    site: Site
    directory: Path
    new: Lock

    def run(self, *words: str, timeout: float = 10800) -> tuple[int, str]:
        done = subprocess.run(
            [str(BIN / "goldnode"), *words],
            cwd=self.directory,
            env=environment(self.site),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout


def version_of(lock: Lock, name: str) -> str:
    return next(one.version for one in lock.packages if one.name == name)


def class_of(name: str, stack: str) -> str:
    head = f"class: {name}\nsimulated: true\nbackend: cuda\nstack: {stack}\n"
    return f"{head}gpu: {{model: A100-SXM4-40GB, count: 8}}\n"


def catalog_of(directory: Path) -> Path:
    """Write a catalog with the stack, a class of it for the lane, and Debian's archives under names of their own."""
    known = yaml.safe_load((builtin_catalog() / "archives.yml").read_text())["archives"]
    rows = {name: known[like] for name, like in ARCHIVES.items()}
    text = (builtin_catalog() / f"stacks/{OLD}.yml").read_text()
    for before, after in CHANGES:
        assert before in text
        text = text.replace(before, after)
    for name, content in {
        "archives.yml": yaml.safe_dump({"archives": rows}, sort_keys=False),
        f"stacks/{STACK}.yml": text,
        f"classes/{STACK}.yml": class_of(STACK, STACK),
        f"classes/{CLASS}.yml": class_of(CLASS, OLD),
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


@pytest.fixture(scope="module")
def stopped(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    directory = tmp_path_factory.mktemp("stops")
    node = world.node("stops", CLASS, "debian13")
    site = world.site("stops", "trixie")
    assert site.site is not None
    assert site.locks is not None
    text = yaml.safe_load(site.site.read_text())
    text["archives"] |= {
        name: {"url": archive_url(SiteFile(), like)} for name, like in ARCHIVES.items()
    }
    site.site.write_text(yaml.safe_dump(text, sort_keys=False))
    own = catalog_of(directory / "catalog")
    site = dataclasses.replace(site, catalog=Path(f"{site.catalog}{os.pathsep}{own}"))
    world.lock(site, node, OLD, STACK)
    assert site.locks is not None
    yield Stopped(site, directory, load_lock(site.locks / f"{STACK}.lock.yml"))
    node.destroy()


def test_check_and_lane_name_the_module_that_does_not_build_and_what_does(stopped: Stopped) -> None:
    kernel = str(stopped.new.kernel_release)
    assert kernel.startswith("7.2.")
    row = next(row for row in builds() if row.kernel == kernel and row.outcome == "builds")
    driver = version_of(stopped.new, "nvidia-kernel-dkms")
    failure = f"nvidia-kernel-dkms {driver} on kernel {kernel} does not build"
    code, output = stopped.run("check", "-c", CLASS, "--to", STACK)
    assert code != 0, output
    assert failure in " ".join(output.split())
    image = version_of(stopped.new, f"linux-image-{kernel}")
    fixed = {"status": "resolved", "fixed_version": image, "urgency": "high"}
    (stopped.directory / "tracker.json").write_text(tracker({"linux": {CVE: {"trixie": fixed}}}))
    words = ["--feed", "debian=tracker.json", "--class", STACK, "--no-nodes"]
    code, output = stopped.run("cve", "prepare", CVE, *words)
    assert code == 1, output
    assert failure in output
    assert f"on it build: {row.driver} ({row.flavour})" in output
