"""Pre-flight of a job: what lets it start, what stops it, and the one reason that it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.captures import healthy
from tests.unit.node.serve.test_metrics import finding
from tests.unit.node.serve.test_serve import GOOD

from goldnode.node.cachekey import components, directory, key
from goldnode.node.ground.errors import NodeError
from goldnode.node.preflight import checks, cohort, command, image
from goldnode.node.program.arguments import parse
from goldnode.node.serve.publish import public

Json = dict[str, Any]
CLASS: Json = {"digest": "sha256:c1", "class": "h100", "policy": {}}
CUDA = {
    "families": {"12": "525.60.13", "13": "580.65.06"},
    "bundled": {"13.0": "580.65.06", "13.5": "620.10"},
}
OWN = {
    "class_digest": "sha256:c1",
    "driver": "580.95.05",
    "gsp_firmware": "580.95.05",
    "vbios": "96.00.5E.00.01",
    "nic_firmware": "28.39.1002",
    "nccl": "2.27.3",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with a current verdict."""
    for name in (
        "GOLDNODE_COHORT",
        "GOLDNODE_IMAGE_FILE",
        "CUDA_CACHE_PATH",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "JAX_COMPILATION_CACHE_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, text in {
        "proc/uptime": "160.5 1\n",
        "proc/sys/kernel/random/boot_id": "b\n",
        "proc/sys/kernel/hostname": "n1\n",
        "proc/1/stat": "1 (systemd) S " + " ".join("0" * 18) + " 42 0",
        "etc/goldnode/class.json": json.dumps({**CLASS, "health": {"cuda": CUDA}}),
        "run/goldnode/verdict.json": json.dumps(GOOD),
        "run/goldnode/public.json": json.dumps(public(healthy())),
    }.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def call(root: Path, *words: str) -> int:
    """Run the command as goldnode-node starts it. `program.main` runs it too, and must agree."""
    return command.main(parse(["preflight", "--root", str(root), *words]))


def asked(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Json]:
    code = call(root, *words, "--format", "json")
    found: Json = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return code, found


# -- verdict


def test_a_good_node_fits_in_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(root) == 0
    line = capsys.readouterr().out
    assert line.startswith("goldnode: n1 fits: verdict ")
    assert line.count("\n") == 1


BAD = finding("gpu.count", "mismatch", severity="drain")


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"exit_code": 2, "findings": [BAD]}, 2, "gpu.count"),
        ({"exit_code": 4, "findings": [finding("x", "match")]}, 4, "not of class"),
        ({"uptime": -800.0}, 3, "s old"),
        ({"boot_identity": "other/1"}, 3, "of another boot"),
        ({"class_digest": "sha256:other"}, 3, "of another class"),
        ({"schema": "x"}, 3, "not a verdict"),
        ({"exit_code": 1}, 0, None),
        (
            {"exit_code": 3},
            0,
            None,
        ),  # not verified here, as in a container: no reason to stop work, as for the gate
    ],
)
def test_the_verdict_decides_first(
    change: Json, status: int, reason: str | None, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "run/goldnode/verdict.json", json.dumps({**GOOD, **change}))
    code, found = asked(root, capsys)
    assert code == status, found
    assert (reason is None) == (found["reason"] is None)
    assert reason is None or reason in found["reason"]
    assert reason is None or found["remedy"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run/goldnode/verdict.json", ""),
        ("run/goldnode/verdict.json", "{torn"),
        ("run/goldnode/public.json", "{torn"),
        ("run/goldnode/public.json", "[]"),
        ("etc/goldnode/class.json", "null"),
    ],
)
def test_a_damaged_file_is_could_not_check(
    name: str, text: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, name, text)
    assert asked(root, capsys)[0] == 3


