"""Ask pip's own resolver about generated requirement sets, and record its answers.

`python -m tests.pip_resolver` writes tests/cases/compat/pip.yml: sets, pip's answer and its reason. It needs a package index
and about half an hour. Sets follow from the seed, and from the versions that the index serves on that day.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from goldnode.facts import wheels

TABLE = Path(__file__).parent / "cases/compat/pip.yml"
SEED, COUNT = 18, 260
SECONDS = 240  # limit for one set: pip may search a long time
PYTHONS = ("3.9", "3.10", "3.11", "3.11", "3.12", "3.12", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "x86_64", "x86_64", "aarch64")
PAIRS = (("torch", "torchvision"), ("torch", "torchaudio"), ("torch", "triton"))
# pip evaluates markers for the Python that runs it, whatever --python-version and --platform say. This start of pip gives
# it the environment of the target.
START = """
import json, sys
from pip._vendor.packaging import markers
target = json.loads(sys.argv.pop(1))
before = markers.default_environment
markers.default_environment = lambda: {**before(), **target}
from pip._internal.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class ResolverAnswer:
    """pip's answer for one set: whether it accepts it, and the first line that says why not."""

    accepts: bool
    reason: str | None


def _target(python: str, machine: str) -> list[str]:
    """Return pip's options for a Python and a machine, with the glibc of Ubuntu 22.04."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 36)]
    platforms += [
        f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    ]
    return [
        "--python-version",
        python,
        *(item for name in platforms for item in ("--platform", name)),
    ]


def _environment() -> dict[str, str]:
    """Return the environment without the settings of the machine: they can name constraints, and folders with wheels."""
    left = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
    }
    return {**left, "PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": os.devnull}


def ask(
    requirements: Sequence[str], python: str, machine: str, *, pip: str, cache: str
) -> ResolverAnswer | None:
    """Return pip's answer, or None if it did not answer in time. Raises RuntimeError if pip failed otherwise."""
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
        "platform_machine": machine,
    }
    with tempfile.TemporaryDirectory() as folder:
        argv = [pip, "-c", START, json.dumps(target), "install", "--dry-run", "--quiet"]
        argv += [
            "--report",
            f"{folder}/report.json",
            "--only-binary",
            ":all:",
            "--ignore-installed",
        ]
        argv += ["--use-feature", "fast-deps", "--cache-dir", cache, "--target", f"{folder}/target"]
        argv += _target(python, machine)
        try:
            done = subprocess.run(
                [*argv, *requirements],
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    if done.returncode == 0:
        return ResolverAnswer(True, None)
    errors = [
        line.removeprefix("ERROR: ")
        for line in done.stderr.splitlines()
        if line.startswith("ERROR: ")
    ]
    why = next(
        (line for line in errors if re.match(r"Cannot install|Could not find|No matching", line)),
        None,
    )
    if why is None:
        raise RuntimeError(f"pip failed on {' '.join(requirements)}: {done.stderr[-1500:]}")
    # The list of other versions is long, and changes each day.
    return ResolverAnswer(False, re.sub(r" \(from versions: .*\)$", "", why))


# -- generated sets


def served(name: str, pip: str) -> list[str]:
    """Return the versions of a package that pip finds as wheels for Linux, oldest first."""
    found: set[Version] = set()
    for python in ("3.9", "3.12"):
        argv = [pip, "-m", "pip", "index", "versions", name, "--only-binary", ":all:"]
        done = subprocess.run(
            [*argv, *_target(python, "x86_64")],
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        listed = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
        found |= {Version(item) for item in listed.group(1).split(", ")} if listed else set()
    return [str(version) for version in sorted(found) if not version.is_prerelease]


@dataclass(frozen=True)
class _Chance:
    """A source of chance over the versions that the index serves."""

    random: random.Random
    versions: Mapping[str, Sequence[str]]

    def version(self, name: str, *, least: str = "0") -> str:
        return self.random.choice(
            [item for item in self.versions[name] if Version(item) >= Version(least)]
        )

    def wanted(self, name: str, version: str, target: str) -> str | None:
        """Return the version that a recorded release requires exactly, if there is one."""
        release = wheels.packages().get(name, {}).get(version)
        for text in release.requires or () if release else ():
            found = re.fullmatch(rf"{re.escape(target)}==([\w.]+)(?:;.*)?", text.replace(" ", ""))
            if found:
                return found.group(1)
        return None

    def near(self, name: str, around: str) -> str:
        """Return a version up to two places from the last one at or below `around`."""
        every = self.versions[name]
        at = max(
            [place for place, item in enumerate(every) if Version(item) <= Version(around)],
            default=0,
        )
        return every[min(max(at + self.random.choice((-2, -1, 0, 0, 1)), 0), len(every) - 1)]


def _partner(chance: _Chance, name: str, version: str, partner: str) -> str:
    """Return a pin of `partner` beside `name`: of the same time, so that about half of them fit."""
    wanted = chance.wanted(name, version, partner)
    if wanted is None:
        for item in chance.versions[partner]:
            if chance.wanted(partner, item, name) == version:
                wanted = item
    if wanted is None or wanted not in chance.versions[partner]:
        return chance.version(partner)
    return wanted if chance.random.random() < 0.6 else chance.near(partner, wanted)


def _library(chance: _Chance, torch: str) -> str | None:
    """Return a pin of a library of NVIDIA that a release of torch requires: the same version, or one near it."""
    release = wheels.packages().get("torch", {}).get(torch)
    texts = (
        [text for text in release.requires or () if text.startswith("nvidia-")] if release else []
    )
    if not texts:
        return None
    name, _, rest = chance.random.choice(texts).partition("==")
    name, wanted = re.split(r"[\[;]", name)[0], rest.split(";")[0].strip()
    if not wanted or name not in chance.versions:
        return None
    version = wanted if chance.random.random() < 0.5 else chance.near(name, wanted)
    return f"{name}=={version}"


def _set(chance: _Chance) -> list[str]:
    draw = chance.random.random()
    if draw < 0.16:  # vllm takes part of its own
        version = chance.version("vllm", least="0.6.0")
        partner = chance.random.choice(("torch", "torchvision", "torchaudio", "triton"))
        if partner == "triton":
            torch = chance.wanted("vllm", version, "torch") or chance.version("torch", least="2.4")
            return [f"vllm=={version}", f"triton=={_partner(chance, 'torch', torch, 'triton')}"]
        return [f"vllm=={version}", f"{partner}=={_partner(chance, 'vllm', version, partner)}"]
    if draw < 0.36:
        version = chance.version("jax", least="0.4.36")
        major = chance.random.choice(("12", "12", "13"))
        first = f"jax[cuda{major}]=={version}"
        kind = chance.random.choice(("plugin", "pjrt", "jaxlib", "library"))
        if kind == "library":
            name = chance.random.choice((f"nvidia-cudnn-cu{major}", f"nvidia-nccl-cu{major}"))
            return [first, f"{name}=={chance.version(name)}"]
        name = "jaxlib" if kind == "jaxlib" else f"jax-cuda{major}-{kind}"
        return [first, f"{name}=={chance.near(name, version)}"]
    torch = chance.version("torch", least="2.0")
    first = f"torch=={torch}"
    if draw < 0.60:
        _, partner = chance.random.choice(PAIRS)
        return [first, f"{partner}=={_partner(chance, 'torch', torch, partner)}"]
    if draw < 0.78:
        library = _library(chance, torch)
        return [first, library or f"triton=={_partner(chance, 'torch', torch, 'triton')}"]
    if draw < 0.90:  # three or four together
        found = [first]
        for _, partner in chance.random.sample(PAIRS, chance.random.choice((2, 2, 3))):
            found.append(
                f"{partner}=={chance.wanted('torch', torch, partner) or _partner(chance, 'torch', torch, partner)}"
            )
        library = _library(chance, torch)
        return [*found, library] if library and chance.random.random() < 0.4 else found
    low = chance.version("torch", least="2.1")
    vision = _partner(chance, "torch", low, "torchvision")
    return [f"torch>={low},<{chance.near('torch', low)}.99", f"torchvision=={vision}"]


NAMES = (
    *("torch", "torchvision", "torchaudio", "triton", "vllm", "jax", "jaxlib"),
    *(f"jax-cuda{major}-{kind}" for major in ("12", "13") for kind in ("plugin", "pjrt")),
    *(f"nvidia-{name}-cu{major}" for major in ("11", "12", "13") for name in ("cudnn", "nccl")),
    *("nvidia-cusparselt-cu12", "nvidia-cusparselt-cu13"),
    *(
        f"nvidia-{name}-cu12"
        for name in ("cublas", "cuda-runtime", "cuda-nvrtc", "cuda-cupti", "cufft", "curand")
    ),
    *(
        f"nvidia-{name}-cu12"
        for name in ("cusolver", "cusparse", "nvjitlink", "nvtx", "cufile", "nvshmem")
    ),
    *("nvidia-nvshmem-cu13", "nvidia-cublas", "nvidia-cuda-runtime"),
)


def sets(seed: int, count: int, pip: str) -> Iterator[dict[str, Any]]:
    """Yield `count` different sets, each with a Python and a machine."""
    chance = _Chance(random.Random(seed), {name: served(name, pip) for name in NAMES})  # noqa: S311 - chance, not a secret
    seen: set[tuple[str, ...]] = set()
    while len(seen) < count:
        requirements = _set(chance)
        python, machine = chance.random.choice(PYTHONS), chance.random.choice(MACHINES)
        name = (*requirements, python, machine)
        if name not in seen:
            seen.add(name)
            yield {"requirements": requirements, "python": python, "machine": machine}


# -- the table


def _text(row: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(row), default_flow_style=True, sort_keys=False, width=10_000).strip()


def main() -> None:
    """Ask pip about each set, and write the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument(
        "--pip", default=sys.executable, help="the Python of an environment with pip 24.1 or later"
    )
    parser.add_argument("--cache", default=tempfile.gettempdir() + "/goldnode-pip-cache")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    wanted = list(sets(asked.seed, asked.count, asked.pip))

    def one(row: dict[str, Any]) -> str | None:
        try:
            answer = ask(
                row["requirements"], row["python"], row["machine"], pip=asked.pip, cache=asked.cache
            )
        except RuntimeError as problem:
            print(problem, file=sys.stderr, flush=True)
            return None
        if answer is None:
            print("no answer in time:", row, file=sys.stderr, flush=True)
            return None
        text = _text(
            {
                **row,
                "accepts": answer.accepts,
                **({"reason": answer.reason} if answer.reason else {}),
            }
        )
        print(text, flush=True)
        return text

    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = [text for text in pool.map(one, wanted) if text is not None]
    version = subprocess.run(
        [asked.pip, "-m", "pip", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    day = dt.datetime.now(dt.UTC).date()
    head = [
        f"# Requirement sets, generated from seed {asked.seed}, with the answer of pip {version} on {day}.",
        "# Written by `python -m tests.pip_resolver`. accepts: whether pip resolves the set for this Python and machine, wheels only;",
        "# reason: its first line that says why not.",
    ]
    asked.out.write_text(
        "\n".join([*head, "", *(f"- {text}" for text in rows)]) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
