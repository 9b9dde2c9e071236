"""The merged configuration of containerd, against what its releases print with `containerd config dump`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.debian_archive import debian_archive
from tests.unit.node.effective import containerd_releases as releases

from goldnode.node.effective import containerd
from goldnode.node.effective import enginetext as text_of
from goldnode.node.ground.host import Host

ROWS = json.loads(releases.CASES.read_text(encoding="utf-8"))
WANTS = containerd.Wants(releases.RUNTIME, default=True, cdi=False)
# Of a Kubernetes node with GPUs, and of one without.
GROUPS = {
    "gpu": containerd.Wants(releases.RUNTIME, default=False, cdi=False, systemd=True),
    "cpu": containerd.Wants(None, default=False, cdi=False, systemd=True),
}
# Debian's release, by suite.
PACKAGES = {"bookworm": "1.6", "trixie": "1.7", "sid": "2.1"}


def parts(name: str) -> containerd.Release:
    return containerd.release(f"{name}.0")


def imports_of(root: Path, texts: dict[str, str], release: str) -> list[dict[str, Any]]:
    """The imports of a configuration in the order of a release, as the product finds them."""
    for file, text in texts.items():
        place = root / f"etc/containerd/{file}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return containerd.imported(Host(str(root)), texts["config.toml"], parts(release))


def read(root: Path, texts: dict[str, str], release: str) -> list[containerd.ConfigFile]:
    """The files of a configuration in the order of a release, as the product reads them."""
    rows = imports_of(root, texts, release)
    found = [(containerd.CONFIG, texts["config.toml"], False)]
    found += [(row["file"], row["text"] or "", row.get("after", False)) for row in rows]
    return [
        containerd.ConfigFile(file, text, text_of.read_toml(text), after)
        for file, text, after in found
    ]


def identity(row: dict[str, Any]) -> str:
    return f"{row['release']} version {row['version']}: {row['name']}"


@pytest.mark.parametrize("row", ROWS, ids=identity)
def test_merged_result_is_that_of_the_release(tmp_path: Path, row: dict[str, Any]) -> None:
    files = read(tmp_path, releases.files(row["name"], row["version"]), row["release"])
    if row["version"] is None or row["name"].startswith("CRI off"):
        with pytest.raises(text_of.ConflictError, match=r"/etc/containerd/\S+:\d+: "):
            containerd.drop_in(files, WANTS, parts(row["release"]))
    else:
        found = containerd.effective(
            containerd.merged(files, parts(row["release"])), parts(row["release"])
        )
        assert found == row["dump"]


GENERATED = json.loads(releases.GENERATED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", releases.SEEDS)
@pytest.mark.parametrize("key", GENERATED)
def test_generated_configuration_is_merged_as_by_the_release(
    tmp_path: Path, key: str, seed: int
) -> None:
    release, _, version = key.partition(" ")
    texts, recorded = releases.generated(seed, int(version)), GENERATED[key][seed]
    missing = any(row["text"] is None for row in imports_of(tmp_path, texts, release))
    if parts(release) < (2, 0) and missing:  # containerd 1 does not start then
        assert "refused" in recorded
    else:
        merged = containerd.merged(read(tmp_path, texts, release), parts(release))
        assert containerd.effective(merged, parts(release)) == recorded


REFUSED = {
    "an import that sorts last": ("1.6 1.7", "/etc/containerd/conf.d/zz.toml:2 is read after /etc/containerd/conf.d/goldnode.toml"),
    "an import that sorts last sets the default": ("1.6 1.7 2.1", "/etc/containerd/conf.d/zz.toml:"),
    "an import that sorts last sets another program": ("1.6 1.7 2.1", "/etc/containerd/conf.d/zz.toml:"),
    "an import of an import": ("1.6 1.7 2.1", "/etc/containerd/inner.toml:"),
    "CRI off": ("1.6 1.7 2.1", "/etc/containerd/config.toml:2: disabled_plugins has"),
    "CRI off in an import": ("1.6 1.7 2.1", "/etc/containerd/conf.d/20.toml:2: disabled_plugins has"),
}  # fmt: skip


def configured(
    root: Path, name: str, version: int, release: str, *, want: containerd.Wants = WANTS
) -> dict[str, str]:
    """The files of a configuration with the drop-in and its import. Raises ConflictError."""
    return with_drop_in(root, releases.files(name, version), release, want)


def with_drop_in(
    root: Path, texts: dict[str, str], release: str, want: containerd.Wants
) -> dict[str, str]:
    """Files with the drop-in and its import. Raises ConflictError."""
    files = read(root, texts, release)
    drop_in = containerd.drop_in(files, want, parts(release))
    config = text_of.with_import(texts["config.toml"], files[0].document, containerd.DROP_IN)
    return {**texts, "config.toml": config, "conf.d/goldnode.toml": drop_in}


def judged(found: Any, want: containerd.Wants = WANTS) -> None:
    """Assert that the settings of the class are in effect, and that GPU pods have the cgroup driver of the others."""
    runc = found["runtimes"].get("runc", {}).get("cgroup", False)
    if want.program:
        assert (found["default"] == "nvidia") or not want.default
        assert found["runtimes"]["nvidia"]["program"] == releases.RUNTIME
        assert found["runtimes"]["nvidia"]["cgroup"] == runc
    if want.systemd:
        assert {
            row["cgroup"] for row in found["runtimes"].values() if row["type"] == containerd.RUNC
        } == {True}


def merged_with(root: Path, row: dict[str, Any], want: containerd.Wants) -> Any:
    """The effective configuration with the drop-in. Raises ConflictError."""
    release = row["release"]
    texts = configured(root, row["name"], row["version"], release, want=want)
    files = read(root, {"config.toml": texts["config.toml"]}, release)
    text = texts["conf.d/goldnode.toml"]
    own = containerd.ConfigFile(containerd.DROP_IN, text, text_of.read_toml(text))
    before = [file for file in files if not file.after]
    after = [file for file in files if file.after]
    return containerd.effective(
        containerd.merged([*before, own, *after], parts(release)), parts(release)
    )


@pytest.mark.parametrize(
    ("release", "version", "refused"), [("1.7", 2, False), ("2.1", 2, False), ("2.1", 3, True)]
)
def test_cdi_switched_off_is_a_decision_only_where_it_is_on_by_default(
    tmp_path: Path, release: str, version: int, refused: bool
) -> None:
    plugin = containerd.CRI[version]
    text = f'version = {version}\n[plugins."{plugin}"]\nenable_cdi = false\n'
    want = containerd.Wants(None, default=False, cdi=True)
    if refused:
        with pytest.raises(
            text_of.ConflictError, match=r"config\.toml:3: enable_cdi is false, want true"
        ):
            with_drop_in(tmp_path, {"config.toml": text}, release, want)
    else:
        texts = with_drop_in(tmp_path, {"config.toml": text}, release, want)
        assert "enable_cdi = true" in texts["conf.d/goldnode.toml"]


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("row", [row for row in ROWS if row["version"]], ids=identity)
def test_systemds_control_groups_take_effect_in_every_runtime_of_runc(
    tmp_path: Path, row: dict[str, Any], kind: str
) -> None:
    try:
        found = merged_with(tmp_path, row, GROUPS[kind])
    except text_of.ConflictError:
        assert row["release"] in REFUSED[row["name"]][0]
    else:
        judged(found, GROUPS[kind])


@pytest.mark.parametrize("row", [row for row in ROWS if row["version"]], ids=identity)
def test_drop_in_takes_effect_or_is_refused_with_its_place(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    release = row["release"]
    where = REFUSED.get(row["name"], ("", ""))
    if release in where[0]:
        with pytest.raises(text_of.ConflictError) as refused:
            configured(tmp_path, row["name"], row["version"], release)
        assert where[1] in str(refused.value)
        return
    judged(merged_with(tmp_path, row, WANTS))


def checked(program: Path, release: str, root: Path) -> None:
    """Compare a real containerd with the recorded results, and run it with every drop-in."""
    recorded = [row for row in ROWS if row["release"] == release]
    assert releases.record(program, release) == recorded
    again = releases.record_generated(program, release)
    assert again == {key: GENERATED[key] for key in again}
    for number, (name, version) in enumerate(releases.configurations(release)):
        if version is None:
            continue
        for kind, want in {"": WANTS, **GROUPS}.items():
            try:
                texts = configured(root / f"{number}{kind}", name, version, release, want=want)
            except text_of.ConflictError:
                continue
            judged(releases.dump(program, texts), want)
    # The file that Kubernetes and NVIDIA tell people to begin with.
    printed = subprocess.check_output([program, "config", "default"], text=True)
    wants = [WANTS, *GROUPS.values()]
    if parts(release) >= (1, 7):
        wants.append(containerd.Wants(releases.RUNTIME, default=False, cdi=True, systemd=True))
    for number, want in enumerate(wants):
        texts = with_drop_in(root / f"default{number}", {"config.toml": printed}, release, want)
        found = releases.dump(program, texts)
        assert found is not None
        judged(found, want)
        assert found["cdi"] or not want.cdi


def test_containerd_of_this_machine(tmp_path: Path) -> None:
    program = shutil.which("containerd")
    if program is None:
        pytest.skip("needs containerd")
    words = subprocess.check_output([program, "--version"], text=True).split()
    number = next((word for word in words if re.match(r"v?\d+\.\d", word)), "").lstrip("v")
    release = ".".join(number.split(".")[:2])
    if release not in releases.VERSIONS:
        pytest.skip(f"release {release} was not recorded")
    checked(Path(program), release, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("suite", PACKAGES)
def test_containerd_of_debian(tmp_path: Path, suite: str) -> None:
    """Each release from Debian's archive, unpacked into a folder."""
    (tmp_path / "lists/partial").mkdir(parents=True)
    (tmp_path / "cache/archives/partial").mkdir(parents=True)
    (tmp_path / "status").touch()
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (tmp_path / "sources.list").write_text(
        f"deb [signed-by={keyring}] {debian_archive()} {suite} main\n"
    )
    (tmp_path / "apt.conf").write_text(
        f'Dir::State "{tmp_path}"; Dir::State::lists "{tmp_path}/lists"; Dir::State::status "{tmp_path}/status";\n'
        f'Dir::Cache "{tmp_path}/cache"; Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "-";\n'
        'APT::Sandbox::User "root"; Acquire::Languages "none"; APT::Architecture "amd64";\n'
    )
    env = {"APT_CONFIG": str(tmp_path / "apt.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    for words in (["apt-get", "-q", "update"], ["apt-get", "-q", "download", "containerd"]):
        subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=300)
    (archive,) = tmp_path.glob("containerd_*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, tmp_path / "unpacked"], check=True)
    if f"_{PACKAGES[suite]}." not in archive.name:
        pytest.skip(f"{suite} has {archive.name} now: record it")
    checked(tmp_path / "unpacked/usr/bin/containerd", PACKAGES[suite], tmp_path)
