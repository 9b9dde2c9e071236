"""Keys of caches: what changes which key, that no two sets of components share a directory, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.captures import healthy

from goldnode.node.cachekey import caches, components, directory, key
from goldnode.node.cachekey.components import KeyRequest
from goldnode.node.follow import canonical
from goldnode.node.ground.errors import NodeError
from goldnode.node.probe.values import not_exposed, unread
from goldnode.node.program import main as program
from goldnode.node.serve.publish import public

Json = dict[str, Any]
IMAGE = "sha256:" + "a" * 64
CLASS: Json = {
    "class": "h100",
    "policy": {"power_limit_watts": 700, "clocks": {"graphics": [1980, 1980]}},
}
LIBRARIES: dict[str, Json] = {
    "torch": {"version": "2.11.0", "sha256": "1" * 64},
    "triton": {"version": "3.7.0", "sha256": "2" * 64},
    "jaxlib": {"version": "0.10.0", "sha256": "3" * 64},
    "tensorrt": {"version": "11.4.1", "sha256": "4" * 64},
    "numpy": {"version": "2.4.0", "sha256": "5" * 64},
}
REQUEST = KeyRequest(
    document=CLASS,
    image=IMAGE,
    libraries=LIBRARIES,
    glibc="2.36",
    python_abi="cpython-312-x86_64-linux-gnu",
    options={"fp16": "1"},
    environment={"XLA_FLAGS": "--x"},
    source="sha256:" + "b" * 64,
)
PAIRS = [
    (name, strength)
    for name, row in caches.CACHES.items()
    for strength in caches.STRENGTHS
    if strength == "exact" or row.portable
]


def at(capture: Json, path: str, value: Any) -> Json:
    """A copy of a capture with another value; `gpus.` is every GPU."""
    found = copy.deepcopy(capture)
    names = path.split(".")
    starts = found["gpus"] if names[0] == "gpus" else [found]
    for start in starts:
        place = start
        for name in names[1 if names[0] == "gpus" else 0 : -1]:
            place = place[name]
        place[names[-1]] = value
    return found


def keys(capture: Json, request: KeyRequest = REQUEST) -> set[tuple[str, str, str]]:
    found = components.components(capture, request)
    return {(name, strength, key.key(name, strength, found)) for name, strength in PAIRS}


def changed(capture: Json, request: KeyRequest = REQUEST) -> set[tuple[str, str]]:
    """The keys that differ from those of the healthy node."""
    same = keys(healthy())
    return {row[:2] for row in keys(capture, request) if row not in same}


ALL = set(PAIRS)
EXACT = {row for row in PAIRS if row[1] == "exact"}
PROCESSOR = {(name, strength) for name, strength in PAIRS if name in ("inductor", "xla")}
# What changes on a node -> the keys that change. docs/how-to/cache-keys.md has the same table.
NODE: list[tuple[str, Any, set[tuple[str, str]]]] = [
    ("gpus.pci_id", "10de:2331", ALL),
    ("gpus.subsystem_id", "10de:16c2", ALL),
    ("gpus.name", "NVIDIA H100 PCIe", ALL),
    ("gpus.vbios", "96.00.89.00.01", ALL),
    ("gpus.memory.total_mib", 95830, ALL),
    ("gpus.ecc.current", False, ALL),
    ("gpus.compute_mode", "exclusive_process", ALL),
    ("gpus.mig", {"current": True, "pending": True, "instances": ["1g.10gb"] * 7}, ALL),
    ("gpus.gsp_firmware", "580.105.08", ALL),
    ("driver.loaded", "580.105.08", ALL),
    ("driver.flavour", "proprietary", ALL),
    ("driver.cuda", "13.1", ALL),
    ("cpu.architecture", "aarch64", ALL),
    ("gpus.power.limit_w", 650.0, EXACT),
    ("gpus.clocks.max.sm_mhz", 1755, EXACT),
    ("gpus.clocks.application", {"graphics_mhz": 1755}, EXACT),
    ("cpu.model", "Other CPU", PROCESSOR),
    ("cpu.flags", ["avx2"], PROCESSOR),
    # The same hardware at another time, in another slot, with another name.
    ("gpus.uuid", "GPU-x", set()),
    ("gpus.serial", "1", set()),
    ("gpus.clocks.current", {"sm_mhz": 1980}, set()),
    ("gpus.temperature.gpu_c", 80, set()),
    ("gpus.power.draw_w", 650.0, set()),
    ("gpus.memory.used_mib", 80000, set()),
    ("identity.hostname", "node2", set()),
    ("os.kernel.running", "6.12.2-amd64", set()),
]


@pytest.mark.parametrize(("path", "value", "expected"), NODE, ids=[row[0] for row in NODE])
def test_a_change_of_the_node_changes_these_keys(
    path: str, value: Any, expected: set[tuple[str, str]]
) -> None:
    assert changed(at(healthy(), path, value)) == expected


def other(name: str, **row: Any) -> dict[str, Json]:
    return {**LIBRARIES, name: {**LIBRARIES[name], **row}}


def of(*names: str) -> set[tuple[str, str]]:
    """The exact keys, and the portable ones of these caches."""
    return EXACT | {(name, strength) for name, strength in PAIRS if name in names}


PROGRAM: list[tuple[str, Json, set[tuple[str, str]]]] = [
    ("image", {"image": "sha256:" + "c" * 64}, EXACT),
    ("library version", {"libraries": other("torch", version="2.12.0")}, of("inductor")),
    ("library content", {"libraries": other("torch", sha256="9" * 64)}, of("inductor")),
    ("compiler content", {"libraries": other("triton", sha256="9" * 64)}, of("inductor")),
    ("unrelated library", {"libraries": other("numpy", version="2.5.0")}, EXACT),
    ("glibc", {"glibc": "2.41"}, ALL),
    ("Python ABI", {"python_abi": "cpython-313-x86_64-linux-gnu"}, ALL),
    ("builder option", {"options": {"fp16": "0"}}, ALL),
    ("environment", {"environment": {}}, ALL),
    ("source", {"source": "sha256:" + "d" * 64}, ALL),
    ("power policy", {"document": {"class": "h100", "policy": {"power_limit_watts": 650}}}, EXACT),
    (
        "persistence policy",
        {"document": {**CLASS, "policy": {**CLASS["policy"], "persistence_mode": True}}},
        set(),
    ),
]


@pytest.mark.parametrize(
    ("change", "expected"), [row[1:] for row in PROGRAM], ids=[row[0] for row in PROGRAM]
)
def test_a_change_of_the_program_changes_these_keys(
    change: Json, expected: set[tuple[str, str]]
) -> None:
    assert changed(healthy(), REQUEST._replace(**change)) == expected


def test_the_table_of_the_page_is_this_one() -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/cache-keys.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1:4]
        for line in page.splitlines()
        if line.startswith("| ") and line.count("|") == 4
    ]
    marks = {
        frozenset(ALL): "all",
        frozenset(EXACT): "exact",
        frozenset(PROCESSOR): "inductor, xla",
        frozenset(): "none",
    }
    shown = {name.strip(" `"): keys_.strip() for name, keys_, _ in rows}
    for path, _, expected in NODE:
        assert shown.get(path) == marks[frozenset(expected)], path


# -- unknown and missing values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpus.pci_id", unread("GPU is lost")),
        ("gpus.vbios", None),
        ("gpus.memory.total_mib", unread("x")),
        ("gpus.power", unread("x")),
        ("gpus.clocks.max", {"sm_mhz": unread("x")}),
        ("gpus.mig", unread("x")),
        ("gpus.mig", {"current": True, "instances": []}),
        ("driver", unread("x")),
        ("driver.cuda", unread("the GPU library was not asked")),
        ("cpu", None),
        ("gpus", []),
        ("gpus", unread("x")),
    ],
)
def test_an_unknown_value_makes_no_key(path: str, value: Any) -> None:
    capture = healthy() if path in ("gpus", "driver", "cpu") else at(healthy(), path, value)
    if path in ("gpus", "driver", "cpu"):
        capture[path] = value
    with pytest.raises(NodeError):
        components.components(capture, REQUEST)


def test_a_value_that_the_hardware_lacks_is_a_component() -> None:
    found = components.components(at(healthy(), "gpus.ecc", not_exposed("N/A")), REQUEST)
    assert found["device"]["ecc"] is None


def test_the_class_of_another_node_is_refused() -> None:
    with pytest.raises(NodeError, match="of class h100"):
        components.components(healthy(), REQUEST._replace(document=None))
    with pytest.raises(NodeError, match="of l4"):
        components.components(healthy(), REQUEST._replace(document={"class": "l4"}))


def test_gpus_that_differ_need_a_choice() -> None:
    capture = healthy()
    capture["gpus"][3]["power"]["limit_w"] = 600.0
    with pytest.raises(NodeError, match="--gpu"):
        components.components(capture, REQUEST)
    own, rest = (
        key.key("cuda", "exact", components.components(capture, REQUEST._replace(gpu=gpu)))
        for gpu in "30"
    )
    assert own != rest
    assert rest == key.key("cuda", "exact", components.components(healthy(), REQUEST))


def test_partitions_of_several_profiles_need_a_choice() -> None:
    capture = at(
        healthy(),
        "gpus.mig",
        {"current": True, "pending": True, "instances": ["1g.10gb", "3g.40gb"]},
    )
    with pytest.raises(NodeError, match="--mig"):
        components.components(capture, REQUEST)
    assert (
        components.components(capture, REQUEST._replace(mig="3g.40gb"))["device"]["mig"]
        == "3g.40gb"
    )


def test_a_simulated_node_has_keys_of_its_own() -> None:
    assert changed(at(healthy(), "simulated", True)) == ALL


def test_the_public_part_of_a_capture_makes_the_same_keys() -> None:
    assert keys(public(healthy())) == keys(healthy())


@pytest.mark.parametrize(
    ("cache", "strength", "change", "expected"),
    [
        ("triton", "portable", {}, "no document"),
        ("tensorrt", "portable", {}, "no document"),
        ("tensorrt", "exact", {"source": None}, "--source"),
        ("triton", "exact", {"image": None, "libraries": {}}, "--library triton"),
        ("triton", "exact", {"image": None, "glibc": None}, "--glibc"),
        ("inductor", "exact", {"image": None, "python_abi": None}, "--python-abi"),
        ("inductor", "portable", {"libraries": {}}, "--library torch"),
    ],
)
def test_a_key_without_what_it_needs_is_refused(
    cache: str, strength: str, change: Json, expected: str
) -> None:
    found = components.components(healthy(), REQUEST._replace(**change))
    with pytest.raises(NodeError, match=expected):
        key.document(cache, strength, found)


def test_every_variable_has_a_source_and_every_portable_key_a_document() -> None:
    for row in caches.CACHES.values():
        assert row.source, row.name
        assert row.portable is None or ":" in row.portable, row.name


# -- properties

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_sections = st.dictionaries(_texts, _values, max_size=3)
_components = st.fixed_dictionaries(
    {
        name: st.none() | _texts if name in ("image", "source") else _sections
        for name in key.SECTIONS
    }
)


@given(_values, _values)
def test_canonical_form_is_the_same_only_for_the_same_value(first: Any, second: Any) -> None:
    same = canonical.encoded(first) == canonical.encoded(second)
    assert same == (json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True))
    assert json.loads(json.dumps(first)) == first


@given(_components, _components, st.sampled_from(PAIRS))
def test_two_sets_of_components_never_share_a_path(
    first: Json, second: Json, pair: tuple[str, str]
) -> None:
    cache, strength = pair
    decide = [
        json.dumps(key.decisive(cache, strength, found), sort_keys=True)
        for found in (first, second)
    ]
    made = [key.key(cache, strength, found) for found in (first, second)]
    assert (made[0] == made[1]) == (decide[0] == decide[1])
    paths = {directory.path("/var/cache/gpu", {"key": name}) for name in made}
    assert len(paths) == len(set(decide))
    assert all(directory.NAME.match(name) for name in made)


@given(
    st.dictionaries(
        st.sampled_from([row[0] for row in NODE if row[2] == ALL]), _texts, min_size=1, max_size=3
    )
)
def test_devices_that_differ_never_share_a_directory(change: dict[str, str]) -> None:
    capture = healthy()
    for path, value in change.items():
        if path != "gpus.mig":
            capture = at(capture, path, value)
    readings = [
        json.dumps(components.components(found, REQUEST), sort_keys=True)
        for found in (capture, healthy())
    ]
    made = [keys(capture), keys(healthy())]
    assert (not made[0] & made[1]) == (readings[0] != readings[1])


@given(_components)
def test_explanation_names_exactly_the_differences(found: Json) -> None:
    first = {"cache": "inductor", "components": found}
    second = {"cache": "inductor", "components": {**found, "image": f"{found['image']}x"}}
    assert key.differences(first, first) == []
    assert [row[0::3] for row in key.differences(first, second)] == [("image", ("exact",))]


@given(_components, _components)
def test_explanation_is_empty_only_for_equal_components(first: Json, second: Json) -> None:
    rows = key.differences(
        {"cache": "xla", "components": first}, {"cache": "xla", "components": second}
    )
    assert (rows == []) == (canonical.encoded(first) == canonical.encoded(second))
    same = key.key("xla", "exact", first) == key.key("xla", "exact", second)
    assert same == (not any("exact" in row.strengths for row in rows))


def test_an_absent_value_is_not_null() -> None:
    empty: Json = {name: None if name in ("image", "source") else {} for name in key.SECTIONS}
    rows = key.differences(
        {"cache": "xla", "components": {**empty, "options": {"x": None, "y": "1"}}},
        {"cache": "xla", "components": {**empty, "options": {"y": "1"}}},
    )
    assert [row.path for row in rows] == ["options.x"]


# -- directories


@pytest.fixture
def document() -> Json:
    return key.document("cuda", "exact", components.components(healthy(), REQUEST))


def listed(place: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(place).iterdir())


def test_a_directory_is_made_once_and_verified_each_time(tmp_path: Path, document: Json) -> None:
    place = directory.prepare(str(tmp_path / "a/b"), document)
    assert place == f"{tmp_path}/a/b/{document['key']}"
    assert listed(place) == ["data", "goldnode-cache.json"]
    (Path(place) / "data/x").write_text("cached code")
    assert directory.prepare(str(tmp_path / "a/b"), document) == place
    assert listed(tmp_path / "a/b") == [document["key"]]
    assert directory.manifest(place)["components"] == document["components"]


def test_a_directory_of_another_process_is_used_after_its_verification(
    tmp_path: Path, document: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found nothing, and both rename: the second keeps the first one's files."""
    place = Path(directory.prepare(str(tmp_path), document))
    (place / "data/x").write_text("cached code")
    monkeypatch.setattr(os.path, "lexists", lambda name: False)
    assert directory.prepare(str(tmp_path), document) == str(place)
    assert (place / "data/x").read_text() == "cached code"
    assert listed(tmp_path) == [document["key"]]


