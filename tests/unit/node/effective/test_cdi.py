# ruff: noqa: E501
"""CDI specs as programs and people write them, files that are none, and specs against the devices of a node."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from goldnode.node.effective import yamltext
from goldnode.node.effective.cdi import CdiSpec, differences, read_cdi, winners

NVIDIA = """\
---
cdiVersion: 0.7.0
containerEdits:
  additionalGids:
    - 44
  deviceNodes:
    - path: /dev/nvidiactl
  hooks:
    - args: [nvidia-cdi-hook, create-symlinks]
      hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
  mounts:
    - containerPath: /inside/libcuda.so.535.2
      hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.2
      options: [ro]
devices:
  - containerEdits:
      deviceNodes:
        - hostPath: /dev/nvidia0
          path: /dev/nvidia0
    name: "0"
  - name: all
kind: nvidia.com/gpu
"""
# nvidia-ctk 1.12 to 1.19 by the version that it writes: keys in order of the alphabet and lists at the column
# of their key (1.16 and before), four columns (1.17 and later); WSL has one device node, 0.5.0 a root of the
# driver, 0.6.0 the comments that a person adds.
FORMS = {
    "0.3.0": "---\ncdiVersion: 0.3.0\ncontainerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n  hooks:\n  - args:\n    - nvidia-cdi-hook\n    - create-symlinks\n    - --link\n    - /usr/lib/wsl/drivers/nv.inf_amd64_01/nvidia-smi::/usr/bin/nvidia-smi\n    hookName: createContainer\n    path: /usr/bin/nvidia-cdi-hook\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/dxg\n  name: all\nkind: nvidia.com/gpu\n",
    "0.5.0": '---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "0"\n      containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia0\n              hostPath: /run/nvidia/driver/dev/nvidia0\n    - name: all\n      containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia0\n              hostPath: /run/nvidia/driver/dev/nvidia0\ncontainerEdits:\n    env:\n        - NVIDIA_VISIBLE_DEVICES=void\n    deviceNodes:\n        - path: /dev/nvidiactl\n          hostPath: /run/nvidia/driver/dev/nvidiactl\n    hooks:\n        - hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n          args:\n            - nvidia-cdi-hook\n            - enable-cuda-compat\n            - --host-driver-version=999.88.77\n          env:\n            - NVIDIA_CTK_DEBUG=false\n',
    "0.6.0": 'cdiVersion: 0.6.0\nkind: "nvidia.com/gpu"   # ours\ndevices:\n  - name: "0"   # the first board\n    containerEdits:\n      deviceNodes: [{path: /dev/nvidia0, major: 195,\n        minor: 0}]   # over two lines\ncontainerEdits: {deviceNodes: [{path: /dev/nvidiactl}]}\n',
    "0.7.0": NVIDIA,
    "0.8.0": '---\ncdiVersion: 0.8.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "1:0"\n      containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia1\n              major: 195\n              minor: 1\n              fileMode: 438\n              permissions: rwm\n            - path: /dev/nvidia-caps/nvidia-cap21\n              major: 234\n              minor: 21\n              fileMode: 292\n              permissions: rw\n',
}  # fmt: skip


def judged(document: Any) -> CdiSpec:
    """The spec of a document that PyYAML has read."""
    return read_cdi(json.dumps(document))


def test_host_paths_of_a_spec_in_yaml() -> None:
    spec = read_cdi(NVIDIA)
    assert (spec.kind, spec.devices, spec.error) == ("nvidia.com/gpu", ["0", "all"], None)
    assert spec.paths == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/usr/bin/nvidia-cdi-hook",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.535.2",
    ]


@pytest.mark.parametrize("version", FORMS)
def test_forms_of_the_toolkit(version: str) -> None:
    spec = read_cdi(FORMS[version])
    assert spec == judged(yaml.safe_load(FORMS[version]))
    assert spec.kind == "nvidia.com/gpu"


@pytest.mark.parametrize(
    "text",
    ["[]", "1", "", '{"devices": [1]}', '{"containerEdits": {"deviceNodes": [{}]}}', '{"containerEdits": [1]}', "cdiVersion: 0.6.0\n", "kind: [a]\n"],
)  # fmt: skip
def test_text_without_a_spec_has_no_kind(text: str) -> None:
    spec = read_cdi(text)
    assert (spec.kind, spec.error) == (None, "no CDI spec")


def document(chance: random.Random) -> dict[str, Any]:
    """A spec with random devices, values and depth. Equal parts are the same object: PyYAML writes anchors."""
    words = ["ro", "nosuid", "a b", "it's", 'say "x"', "k=v", "null", "yes", "12", "1.5", "- x", "#x", "a #b", "", "x: y", "ü", "long " * 30]  # fmt: skip

    def edits(number: int) -> dict[str, Any]:
        node: dict[str, Any] = {"path": f"/dev/nvidia{number}"}
        if chance.random() < 0.5:
            node |= {"major": 195, "minor": number, "fileMode": 438, "permissions": "rwm"}
        if chance.random() < 0.3:
            node["hostPath"] = f"/run/nvidia/driver/dev/nvidia{number}"
        part: dict[str, Any] = {"deviceNodes": [node]}
        if chance.random() < 0.5:
            part["hooks"] = [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": chance.sample(words, 4)}]  # fmt: skip
        if chance.random() < 0.5:
            part["mounts"] = [{"hostPath": f"/usr/lib/lib{number}.so.1", "containerPath": "/x", "options": chance.sample(words, 3)}]  # fmt: skip
        return part

    shared = edits(9)
    devices = [
        {"name": str(n), "containerEdits": chance.choice([shared, edits(n)])}
        for n in range(chance.randint(1, 4))
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": chance.choice(["nvidia.com/gpu", "amd.com/gpu"]),
        "annotations": {"a b": chance.choice(words), "empty": {}, "none": chance.choice(words)},
        "devices": devices,
        "containerEdits": chance.choice([shared, edits(8), {}]),
    }


def written(chance: random.Random, value: dict[str, Any]) -> str:
    """The document as text, in one of the styles of PyYAML, with comments of a person, or as JSON."""
    if chance.random() < 0.1:
        return json.dumps(value, indent=chance.choice([None, 1, 4]))
    text = yaml.safe_dump(
        value,
        default_flow_style=chance.choice([None, True, False, False]),
        indent=chance.choice([2, 4]),
        width=chance.choice([30, 80, 10_000]),
        sort_keys=chance.choice([True, False]),
        allow_unicode=chance.choice([True, False]),
        explicit_start=chance.choice([True, False]),
    )
    lines = [line + chance.choice(["", "", "   # why"]) if line.endswith((":", "}", "/gpu")) else line for line in text.splitlines()]  # fmt: skip
    lines[-1:] = [lines[-1], chance.choice(["", "...", "---\nkind: another\n", "# end"])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(120))
def test_generated_specs_are_read_as_pyyaml_reads_them(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test, no secret
    text = written(chance, document(chance))
    whole = next(iter(yaml.safe_load_all(text)))
    if not text.startswith(("{\n", '{"')):
        assert yamltext.read(text) == whole, text
    assert read_cdi(text) == judged(whole)


ANCHORS = """\
common: &common
  deviceNodes: [{path: /dev/nvidia0}]
