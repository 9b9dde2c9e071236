"""The manifests of integrations/kubernetes against real programs: kustomize of Debian's kubectl, Helm's own library, published schemas.

No cluster is asked. kubernetes-validate and helm-python-sdk (Helm's Go code behind ctypes) come from the package index.
"""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.e2e.test_kubectl import program  # noqa: F401 - a fixture: kubectl of three releases

from goldnode.cli import main
from goldnode.core.program_file import build

pytestmark = [pytest.mark.real, pytest.mark.long]

PLACE = Path(__file__).parents[2] / "integrations/kubernetes"
IMAGE = "registry.example.net/python@sha256:" + 64 * "0"
VALIDATE, HELM = "kubernetes-validate==1.37.0", "helm-python-sdk==0.2.2"
# Kubernetes without appArmorProfile, and those with it that have published schemas here.
BEFORE, SINCE = ("1.29",), ("1.30", "1.33", "1.36", "1.37")
LIMIT = 1024 * 1024  # bytes of a config map or secret (Kubernetes' documentation, "ConfigMaps")
ANNOTATIONS = (
    256 * 1024
)  # bytes of all annotations of an object; `kubectl apply` stores the object in one


def installed(requirement: str, directory: Path) -> dict[str, str]:
    """Install a package into a directory; the environment in which Python finds it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--target",
        str(directory),
        requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # The validator is a package of the index, and a run without a network has none. CI has one.
        pytest.skip(f"{requirement} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    return {"PYTHONPATH": str(directory), "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(VALIDATE, tmp_path_factory.mktemp("validate"))


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(HELM, tmp_path_factory.mktemp("helm"))


def documents(text: str) -> list[dict[str, Any]]:
    return [row for row in yaml.safe_load_all(text) if row]


def manifest() -> list[dict[str, Any]]:
    return documents((PLACE / "check.yaml").read_text())


_RENDER = """
import json, sys, helm_python
values, name, namespace = json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
chart = helm_python.Chart.load(sys.argv[1])
try:
    print("---".join("\\n" + text for text in chart.render(values, name=name, namespace=namespace).values()))
except helm_python.HelmError as error:
    sys.exit(str(error))
"""


def rendered(
    helm: dict[str, str], values: dict[str, Any], name: str = "goldnode-check"
) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-c",
        _RENDER,
        str(PLACE / "chart"),
        json.dumps(values),
        name,
        "goldnode",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=helm)


def test_helm_renders_the_manifest_itself(helm: dict[str, str]) -> None:
    done = rendered(helm, {"image": "PYTHON_IMAGE"})
    assert done.returncode == 0, done.stderr
    assert documents(done.stdout) == manifest()


def test_values_of_the_chart_reach_the_manifest(helm: dict[str, str]) -> None:
    values = {"image": IMAGE, "taint": True, "class": True, "port": 9000, "privileged": True}
    values |= {"runtimeClassName": "nvidia", "nodeSelector": {"gpu": "yes"}, "tolerations": []}
    rows = {row["kind"]: row for row in documents(rendered(helm, values, "other").stdout)}
    assert rows["ClusterRole"]["rules"][0]["verbs"] == ["get", "patch"]
    spec = rows["DaemonSet"]["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert container["command"][3:] == [
        "--port",
        "9000",
        "--class",
        "/goldnode/class.json",
        "--taint",
    ]
    assert container["securityContext"] == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "privileged": True,
    }
    assert (spec["runtimeClassName"], spec["nodeSelector"], spec["tolerations"]) == (
        "nvidia",
        {"gpu": "yes"},
        [],
    )
    assert {row["metadata"]["name"] for row in rows.values()} == {"other"}
    without = rendered(helm, {})
    assert without.returncode != 0
    assert "image: name an image with Python 3.9 or newer" in without.stderr


def test_the_program_does_not_fit_into_a_chart() -> None:
    """Helm stores chart and manifest, compressed, in one secret: with the program in both it is refused."""
    once = base64.b64encode(build()).decode()
    release = json.dumps({"chart": {"files": [{"data": once}]}, "manifest": once})
    assert len(base64.b64encode(gzip.compress(release.encode()))) > LIMIT
    assert len(build()) < LIMIT, "a config map takes it"


def test_kustomize_writes_the_manifest_and_the_program(program: Path, tmp_path: Path) -> None:  # noqa: F811
    words = ["package", "kubernetes", "--out", str(tmp_path), "--image", IMAGE]
    assert CliRunner().invoke(main, words).exit_code == 0
    command = [str(program), "kustomize", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = documents(done.stdout)
    by_kind = {row["kind"]: row for row in rows}
    # `namespace:` of a kustomization would have moved the role for events, which are in `default`.
    assert by_kind["Role"]["metadata"]["namespace"] == "default"
    config = by_kind["ConfigMap"]
    assert base64.b64decode(config["binaryData"]["goldnode-node"]) == build()
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == IMAGE
    # The hash in the name restarts the pods when the program changes.
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert config["metadata"]["name"].startswith("goldnode-check-")
    # Why the command that is printed says --server-side.
    assert len(json.dumps(config)) > ANNOTATIONS


@pytest.mark.parametrize("version", [*BEFORE, *SINCE])
def test_manifests_are_valid_by_the_published_schemas(
    version: str, validator: dict[str, str], helm: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "chart.yaml").write_text(rendered(helm, {"image": IMAGE, "taint": True}).stdout)
    files = [*sorted(PLACE.glob("*.yaml")), tmp_path / "chart.yaml"]
    since_130 = {
        "check.yaml": "appArmorProfile",
        "chart.yaml": "appArmorProfile",
        "labels.yaml": "validatingadmissionpolicy",
    }
    for file in files:
        # The first is no object of the API, the second the mounts for a DaemonSet of others.
        if file.name in ("kustomization.yaml", "node-problem-detector.yaml"):
            continue
        command = [
            sys.executable,
            "-m",
            "kubernetes_validate",
            "--strict",
            "-k",
            version,
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=validator)
        text = done.stdout + done.stderr
        if version in BEFORE and file.name in since_130:
            assert since_130[file.name].lower() in text.lower()
        else:
            assert done.returncode == 0, f"{file.name}: {text}"