def edit(place: Path) -> None:
    manifest = place / directory.MANIFEST
    found = json.loads(manifest.read_text())
    found["components"]["driver"]["version"] = "570.1"
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(found))


def exchange(place: Path) -> None:
    """The manifest of another key, which is whole."""
    found = key.document(
        "cuda", "exact", components.components(at(healthy(), "driver.loaded", "570.1"), REQUEST)
    )
    (place / directory.MANIFEST).chmod(0o644)
    (place / directory.MANIFEST).write_text(json.dumps(found))


def link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


def link_data(place: Path) -> None:
    (place / "data").rmdir()
    (place / "data").symlink_to("/tmp")


def empty(place: Path) -> None:
    (place / directory.MANIFEST).unlink()
    (place / directory.MANIFEST).touch()


def pipe(place: Path) -> None:
    (place / directory.MANIFEST).unlink()
    os.mkfifo(place / directory.MANIFEST)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda place: (place / directory.MANIFEST).unlink(), "cannot be read"),
    "empty manifest": (empty, "not JSON"),
    "edited manifest": (edit, "was changed"),
    "manifest of another key": (exchange, "of the key cuda-exact"),
    "link": (link, "is a link"),
    "data is a link": (link_data, "is a link"),
    "others may write": (lambda place: place.chmod(0o777), "written by others"),
    "others may write data": (lambda place: (place / "data").chmod(0o770), "written by others"),
    "manifest is a pipe": (pipe, "no file"),
    "belongs to another user": (
        lambda place: os.chown(place / "data", 4711, 4711),
        "belongs to user 4711",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_directory_is_never_used(name: str, tmp_path: Path, document: Json) -> None:
    damage, expected = DAMAGE[name]
    if name == "belongs to another user" and os.geteuid() != 0:
        pytest.skip("needs root")
    place = Path(directory.prepare(str(tmp_path), document))
    damage(place)
    (fault,) = directory.verify(str(place))[:1]
    assert expected in fault
    with pytest.raises(NodeError, match="is not used"):
        directory.prepare(str(tmp_path), document)


def test_a_directory_of_another_node_is_named_with_the_component(
    tmp_path: Path, document: Json
) -> None:
    place = directory.prepare(str(tmp_path), document)
    node = components.components(at(healthy(), "driver.loaded", "580.105.08"), KeyRequest(CLASS))
    assert directory.verify(place, node=node) == [
        "driver.version was 580.95.05, and is 580.105.08 here"
    ]
    assert directory.verify(place, node=components.components(healthy(), KeyRequest(CLASS))) == []


@pytest.mark.parametrize("root", ["", "cache", "./x", "/a\nb", "/a\x1b[2J", "~/x"])
def test_a_root_that_is_no_absolute_path_is_refused(root: str, document: Json) -> None:
    with pytest.raises(NodeError, match="absolute path"):
        directory.prepare(root, document)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "cuda",
        "cuda-exact-",
        "cuda-exact-" + "A" * 64,
        "cuda-exact-" + "a" * 64 + "\n",
        "x/../y",
    ],
)
def test_a_name_that_is_no_key_is_refused(name: str, tmp_path: Path) -> None:
    assert directory.verify(f"{tmp_path}/{name}") == ["its name is no key of a cache"]