devices:
- &first
  name: "0"
  containerEdits: *common
- <<: *first
  name: "1"
- name: 2
  containerEdits:
    <<: [*common]
    mounts:
    -
      hostPath: "/a
        b"
    - hostPath: 'it''s'
kind: nvidia.com/gpu
"""


def test_anchors_aliases_and_merges() -> None:
    assert yamltext.read(ANCHORS) == yaml.safe_load(ANCHORS)
    assert read_cdi(ANCHORS).devices == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: |\n  x\n", 1), ("a: !!str 1\n", 1), ("a:\n\tc: 1\n", 2), ("a: 1\na: 2\n", 2), ("a: [1\n", 2),
        ("a: b: c\n", 1), ("a: [b, &c d]\n", 1), ("? x\n: y\n", 1), ("a: 1\n   b: 2\n", 1), ("a:\n  - 1\n b: 2\n", 3), ("- a\nb: 1\n", 2),
        ('"a\n', 2), ('a: "x" y\n', 1), ("--- a: b\n", 1), ("a: @x\n", 1), ("a: {b}\n", 1), ("a: *b\n", 1),
        ("a: b\n\n  c\n", 3), ("a: {b: 1, b: 2}\n", 1), ("a: 1\n<<: 2\n", 2), ("a: [b c: d]\n", 1),
    ],
)  # fmt: skip
def test_unknown_form_is_never_an_empty_spec(text: str, line: int) -> None:
    with pytest.raises(yamltext.YamlError) as refused:
        yamltext.read(text)
    assert refused.value.line == line
    spec = read_cdi(text)
    assert spec.kind is None
    assert spec.error
    assert spec.error.startswith(f"line {line}: ")


@pytest.mark.parametrize(
    ("specs", "want"),
    [
        ([("/etc/cdi/a.yaml", "01"), ("/var/run/cdi/b.yaml", "1")], {"0": ["/etc/cdi/a.yaml"], "1": ["/var/run/cdi/b.yaml"]}),
        ([("/var/run/cdi/b.yaml", "1"), ("/etc/cdi/a.yaml", "1")], {"1": ["/var/run/cdi/b.yaml"]}),
        ([("/etc/cdi/a.yaml", "1"), ("/etc/cdi/b.json", "1")], {"1": ["/etc/cdi/a.yaml", "/etc/cdi/b.json"]}),
        # A conflict in the first directory also takes the device of the second away.
        ([("/etc/cdi/a.yaml", "1"), ("/etc/cdi/b.json", "1"), ("/var/run/cdi/c.yaml", "1")],
         {"1": ["/etc/cdi/a.yaml", "/etc/cdi/b.json", "/var/run/cdi/c.yaml"]}),
    ],
)  # fmt: skip
def test_the_file_that_a_device_comes_from(
    specs: list[tuple[str, str]], want: dict[str, list[str]]
) -> None:
    assert winners(specs) == want


def node(root: Path, *names: str) -> str:
    """A node with these files, which may be device nodes of NVIDIA."""
    for name in names:
        (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / name.lstrip("/")).touch()
    return str(root)


def instance(root: Path, minor: int) -> None:
    """A MIG instance as the driver shows it."""
    place = root / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{minor}/access"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")


def spec(*paths: str, **numbers: tuple[int, int]) -> CdiSpec:
    return CdiSpec("nvidia.com/gpu", ["all"], paths, numbers)


def test_spec_without_uvm_where_the_node_has_it(tmp_path: Path) -> None:
    lacks = ["/dev/nvidia-uvm is not in it, without which CUDA does not start"]
    root = node(tmp_path, "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert differences(spec("/dev/nvidia0", "/dev/nvidiactl"), root) == lacks
    assert differences(spec("/run/nvidia/driver/dev/nvidia0"), root) == lacks
    assert differences(spec("/dev/nvidia0", "/dev/nvidia-uvm"), root) == []
    assert differences(spec("/dev/dxg"), root) == []
    (tmp_path / "dev/nvidia-uvm").unlink()
    assert differences(spec("/dev/nvidia0", "/dev/nvidiactl"), root) == []


def test_number_of_a_device_that_has_another_now() -> None:
    have = Path("/dev/null").stat().st_rdev
    major, minor = os.major(have), os.minor(have)
    right = CdiSpec("nvidia.com/gpu", ["0"], ["/dev/null"], {"/dev/null": (major, minor)})
    stale = right._replace(numbers={"/dev/null": (510, 0), "/dev/not-there": (1, 1)})
    assert differences(right, "/") == []
    assert differences(stale, "/") == [f"/dev/null is {major}:{minor}, and the spec has 510:0"]


def test_mig_instance_that_is_gone(tmp_path: Path) -> None:
    caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, 21, 30)]
    root = node(tmp_path, *caps)
    assert differences(spec(*caps), root) == []  # no driver is there to ask
    instance(tmp_path, 21)
    assert differences(spec(*caps), root) == [
        "/dev/nvidia-caps/nvidia-cap30 is of a MIG instance that is gone"
    ]
    instance(tmp_path, 30)
    assert differences(spec(*caps), root) == []
