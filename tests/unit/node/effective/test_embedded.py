"""Templates of k3s and RKE2 as people have them, judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.node.effective import embedded
from goldnode.node.ground.host import Host

BASE = '{{ template "base" . }}\n'
V2, V3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
NEW, OLD = embedded.TEMPLATES


def observed(root: Path, **files: str) -> dict[str, object]:
    folder = root / embedded.FOLDERS[0].lstrip("/")
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".").replace("_", "-")).write_text(text)
    return embedded.observed(Host(str(root)))[0]


def program(root: Path) -> None:
    file = root / "usr/bin/nvidia-container-runtime"
    file.parent.mkdir(parents=True)
    file.write_text("")


@pytest.mark.parametrize(
    "template",
    [
        BASE,
        f"{BASE}[{V3}.containerd.runtimes.'custom']\n  runtime_type = 'io.containerd.runc.v2'\n",
        # A key that the base does not set in this table unless k3s has a default runtime.
        f'{BASE}[{V3}.containerd]\n  default_runtime_name = "nvidia"\n',
        f"{BASE}[{V3}.cdi]\n  enable = true\n[[proxy_plugins]]\n",
        # The base of k3s, copied: tables and settings that it renders itself.
        f"version = 3\n[{V3}]\n  enable_selinux = {{{{ .NodeConfig.SELinux }}}}\n[{V3}.containerd.runtimes.runc]\n",
        f"{BASE}{{{{ range $k, $v := .ExtraRuntimes }}}}\n[{V3}.containerd.runtimes.'{{{{ $k }}}}']\n{{{{ end }}}}\n",
    ],
)
def test_template_that_works_has_no_fault(template: str, tmp_path: Path) -> None:
    program(tmp_path)
    seen = observed(tmp_path, config_v3__toml__tmpl=template)
    assert (seen["faults"], seen["notes"]) == ([], [])


@pytest.mark.parametrize(
    ("file", "template", "wanted"),
    [
        (NEW, f"{BASE}[{V3}]\n", ":2 declares"),
        (NEW, f"{BASE}\n[{V3}.containerd.runtimes.runc.options]\n", ":3 declares"),
        (NEW, f"{BASE}[{V3}.containerd.runtimes.nvidia]\n", ":2 declares"),
        (NEW, f'{BASE}[{V2}.containerd.runtimes."nvidia"]\n', "name of version 2"),
        (OLD, f"{BASE}[{V2}.containerd]\n", ":2 declares"),
        (OLD, f'{BASE}[{V2}.containerd.runtimes."nvidia".options]\n', ":2 declares"),
        (OLD, "[plugins.cri.containerd]\n  x = {{ .A }}\n", "version 1"),
        (OLD, f"[{V2}.cni]\n  x = {{{{ .A }}}}\n[{V2}.'cni']\n", ":3 declares"),
    ],
)
def test_template_that_stops_containerd_is_named_with_its_line(
    file: str, template: str, wanted: str, tmp_path: Path
) -> None:
    program(tmp_path)
    key = "config_v3__toml__tmpl" if file == NEW else "config__toml__tmpl"
    faults = observed(tmp_path, **{key: template})["faults"]
    assert isinstance(faults, list)
    assert len(faults) == 1
    assert wanted in faults[0]
    assert file in faults[0]


def test_runtime_of_the_base_is_there_only_where_its_program_is(tmp_path: Path) -> None:
    template = f"{BASE}[{V3}.containerd.runtimes.nvidia]\n"
    assert observed(tmp_path, config_v3__toml__tmpl=template)["faults"] == []


def test_second_template_and_a_copy_are_noted(tmp_path: Path) -> None:
    seen = observed(tmp_path, config_v3__toml__tmpl="version = 3\n", config__toml__tmpl=BASE)
    notes = str(seen["notes"])
    assert "config.toml.tmpl is not read: config-v3.toml.tmpl is there" in notes
    assert "no template but a copy" in notes


def test_runtime_in_effect_is_read_from_the_generated_file(tmp_path: Path) -> None:
    seen = observed(tmp_path, config__toml=f"[{V3}.containerd.runtimes.'nvidia']\n")
    assert seen["nvidia"] is True
    assert embedded.observed(Host(str(tmp_path / "nothing"))) == []