def test_exports_are_quoted(tmp_path: Path) -> None:
    (line, comment) = directory.exports({"cuda": "/a b/$(reboot)'", "tensorrt": "/x"})
    assert line == "export CUDA_CACHE_PATH='/a b/$(reboot)'\"'\"'/data'"
    assert comment.startswith("# TensorRT plans: no variable")


# -- what the caller declares


@pytest.mark.parametrize(
    "text", ["cuda:12.4", "sha256:abc", "x@sha256:" + "g" * 64, "", "sha256:" + "A" * 64, "latest"]
)
def test_an_image_without_a_digest_is_refused(text: str) -> None:
    with pytest.raises(NodeError, match="a tag can move"):
        components.image(text)


def test_an_image_is_named_by_its_digest() -> None:
    assert components.image(f"registry.example/cuda:1@{IMAGE}") == IMAGE


@pytest.mark.parametrize("text", ["torch", "=1", "torch=", "../x=1", "torch=1@sha256:x", "a b=1"])
def test_malformed_library_is_refused(text: str) -> None:
    with pytest.raises(NodeError):
        components.library(text)


def test_libraries_are_known_by_version_digest_or_content(tmp_path: Path) -> None:
    (tmp_path / "ptxas").write_text("x")
    assert components.library("Py_Torch=1.0") == ("py-torch", {"version": "1.0", "sha256": None})
    assert components.library(f"a=1@{IMAGE}") == ("a", {"version": "1", "sha256": "a" * 64})
    name, row = components.library(f"ptxas=@{tmp_path}/ptxas")
    (tmp_path / "ptxas").write_text("y")
    assert (name, row["version"]) == ("ptxas", None)
    assert components.library(f"ptxas=@{tmp_path}/ptxas")[1] != row