def test_a_mounted_directory_of_the_node_counts_in_a_container(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PID 1 of a container starts at another time than that of its node."""
    write(root, "proc/1/stat", "1 (sh) S " + " ".join("0" * 18) + " 99 0")
    assert asked(root, capsys)[0] == 3
    line = "36 35 98:0 /run/goldnode {} ro,relatime - tmpfs tmpfs rw\n"
    write(
        root,
        "proc/self/mountinfo",
        line.format("/run") + line.format(f"{root}/run/goldnode2") + "torn\n",
    )
    assert asked(root, capsys)[0] == 3
    write(root, "proc/self/mountinfo", line.format(f"{root}/run/goldnode"))
    assert asked(root, capsys)[0] == 0
    write(root, "proc/sys/kernel/random/boot_id", "another\n")
    assert asked(root, capsys)[0] == 3


# -- cohort


def test_values_are_those_of_all_devices() -> None:
    capture = healthy()
    capture["gpus"][1]["vbios"] = "96.00.89.00.01"
    found = checks.shared(public(capture), "sha256:c1", "2.27.3")
    assert found == {**OWN, "vbios": "96.00.5E.00.01, 96.00.89.00.01"}
    capture["gpus"][1]["vbios"] = None
    assert checks.shared(public(capture), "sha256:c1", None)["vbios"] is None


@pytest.mark.parametrize("name", checks.SHARED)
def test_a_node_of_another_state_is_named(name: str) -> None:
    others = {"n2": dict(OWN), "n3": {**OWN, name: "other"}}
    line = checks.cohort_line(OWN, others, [], 3)
    assert (line.state, line.status) == (checks.FAILED, 1)
    assert line.text == f"{name} is {OWN[name]} here and other on n3 (1 of 2 other nodes)"


@pytest.mark.parametrize(
    ("own", "others", "broken", "state"),
    [
        (OWN, {"n2": OWN}, [], checks.OK),
        (OWN, {}, [], checks.OK),
        ({**OWN, "nccl": None}, {"n2": OWN}, [], checks.UNKNOWN),
        (
            {**OWN, "nccl": None},
            {"n2": {**OWN, "nccl": None}},
            [],
            checks.OK,
        ),  # nobody knows: nodes without a GPU
        (OWN, {"n2": OWN}, ["n3"], checks.UNKNOWN),
        (OWN, {"n2": {**OWN, "driver": "570"}}, ["n3"], checks.FAILED),
    ],
)
def test_cohort_state_is_unknown_for_missing_and_failed_for_differing(
    own: Json, others: Json, broken: list[str], state: str
) -> None:
    assert checks.cohort_line(own, others, broken, None).state == state


@given(
    st.dictionaries(
        st.sampled_from(["n2", "n3", "n4"]),
        st.fixed_dictionaries({name: st.sampled_from([None, "1", "2"]) for name in checks.SHARED}),
    ),
    st.fixed_dictionaries({name: st.sampled_from([None, "1", "2"]) for name in checks.SHARED}),
)
def test_a_cohort_passes_only_if_no_known_value_differs(others: Json, own: Json) -> None:
    line = checks.cohort_line(own, others, [], None)
    differ = any(
        None not in (row[name], own[name]) and row[name] != own[name]
        for row in others.values()
        for name in checks.SHARED
    )
    assert (line.state == checks.FAILED) == differ
    missing = any(
        row[name] is not None and own[name] is None
        for row in others.values()
        for name in checks.SHARED
    )
    assert (line.state == checks.OK) == (not differ and not missing)


def test_nodes_exchange_their_values_in_a_directory(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(root / "job1")
    assert asked(root, capsys, "--cohort", place, "--node", "n1", "--cohort-size", "2")[0] == 0
    code, found = asked(root, capsys, "--cohort", place, "--node", "n2", "--cohort-size", "2")
    assert (code, found["checks"][1]["text"]) == (0, "same as 1 of 1 other nodes")
    capture = healthy()
    capture["driver"]["loaded"] = "570.1"
    write(root, "run/goldnode/public.json", json.dumps(public(capture)))
    code, found = asked(root, capsys, "--cohort", place, "--node", "n3")
    assert code == 1
    assert (
        found["reason"]
        == "cohort: driver is 570.1 here and 580.95.05 on n1, n2 (2 of 2 other nodes)"
    )


def test_a_file_has_the_values_of_all_nodes(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(root, "--print", "--nccl", "2.27.3") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"schema": "goldnode.cohort/1", "nodes": {"n1": OWN}}
    printed["nodes"]["n2"] = {**OWN, "nccl": "2.28.1"}
    write(root, "all.json", json.dumps(printed))
    monkeypatch.setenv("GOLDNODE_COHORT", str(root / "all.json"))
    assert asked(root, capsys, "--nccl", "2.27.3")[0] == 1
    assert asked(root, capsys, "--nccl", "2.28.1")[0] == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": "goldnode.cohort/1"}',
        '{"schema": "goldnode.cohort/1", "nodes": {"n2": 1}}',
        "[" * 99999,
    ],
)
def test_a_file_of_another_node_that_is_broken_is_could_not_check(
    content: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "job/n2.json", content)
    code, found = asked(root, capsys, "--cohort", str(root / "job"))
    assert (code, "of n2 cannot be read" in found["reason"]) == (3, True)
    write(root, "all.json", content)
    assert call(root, "--cohort", str(root / "all.json")) == 3


@pytest.mark.parametrize("node", ["../n1", "", ".", "a/b", "a b", "x" * 300])
def test_a_name_that_is_no_node_writes_nothing(node: str, tmp_path: Path) -> None:
    with pytest.raises(NodeError):
        cohort.publish(str(tmp_path / "job"), node, OWN)
    assert not (tmp_path / "job").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "n1.json").symlink_to(tmp_path / "victim")
    cohort.publish(str(tmp_path), "n1", OWN)
    assert not (tmp_path / "victim").exists()
    assert not (tmp_path / "n1.json").is_symlink()


# -- image


def docker(*environment: str, **labels: str) -> Json:
    return {"Config": {"Env": list(environment), "Labels": labels}, "RepoTags": ["team/train:7"]}


GOLDNODE_IMAGE: Json = {
    "schema": "goldnode.image/1",
    "name": "cuda-13",
    "backend": "cuda",
    "version": "13.0.1",
    "parts": {"nccl": "2.27.3"},
}


@pytest.mark.parametrize(
    ("description", "status", "text"),
    [
        (GOLDNODE_IMAGE, 0, "cuda-13: CUDA 13.0.1 with driver 580.95.05"),
        ({**GOLDNODE_IMAGE, "version": "12.4.1"}, 0, "CUDA 12.4.1"),
        ({**GOLDNODE_IMAGE, "version": "13.5.0"}, 0, "CUDA 13.5.0"),  # minor version compatibility
        ({**GOLDNODE_IMAGE, "version": "14.0.0"}, 1, "runs CUDA up to 13.0"),
        ({**GOLDNODE_IMAGE, "backend": "cpu", "version": "1"}, 0, "needs no GPU"),
        (
            {**GOLDNODE_IMAGE, "backend": "rocm", "version": "7.0"},
            1,
            "is for amd, and this node has nvidia",
        ),
        ({**GOLDNODE_IMAGE, "backend": None}, 3, "backend of cuda-13 is unknown"),
        ([docker("CUDA_VERSION=12.4.1", "PATH=/")], 0, "team/train:7: CUDA 12.4.1"),
        (docker("CUDA_VERSION=14.0.0"), 1, "runs CUDA up to 13.0"),
        (
            docker("CUDA_VERSION=14.0.0", "_CUDA_COMPAT_PATH=/x"),
            3,
            "forward compatibility package decides",
        ),
        (docker("PATH=/"), 3, "is unknown"),
        (docker(**{"io.goldnode.backend": "rocm"}), 1, "is for amd"),
    ],
)
def test_an_image_fits_the_driver_or_not(
    description: Any, status: int, text: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "image.json", json.dumps(description))
    code, found = asked(root, capsys, "--image", str(root / "image.json"))
    assert code == status, found
    assert text in found["checks"][1]["text"]
    assert status == 0 or found["remedy"]


def test_an_image_for_a_newer_driver_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = healthy()
    capture["driver"] |= {"loaded": "535.309.01", "cuda": "12.2"}
    write(root, "run/goldnode/public.json", json.dumps(public(capture)))
    write(root, "image.json", json.dumps(GOLDNODE_IMAGE))
    code, found = asked(root, capsys, "--image", str(root / "image.json"))
    assert (code, found["reason"]) == (
        1,
        "image: cuda-13: CUDA 13.0.1 needs driver 580.65.06 or newer, and 535.309.01 is loaded",
    )
    assert found["remedy"] == "Use an image of CUDA 12.2 or older, or nodes with a newer driver"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"Config": 1}', "[[]]", "[" * 99999])
def test_a_description_of_no_image_is_could_not_check(
    content: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, "image.json", content)
    assert call(root, "--image", str(root / "image.json")) == 3
    assert call(root, "--image", str(root / "nowhere")) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_container_knows_its_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image, "PLACE", str(tmp_path / "image.json"))
    found = image.inside({"CUDA_VERSION": "12.9.1", "NCCL_VERSION": "2.27.3"}) or {}
    assert (found["backend"], found["cuda"], found["nccl"]) == ("cuda", "12.9.1", "2.27.3")
    assert image.inside({}) is None
    (tmp_path / "image.json").write_text(json.dumps(GOLDNODE_IMAGE))
    assert (image.inside({}) or {})["cuda"] == "13.0.1"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Config", "Env", "Labels", "schema", "backend", "parts", "io.goldnode.backend"]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_json_is_an_image_or_refused(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(value))
    try:
        found = image.read(str(file))
    except NodeError:
        return
    checks.image_line(found, public(healthy()), CUDA)


# -- caches


def keyed(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    request = components.KeyRequest(CLASS, image="sha256:" + "a" * 64)
    document = key.document("cuda", "exact", components.components(healthy(), request))
    place = directory.prepare(str(root / "caches"), document)
    monkeypatch.setenv("CUDA_CACHE_PATH", f"{place}/data")
    return place


def test_caches_of_this_node_pass_and_others_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(root, capsys, "--caches")[1]["checks"][1]["text"] == "no variable is set"
    keyed(root, monkeypatch)
    assert asked(root, capsys, "--caches")[1]["checks"][1]["text"] == "1 keyed for this node"
    capture = healthy()
    capture["driver"]["loaded"] = "580.105.08"
    write(root, "run/goldnode/public.json", json.dumps(public(capture)))
    code, found = asked(root, capsys, "--caches")
    assert code == 1
    assert (
        found["reason"]
        == "caches: CUDA_CACHE_PATH: driver.version was 580.95.05, and is 580.105.08 here"
    )


@pytest.mark.parametrize("place", ["/home/u/.triton", "relative", "/", "/x\x1b[2J/y"])
def test_a_cache_without_a_key_is_refused(
    place: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", place)
    code, found = asked(root, capsys, "--caches")
    assert (code, "TRITON_CACHE_DIR" in found["reason"], "\x1b" in found["reason"]) == (
        1,
        True,
        False,
    )


def test_an_unknown_device_is_could_not_check(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(root, monkeypatch)
    capture = healthy()
    capture["gpus"][0]["power"]["limit_w"] = 100.0
    write(root, "run/goldnode/public.json", json.dumps(public(capture)))
    assert asked(root, capsys, "--caches")[0] == 3
    assert asked(root, capsys, "--caches", "--gpu", "1")[0] == 0


# -- the report


LINES = [
    checks.PreflightLine("a", checks.FAILED, "text a", "do a", checks.MISFIT),
    checks.PreflightLine("b", checks.UNKNOWN, "text b", "do b", checks.COULD_NOT_CHECK),
    checks.PreflightLine("c", checks.FAILED, "text c", "do c", checks.BAD_NODE),
    checks.PreflightLine("d", checks.FAILED, "text d", "do d", checks.OTHER_CLASS),
    checks.PreflightLine("e", checks.OK, "text e"),
]


@given(st.permutations(LINES), st.integers(0, 5))
def test_report_passes_only_without_failed_lines_and_gives_one_line(
    lines: list[checks.PreflightLine], count: int
) -> None:
    found = checks.report(lines[:count], "n1")
    failed = [line for line in lines[:count] if line.state != checks.OK]
    assert (found["exit_code"] == 0) == (not failed)
    assert checks.text(found).count("\n") == 0
    if failed:
        assert found["exit_code"] in {line.status for line in failed}
        assert (found["exit_code"] == 2) == any(line.status == 2 for line in failed)


def test_the_start_imports_no_engine() -> None:
    """It takes longer than all checks."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from goldnode.node.preflight import command; "
        "from goldnode.node.program import arguments; print(*sys.modules)"
    )
    source = str(Path(command.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, source], capture_output=True, text=True, check=True
    )
    assert not {
        "goldnode.node.program.main",
        "goldnode.node.state.engine",
        "goldnode.node.ground.known",
    } & set(done.stdout.split())


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_a_real_container_reads_the_verdict_of_its_node(root: Path, tmp_path: Path) -> None:
    """PID and mount namespaces of its own, and a bind mount of the node's directory, as a pod has."""
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"this machine has no namespaces: {probe.stderr.decode().strip()}")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    write(
        root,
        "run/goldnode/verdict.json",
        json.dumps({**GOOD, "boot_identity": f"{boot_id}/1", "uptime": uptime}),
    )
    inside = tmp_path / "pod"
    for name in ("run/goldnode", "etc/goldnode", "proc"):
        (inside / name).mkdir(parents=True)
    code = "import sys; from goldnode.node.program.start import main; sys.exit(main())"
    script = (
        f"mount --bind {root}/run/goldnode {inside}/run/goldnode && mount --bind {root}/etc/goldnode {inside}/etc/goldnode && "
        f'mount -t proc proc {inside}/proc && exec {sys.executable} -c "{code}" preflight --node n1 --root {inside}'
    )
    env = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[3])}
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.startswith("goldnode: n1 fits")) == (0, True), (
        done.stdout + done.stderr
    )
