# ruff: noqa: E501
"""Configurations of containerd, and what its releases make of them: `python -m tests.unit.node.effective.containerd_releases 1.7=PROGRAM …` records
tests/cases/containerd.json and, of generated ones, containerd_generated.json from `containerd config dump` of programs that are there.

Recorded from Debian's containerd 1.6.20~ds1-1+deb12u3, 1.7.24~ds1-6+deb13u1 and 2.1.9+ds1-5.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from goldnode.node.effective import containerd
from goldnode.node.effective import enginetext as text_of

CASES = Path(__file__).parents[3] / "cases/containerd.json"
GENERATED = CASES.with_name("containerd_generated.json")
SEEDS = range(30)  # 240 of them were compared when this was written: 60 of each release and version
PLACE = "/etc/containerd"  # in the files; replaced by a temporary folder where a program reads them
VERSIONS = {"1.6": (2,), "1.7": (2,), "2.1": (2, 3)}
RUNTIME = "/usr/bin/nvidia-container-runtime"
RUNC = "[CRI.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n[CRI.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
NVIDIA = f"[CRI.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n[CRI.containerd.runtimes.nvidia.options]\nBinaryName = '{RUNTIME}'\n"
DEFAULT = "[CRI.containerd]\ndefault_runtime_name = 'nvidia'\n"
ALL = f"imports = ['{PLACE}/conf.d/*.toml']\n"

# name -> files without their line of a version. The first is config.toml.
FILES: dict[str, dict[str, str]] = {
    "nothing": {"config.toml": ""},
    "runc alone": {"config.toml": RUNC},
    "an import with a runtime": {"config.toml": ALL + RUNC, "conf.d/20.toml": DEFAULT + NVIDIA},
    "an import with another setting": {"config.toml": ALL + RUNC, "conf.d/20.toml": "[CRI]\nenable_selinux = true\n"},
    "an import that sorts last": {"config.toml": ALL + RUNC, "conf.d/20.toml": DEFAULT + NVIDIA, "conf.d/zz.toml": "[CRI]\nenable_selinux = true\n"},
    "an import that sorts last sets the default": {"config.toml": ALL + RUNC, "conf.d/20.toml": DEFAULT + NVIDIA, "conf.d/zz.toml": "[CRI.containerd]\ndefault_runtime_name = 'runc'\n"},
    "an import that sorts last sets another program": {"config.toml": ALL, "conf.d/20.toml": NVIDIA, "conf.d/zz.toml": NVIDIA.replace(RUNTIME, "/opt/other")},
    "an import that sorts last without CRI": {"config.toml": ALL + RUNC, "conf.d/20.toml": DEFAULT + NVIDIA, "conf.d/zz.toml": "oom_score = 5\n"},
    "an import of an import": {"config.toml": ALL + RUNC, "conf.d/10.toml": f"imports = ['{PLACE}/inner.toml']\n", "conf.d/20.toml": DEFAULT + NVIDIA, "inner.toml": "[CRI.containerd]\ndefault_runtime_name = 'runc'\n"},
    "the order of the list": {"config.toml": f"imports = ['{PLACE}/z/*.toml', '{PLACE}/a/*.toml']\n", "z/1.toml": DEFAULT + NVIDIA, "a/1.toml": "[CRI.containerd]\ndefault_runtime_name = 'runc'\n"},
    "a file by name and by pattern": {"config.toml": f"imports = ['{PLACE}/conf.d/20.toml', '{PLACE}/conf.d/*.toml']\n", "conf.d/10.toml": "[CRI.containerd]\ndefault_runtime_name = 'runc'\n", "conf.d/20.toml": DEFAULT + NVIDIA},
    "a relative pattern": {"config.toml": "imports = ['conf.d/*.toml']\n", "conf.d/20.toml": DEFAULT + NVIDIA},
    "a relative name": {"config.toml": "imports = ['conf.d/20.toml']\n", "conf.d/20.toml": DEFAULT + NVIDIA},
    "an empty import": {"config.toml": ALL, "conf.d/20.toml": DEFAULT + NVIDIA, "conf.d/30.toml": ""},
    "CDI on": {"config.toml": "[CRI]\nenable_cdi = true\n"},
    "CDI off in an import": {"config.toml": ALL + "[CRI]\nenable_cdi = true\n", "conf.d/20.toml": "[CRI]\nenable_cdi = false\n"},
    "a runtime alone": {"config.toml": "[CRI.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n"},
    "CRI off": {"config.toml": "disabled_plugins = ['DISABLED']\n"},
    "CRI off in an import": {"config.toml": ALL + "disabled_plugins = ['io.containerd.x.v1.y']\n", "conf.d/20.toml": "disabled_plugins = ['DISABLED']\n"},
}  # fmt: skip
# Files with the line of a version; the release decides whether it reads them together.
MIXED: dict[str, dict[str, str]] = {
    "version 1": {"config.toml": "disabled_plugins = ['cri']\n"},
    "version 2 imports version 3": {"config.toml": "version = 2\n" + ALL + RUNC.replace("CRI", f'plugins."{containerd.CRI[2]}"'), "conf.d/20.toml": "version = 3\n" + (DEFAULT + NVIDIA).replace("CRI", f'plugins."{containerd.CRI[3]}"')},
    "version 3 imports version 2": {"config.toml": "version = 3\n" + ALL + RUNC.replace("CRI", f'plugins."{containerd.CRI[3]}"'), "conf.d/20.toml": "version = 2\n" + (DEFAULT + NVIDIA).replace("CRI", f'plugins."{containerd.CRI[2]}"')},
    "version 4": {"config.toml": "version = 4\n" + RUNC.replace("CRI", f'plugins."{containerd.CRI[3]}"')},
}  # fmt: skip


def files(name: str, version: int | None) -> dict[str, str]:
    """The files of one configuration in a version; None: of MIXED."""
    if version is None:
        return MIXED[name]
    plugin = containerd.CRI[version]
    return {
        file: f"version = {version}\n"
        + text.replace("CRI", f'plugins."{plugin}"').replace("DISABLED", plugin)
        for file, text in FILES[name].items()
    }


def configurations(release: str) -> list[tuple[str, int | None]]:
    """All configurations for a release."""
    return [(name, version) for name in FILES for version in VERSIONS[release]] + [
        (name, None) for name in MIXED
    ]


def dump(program: Path, texts: dict[str, str]) -> dict[str, Any] | None:
    """The configuration that a containerd makes of these files; {"refused": its last line} if it does not start with them."""
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            place = Path(folder) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.replace(PLACE, folder))
        done = subprocess.run(
            [program, "-c", f"{folder}/config.toml", "config", "dump"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode:
            return {"refused": done.stderr.strip().splitlines()[-1].rpartition(": ")[2]}
        return containerd.of_dump(done.stdout)


def table(chance: random.Random) -> dict[str, Any]:
    """A CRI table with some of the settings that matter, and one that does not."""
    result: dict[str, Any] = {}
    if chance.random() < 0.3:
        result["enable_cdi"] = chance.choice([True, False])
    if chance.random() < 0.3:
        result["enable_selinux"] = True
    own: dict[str, Any] = {}
    if chance.random() < 0.4:
        own["default_runtime_name"] = chance.choice(["nvidia", "runc", "kata"])
    for name in ("runc", "nvidia", "kata"):
        if chance.random() < 0.4:
            options: dict[str, Any] = {}
            kind = {"runtime_type": "io.containerd.runc.v2"} if chance.random() < 0.7 else {}
            if chance.random() < 0.5:
                options["SystemdCgroup"] = chance.choice([True, False])
            if chance.random() < 0.5:
                options["BinaryName"] = chance.choice([RUNTIME, "/opt/other"])
            row = {**kind, **({"options": options} if options else {})}
            own.setdefault("runtimes", {})[name] = row
    return {**result, **({"containerd": own} if own else {})}


IMPORTS = [
    f"{PLACE}/conf.d/*.toml", "conf.d/*.toml", f"{PLACE}/*/10-a.toml", f"{PLACE}/conf.d/[12]*.toml", f"{PLACE}/conf.d/10-?.toml",
    f"{PLACE}/extra/deep/*", "../containerd/extra/*.toml", f"{PLACE}/conf.d/*", f"{PLACE}/none/*.toml", f"{PLACE}//conf.d/./*.toml",
    "*.toml", "missing.toml",
]  # fmt: skip


def generated(seed: int, version: int) -> dict[str, str]:
    """Files with imports by name and by pattern, relative and absolute, of imports, in circles and of files that are missing."""
    chance = random.Random(seed)  # noqa: S311 - a test, no secret
    names = ["conf.d/10-a.toml", "conf.d/20-b.toml", "conf.d/zz.toml", "conf.d/note.txt", "extra/1.toml", "extra/deep/2.toml"]  # fmt: skip
    here = chance.sample(names, chance.randint(1, 5))
    absolute = [f"{PLACE}/{name}" for name in here]

    def text(main: bool) -> str:
        head = f"version = {version}\n" if chance.random() < 0.9 or main else ""
        if chance.random() < (0.9 if main else 0.25):
            entries = [*IMPORTS, *absolute, *here] if main else [*absolute, "2.toml", "1.toml", f"{PLACE}/config.toml", "*.toml"]  # fmt: skip
            head += f"imports = {json.dumps(chance.sample(entries, chance.randint(1, 3 if main else 2)))}\n"
        body = table(chance) if chance.random() < 0.8 else {}
        head += "oom_score = 5\n" if chance.random() < 0.2 else ""
        name = containerd.CRI[version]
        if (
            chance.random() < 0.15 and "version" in head
        ):  # the name of the other version, as people copy it
            name = containerd.CRI[5 - version]
        return head + (text_of.write_toml({"plugins": {name: body}}) if body else "")

    return {"config.toml": text(True), **{name: text(False) for name in here}}


def record_generated(program: Path, release: str) -> dict[str, list[Any]]:
    """The results of one release for the generated configurations, by version of the files."""
    return {
        f"{release} {version}": [dump(program, generated(seed, version)) for seed in SEEDS]
        for version in VERSIONS[release]
    }


def record(program: Path, release: str) -> list[dict[str, Any]]:
    """The results of one release for all configurations."""
    return [
        {
            "release": release,
            "name": name,
            "version": version,
            "dump": dump(program, files(name, version)),
        }
        for name, version in configurations(release)
    ]


if __name__ == "__main__":
    programs = [word.partition("=") for word in sys.argv[1:]]
    found = {}
    for release, _, program in programs:
        found.update(record_generated(Path(program), release))
    lines = (f"{json.dumps(key)}: {json.dumps(rows)}" for key, rows in found.items())
    GENERATED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    rows = [
        row
        for word in sys.argv[1:]
        for row in record(Path(word.partition("=")[2]), word.partition("=")[0])
    ]
    CASES.write_text(
        "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8"
    )