def test_a_changed_file_of_a_distribution_changes_its_row(tmp_path: Path) -> None:
    for name, record in (("torch-2.11.0", "a,sha256=1,1"), ("Flash_Attn-2.0", "b,,")):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/RECORD").write_text(record)
    (tmp_path / "pip-1.dist-info").mkdir()  # a package of Debian
    (tmp_path / "torch").mkdir()
    first = components.installed(str(tmp_path))
    assert set(first) == {"torch", "flash-attn", "pip"}
    assert first["torch"]["version"] == "2.11.0"
    (tmp_path / "torch-2.11.0.dist-info/RECORD").write_text("a,sha256=2,1")
    second = components.installed(str(tmp_path))
    assert {name for name in first if first[name] != second[name]} == {"torch"}


def test_an_image_describes_its_libraries() -> None:
    text = {
        "schema": "goldnode.image/1",
        "recipe": IMAGE,
        "parts": {"cudnn": "9.1", "nccl": {"version": "2.30"}},
        "wheels": [{"name": "torch", "version": "2.11.0", "sha256": "1" * 64}],
    }
    found = components.described(json.dumps(text).encode(), "image.json")
    assert found["recipe"] == f"recipe:{IMAGE}"
    assert found["libraries"] == {
        "cudnn": {"version": "9.1", "sha256": None},
        "nccl": {"version": "2.30", "sha256": None},
        "torch": {"version": "2.11.0", "sha256": "1" * 64},
    }
    for broken in (b"", b"[]", b"{}", b"[" * 100000):
        with pytest.raises(NodeError, match="not a description"):
            components.described(broken, "image.json")


# -- key documents from others


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "goldnode.cache-key/2"},
        {"cache": "../etc"},
        {"cache": ["cuda"]},
        {"strength": "none"},
        {"components": {}},
        {"components": None},
        {"key": "cuda-exact-" + "0" * 64},
    ],
)
def test_a_key_that_was_changed_is_refused(change: Json, document: Json) -> None:
    assert key.fault_of(document) is None
    with pytest.raises(NodeError):
        key.parsed(json.dumps({**document, **change}).encode(), "x")


@given(st.binary(max_size=64) | _values.map(lambda value: json.dumps(value).encode()))
def test_a_file_that_is_no_key_is_refused(data: bytes) -> None:
    with pytest.raises(NodeError):
        key.parsed(data, "x")


def test_floats_and_lone_surrogates_have_no_key(document: Json) -> None:
    for value in (0.1, float("nan"), "\ud800", {1: 2}):
        found = {**document["components"], "options": {"x": value}}
        with pytest.raises(NodeError, match="canonical"):
            key.key("cuda", "exact", found)


# -- the command


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    capture = healthy()
    capture["identity"]["class"] = None
    (tmp_path / "capture.json").write_text(json.dumps(capture))
    return tmp_path / "capture.json"


def call(*words: str) -> int:
    return program.main(["cache", *words])


def test_key_path_and_verify_agree(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("cuda", "triton", "--from", str(recorded), "--image", IMAGE)
    assert call("key", *words) == 0
    names = capsys.readouterr().out.split()
    assert call("path", *words, "--caches", str(tmp_path / "caches")) == 0
    places = capsys.readouterr().out.split()
    assert places == [f"{tmp_path}/caches/{name}" for name in names]
    assert call("verify", *places, "--from", str(recorded)) == 0
    assert capsys.readouterr().out == "".join(f"{place}: ok\n" for place in places)
    (Path(places[0]) / directory.MANIFEST).unlink()
    assert call("verify", *places, "--alone", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [bool(row["faults"]) for row in found["directories"]] == [True, False]


def test_explain_names_what_differs(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = json.loads(recorded.read_text())
    (tmp_path / "other.json").write_text(
        json.dumps(at(at(capture, "driver.loaded", "580.105.08"), "gpus.power.limit_w", 650.5))
    )
    for name in ("capture", "other"):
        assert call("key", "cuda", "--format", "json", "--from", f"{tmp_path}/{name}.json") == 0
        (tmp_path / f"{name}.key").write_text(capsys.readouterr().out)
    assert call("explain", f"{tmp_path}/capture.key", f"{tmp_path}/capture.key") == 0
    assert "are equal" in capsys.readouterr().out
    assert call("explain", f"{tmp_path}/capture.key", f"{tmp_path}/other.key") == 1
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1:] == [
        ["device.power_limit_w", "700", "650.5", "exact"],
        ["driver.version", "580.95.05", "580.105.08", "exact", "and", "portable"],
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["key", "cuda", "--from", "nowhere"],
        ["key", "cuda", "--from", "{capture}", "--image", "cuda:12"],
        ["key", "cuda", "--from", "{capture}", "--class", "{capture}"],
        ["key", "cuda", "--from", "{capture}", "--option", "x"],
        ["key", "cuda", "--from", "{capture}", "--option", "x=1", "--option", "x=2"],
        ["key", "tensorrt", "--from", "{capture}", "--source", "nowhere"],
        ["key", "cuda", "--from", "{capture}", "--libraries", "nowhere"],
        ["key", "cuda", "--from", "{capture}", "--gpu", "9"],
        ["path", "cuda", "--from", "{capture}", "--caches", "here"],
        ["explain", "{capture}", "{capture}"],
        ["explain", "nowhere", "nowhere"],
        ["explain", "/", "/"],
        ["verify", "/nowhere", "--from", "nowhere"],
    ],
)
def test_a_failure_of_the_command_is_could_not_check(
    words: list[str], recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*(word.format(capture=recorded) for word in words)) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("goldnode-node: ")
    assert captured.err.count("\n") == 1


def test_a_manifest_is_for_reading_only(tmp_path: Path, document: Json) -> None:
    place = directory.prepare(str(tmp_path), document)
    assert stat.S_IMODE((Path(place) / directory.MANIFEST).stat().st_mode) == 0o444
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700


# -- a real GPU

RECORDED = Path(__file__).parents[3] / "cases/recorded/h200_x1_580.159.04"


def recorded_h200(name: str) -> Json:
    """A capture of a real H200. It is older than the fields of the processor, which are added."""
    found: Json = json.loads((RECORDED / name).read_text(encoding="utf-8"))
    found["cpu"] |= {"architecture": "x86_64", "flags": ["avx512f"]}
    found["identity"]["class"] = None
    return found


def test_a_real_gpu_has_every_component_and_the_same_key_idle_and_under_load() -> None:
    idle, busy = (
        components.components(recorded_h200(name), KeyRequest())
        for name in ("capture.json", "capture-load.json")
    )
    assert (idle["device"]["sku"], idle["device"]["mig"], idle["driver"]["version"]) == (
        "NVIDIA H200",
        "off",
        "580.159.04",
    )
    assert not any(value is None for part in ("device", "driver") for value in idle[part].values())
    assert key.key("cuda", "exact", idle) == key.key("cuda", "exact", busy)
    assert key.key("cuda", "exact", idle) != key.key(
        "cuda", "exact", components.components(healthy(), REQUEST)
    )


def test_a_capture_of_an_earlier_version_makes_no_key() -> None:
    found = recorded_h200("capture.json")
    del found["cpu"]["architecture"]
    with pytest.raises(NodeError, match="capture of this version"):
        components.components(found, KeyRequest())
