"""What is read of an image's name, its metadata and requirements files; what is left open is told, what cannot be is refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from goldnode.classdoc.load import load_catalog
from goldnode.compat import workloads
from goldnode.compat.model import Workload
from goldnode.core.errors import CatalogError, WorkloadError

DIGEST = "sha256:" + "a" * 64


def fields(workload: Workload, *names: str) -> dict[str, Any]:
    return {name: getattr(workload, name) for name in names}


# -- names


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("python", (None, "python", None, None)),
        (
            "nvidia/cuda:12.4.1-base-ubuntu22.04",
            (None, "nvidia/cuda", "12.4.1-base-ubuntu22.04", None),
        ),
        (
            "registry.example/nvidia/pytorch:24.05-py3",
            ("registry.example", "nvidia/pytorch", "24.05-py3", None),
        ),
        ("localhost/x", ("localhost", "x", None, None)),
        ("reg:5000/a/b/c:1@" + DIGEST, ("reg:5000", "a/b/c", "1", DIGEST)),
        ("nvidia/cuda@" + DIGEST, (None, "nvidia/cuda", None, DIGEST)),
    ],
)
def test_image_reference_is_parsed_into_its_parts(text: str, parts: tuple[str | None, ...]) -> None:
    found = workloads.parse_reference(text)
    assert (found.registry, found.name, found.tag, found.digest) == parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA/cuda:12", 'its name "NVIDIA/cuda" is not lower-case'),
        ("nvidia/cuda:", 'its tag "" is not'),
        ("nvidia/cuda:a b", 'its tag "a b" is not'),
        ("nvidia/cuda@sha256:12", "is not sha256: and 64"),
        ("", "is not lower-case words"),
        ("https://registry.example/nvidia/cuda:12", "is not an image reference"),
    ],
)
def test_malformed_image_reference_is_an_error(text: str, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected):
        workloads.image(text)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04",
            {
                "cuda": "12.4.1",
                "cudnn": "9.1.0.70",
                "nccl": "2.21.5",
                "os": "ubuntu 22.04",
                "forward_compat": True,
            },
        ),
        (
            "nvidia/cuda:11.8.0-cudnn8-devel-ubuntu20.04",
            {"cuda": "11.8.0", "cudnn": "8.9.6.50", "nccl": None},
        ),
        (
            "nvidia/cuda:12.4.1-base-ubi8",
            {"cuda": "12.4.1", "cudnn": None, "nccl": None, "os": "ubi 8"},
        ),
        ("nvidia/cuda:13.2.0-base-ubuntu24.04", {"cuda": "13.2.0", "forward_compat": None}),
        (
            "mirror.example:5000/hub/nvidia/cuda:12.4.1-base-ubuntu22.04@" + DIGEST,
            {"cuda": "12.4.1", "repository": "nvidia/cuda"},
        ),
        (
            "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
            {"cuda": "12.4", "frameworks": {"torch": "2.5.1+cu124"}, "forward_compat": False},
        ),
        (
            "rocm/pytorch:rocm6.2.3_ubuntu22.04_py3.10_pytorch_release_2.3.0",
            {
                "rocm": "6.2.3",
                "os": "ubuntu 22.04",
                "python": "3.10",
                "frameworks": {"torch": "2.3.0+rocm6.2.3"},
            },
        ),
        (
            "rocm/tensorflow:rocm6.2-py3.9-tf2.16.1-dev",
            {"rocm": "6.2", "python": "3.9", "frameworks": {"tensorflow": "2.16.1"}},
        ),
        ("rocm/dev-ubuntu-22.04:6.2.4-complete", {"rocm": "6.2.4", "os": "ubuntu 22.04"}),
        (
            "tensorflow/tensorflow:2.16.1-gpu-jupyter",
            {"frameworks": {"tensorflow": "2.16.1"}, "library_cuda": {"tensorflow": "12"}},
        ),
        ("tensorflow/tensorflow:2.16.1", {"frameworks": {}, "cuda": None}),
        ("vllm/vllm-openai:v0.6.3.post1", {"frameworks": {"vllm": "0.6.3.post1"}}),
        ("vllm/vllm-openai:v0.11.0-aarch64", {"architecture": "arm64"}),
    ],
)
def test_known_image_name_gives_its_versions(reference: str, expected: dict[str, Any]) -> None:
    found = workloads.of_text(reference)
    assert fields(found, *expected) == expected
    assert found.subject == f"image {reference}"
    assert found.reports == ()


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("pytorch/pytorch:latest", 'the tag "latest", which is moved with every release'),
        ("tensorflow/tensorflow:latest-gpu", "moved with every release"),
        ("vllm/vllm-openai", 'the tag "latest"'),
        ("nvidia/cuda:oddly-named", "does not read like 12.4.1-cudnn-runtime-ubuntu22.04"),
        ("nvidia/cuda@" + DIGEST, "by digest only"),
        (
            "registry.example/nvidia/pytorch:24.05-py3",
            "no document about the contents of this release",
        ),
        ("team/training:7", "no naming scheme that is known"),
        ("nvidia/cuda:13.1.0-cudnn-runtime-ubuntu24.04", "which cuDNN the image holds"),
    ],
)
def test_name_that_leaves_something_open_reports_it(reference: str, expected: str) -> None:
    (report,) = workloads.image(reference).reports
    assert (report.rule, report.severity) == ("workload-told", "unknown")
    assert expected in report.message
    assert report.remedy is not None
    assert "state what it holds in the class" in report.remedy


# -- metadata

ENV = [
    "PATH=/usr/bin",
    "CUDA_VERSION=12.4.1",
    "NV_CUDA_COMPAT_PACKAGE=cuda-compat-12-4",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471",
    "NV_CUDNN_VERSION=9.1.0.70-1",
    "NV_LIBNCCL_PACKAGE=libnccl2=2.21.5-1+cuda12.4",
    "PYTHON_VERSION=3.12.4",
]
LABELS = {
    "org.opencontainers.image.ref.name": "ubuntu",
    "org.opencontainers.image.version": "22.04",
}
OCI = {
    "architecture": "arm64",
    "os": "linux",
    "config": {"Env": ENV, "Labels": LABELS},
    "history": [{"created_by": "RUN apt"}],
}
EXPECTED = {
    "cuda": "12.4.1",
    "cudnn": "9.1.0.70",
    "nccl": "2.21.5",
    "python": "3.12.4",
    "os": "ubuntu 22.04",
    "forward_compat": True,
    "require_driver": "cuda>=12.4 brand=tesla,driver>=470,driver<471",
    "reports": (),
}


def blob(document: object) -> tuple[str, bytes]:
    import hashlib

    data = json.dumps(document).encode()
    return "sha256:" + hashlib.sha256(data).hexdigest(), data


def layout(config: object) -> dict[str, bytes]:
    """The files of an OCI layout whose index names an attestation, an index of two architectures, and in that the image."""
    config_digest, config_data = blob(config)
    manifest_digest, manifest_data = blob({"config": {"digest": config_digest}, "layers": []})
    other = {"digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "s390x"}}
    inner_digest, inner_data = blob(
        {
            "manifests": [
                other,
                {"digest": manifest_digest, "platform": {"os": "linux", "architecture": "amd64"}},
            ]
        }
    )
    attestation = {
        "digest": "sha256:" + "1" * 64,
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    index = {"manifests": [attestation, {"digest": inner_digest}]}
    blobs = {config_digest: config_data, manifest_digest: manifest_data, inner_digest: inner_data}
    return {
        "index.json": json.dumps(index).encode(),
        **{"blobs/" + name.replace(":", "/"): data for name, data in blobs.items()},
    }


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_metadata_of_each_kind_gives_the_same_values(tmp_path: Path) -> None:
    inspected = [
        {
            "Architecture": "arm64",
            "Config": {"Env": ENV, "Labels": LABELS},
            "RepoTags": ["team/own:7"],
            "RootFS": {},
        }
    ]
    directory = tmp_path / "layout"
    for name, data in layout(OCI).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    saved = {
        "manifest.json": json.dumps([{"Config": "c.json", "RepoTags": None}]).encode(),
        "c.json": json.dumps(OCI).encode(),
    }
    for path in (
        written(tmp_path / "inspect.json", inspected),
        written(tmp_path / "config.json", OCI),
        directory,
        tar(tmp_path / "oci.tar", layout(OCI)),
        tar(tmp_path / "saved.tar", saved),
    ):
        found = workloads.of_text(str(path))
        assert fields(found, *EXPECTED) == EXPECTED, path
        assert found.architecture == "arm64"
        assert found.place is not None
        assert found.place.file == path


@pytest.mark.parametrize(
    ("env", "history", "compat"),
    [
        (["CUDA_VERSION=13.0.0"], None, None),
        (["CUDA_VERSION=13.0.0"], [{"created_by": "RUN apt-get install cuda-cudart-13-0"}], False),
        (["CUDA_VERSION=13.0.0"], [{"created_by": "RUN apt-get install cuda-compat-13-0"}], True),
        (["CUDA_VERSION=13.0.0", "_CUDA_COMPAT_PATH=/usr/local/cuda/compat"], None, True),
    ],
)
def test_forward_compatibility_in_metadata(
    tmp_path: Path, env: list[str], history: Any, compat: bool | None
) -> None:
    document = {"config": {"Env": env}, **({"history": history} if history else {})}
    assert workloads.metadata(written(tmp_path / "c.json", document)).forward_compat is compat


@pytest.mark.parametrize(
    ("value", "condition"), [("1", None), ("true", None), ("0", "cuda>=12.8"), ("", "cuda>=12.8")]
)
def test_conditions_of_an_image_that_disables_them_are_not_judged(
    tmp_path: Path, value: str, condition: str | None
) -> None:
    env = [
        "CUDA_VERSION=12.8.0",
        "NVIDIA_REQUIRE_CUDA=cuda>=12.8",
        f"NVIDIA_DISABLE_REQUIRE={value}",
    ]
    found = workloads.metadata(written(tmp_path / "c.json", {"config": {"Env": env}}))
    assert found.require_driver == condition


def test_metadata_without_any_framework_is_unknown(tmp_path: Path) -> None:
    (report,) = workloads.metadata(
        written(tmp_path / "c.json", {"config": {"Env": ["PATH=/bin"]}})
    ).reports
    assert (report.severity, report.message) == (
        "unknown",
        "its metadata does not mention CUDA, ROCm or a framework",
    )


def test_a_tag_that_contradicts_the_metadata_is_reported_and_not_believed(tmp_path: Path) -> None:
    document = [{"Config": {"Env": ENV}, "RepoTags": ["nvidia/cuda:13.0.2-base-ubuntu24.04"]}]
    found = workloads.metadata(written(tmp_path / "c.json", document))
    assert found.cuda == "12.4.1"
    (report,) = found.reports
    assert "says CUDA 13.0.2, and its metadata CUDA 12.4.1, which was taken" in report.message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b"{", "it is not valid JSON"),
        ("a.json", b"[]", "describes 0 images, expected one"),
        ("a.json", b'{"x": 1}', 'it has no key "Config"'),
        ("a.json", b"\xff\xfe\x00", "is no image metadata"),
        ("a.json", b"[7]", "should be a valid dictionary"),
        (
            "a.json",
            b'{"config": {"Env": {"A": "B"}}}',
            '"config.Env": input should be a valid list',
        ),
        (
            "a.json",
            b'{"config": {"Env": ["A", 7]}}',
            '"config.Env.1": input should be a valid string',
        ),
        ("a.tar", b"", "it is not valid JSON"),
    ],
)
def test_malformed_image_metadata_is_an_error(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=expected):
        workloads.of_text(str(tmp_path / name))


def test_missing_or_incomplete_image_layout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="does not exist"):
        workloads.of_text("./no-such-file.json")
    with pytest.raises(WorkloadError, match=r"neither manifest\.json nor index\.json"):
        workloads.metadata(tar(tmp_path / "a.tar", {"x": b""}))
    missing = {name: data for name, data in layout(OCI).items() if name == "index.json"}
    with pytest.raises(
        WorkloadError, match=r"names blobs/sha256/[0-9a-f]+, which it does not hold"
    ):
        workloads.metadata(tar(tmp_path / "b.tar", missing))
    with pytest.raises(WorkloadError, match=r"names c\.json, which it does not hold"):
        workloads.metadata(tar(tmp_path / "c.tar", {"manifest.json": b'[{"Config": "c.json"}]'}))


# -- requirements


def requirements(tmp_path: Path, text: str, **more: Any) -> Workload:
    (tmp_path / "r.txt").write_text(text, encoding="utf-8")
    return workloads.requirements(tmp_path / "r.txt", **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "torch==2.8.0+cu128\n",
            {"frameworks": {"torch": "2.8.0+cu128"}, "forward_compat": False, "reports": ()},
        ),
        (
            "--index-url https://mirror.example/whl/cu126\ntorch==2.8.0\n",
            {"frameworks": {"torch": "2.8.0+cu126"}},
        ),
        (
            "-i https://mirror.example/whl/rocm6.4/\ntorch==2.8.0\n",
            {"frameworks": {"torch": "2.8.0+rocm6.4"}},
        ),
        (
            "--extra-index-url https://mirror.example/whl/cu126\ntorch==2.8.0+cu128\n",
            {"frameworks": {"torch": "2.8.0+cu128"}},
        ),
        ("jax[cuda12]==0.6.0\n", {"frameworks": {"jax": "0.6.0"}, "library_cuda": {"jax": "12"}}),
        (
            "jax==0.6.0\njax-cuda12-plugin==0.6.0\n",
            {"frameworks": {"jax": "0.6.0"}, "library_cuda": {"jax": "12"}},
        ),
        ("jax==0.6.0\n", {"frameworks": {"jax": "0.6.0"}, "library_cuda": {}}),
        ("tensorflow[and-cuda]==2.18.0\n", {"library_cuda": {"tensorflow": "12"}}),
        (
            "nvidia-cudnn-cu12==9.10.2.21\nnvidia-nccl-cu12==2.27.3\nnvidia-cuda-runtime-cu12==12.8.90\n",
            {
                "cudnn": "9.10.2.21",
                "nccl": "2.27.3",
                "cuda": "12.8.90",
                "library_cuda": {"cudnn": "12", "nccl": "12", "cudart": "12"},
            },
        ),
        (
            "Torch == 2.8.0  # why\nnumpy>=1\n\n# torch==1.0\n",
            {"frameworks": {"torch": "2.8.0"}, "reports": ()},
        ),
        (
            "torch==2.8.0 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\n",
            {"frameworks": {"torch": "2.8.0"}},
        ),
        ('torch==2.8.0 ; sys_platform == "win32"\n', {"frameworks": {}, "reports": ()}),
        (
            'torch==2.8.0 ; sys_platform == "linux" and platform_machine == "x86_64"\n',
            {"frameworks": {"torch": "2.8.0"}},
        ),
        ('torch==2.8.0 ; python_version >= "3.7"\n', {"frameworks": {"torch": "2.8.0"}}),
        (
            "https://files.example/torch-2.11.0%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl\n",
            {"frameworks": {"torch": "2.11.0+cu128"}},
        ),
        (
            "torch @ https://files.example/torch-2.8.0+cu126-cp312-cp312-linux_x86_64.whl\n",
            {"frameworks": {"torch": "2.8.0+cu126"}},
        ),
        (
            "-e .\n./local\n--no-binary :all:\n--find-links=/wheels\ntorch==2.8.0\n",
            {"frameworks": {"torch": "2.8.0"}},
        ),
        ("\ufefftorch==2.8.0\r\n", {"frameworks": {"torch": "2.8.0"}}),
        ("", {"frameworks": {}, "reports": ()}),
    ],
)
def test_requirements_give_pinned_frameworks(
    tmp_path: Path, text: str, expected: dict[str, Any]
) -> None:
    found = requirements(tmp_path, text)
    assert fields(found, *expected) == expected
    assert found.kind == "requirements"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("numpy\ntorch\n", 2, "torch is not pinned, so that another day gives another version"),
        ("torch>=2.6\n", 1, "torch is not pinned (>=2.6)"),
        ("torch==2.8.*\n", 1, "torch is not pinned (==2.8.*)"),
        (
            '\ntorch==2.8.0 ; python_version < "3.12"\n',
            2,
            'torch==2.8.0 is asked for where python_version < "3.12" only',
        ),
    ],
)
def test_unpinned_requirement_is_reported_as_unknown(
    tmp_path: Path, text: str, line: int | None, expected: str
) -> None:
    (report,) = requirements(tmp_path, text).reports
    assert (report.rule, report.severity) == ("requirement-open", "unknown")
    assert expected in report.message
    assert report.place is not None
    assert (report.place.file, report.place.line) == (tmp_path / "r.txt", line)


def test_markers_are_judged_for_the_python_that_is_known(tmp_path: Path) -> None:
    text = 'torch==2.8.0 ; python_version < "3.12"\ntorch==2.9.0 ; python_version >= "3.12"\n'
    found = requirements(tmp_path, text, python="3.12.4")
    assert (found.frameworks, found.reports) == ({"torch": "2.9.0"}, ())
    assert len(requirements(tmp_path, text).reports) == 2


def test_included_files_and_constraints(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "gpu.txt").write_text(
        "-r ../r.txt\ntorch\n-c pins.txt\n", encoding="utf-8"
    )
    (tmp_path / "more" / "pins.txt").write_text("torch==2.8.0\nvllm==0.11.0\n", encoding="utf-8")
    found = requirements(tmp_path, "-r more/gpu.txt\n")
    # A constraint pins what is asked for and asks for nothing; files that include each other are read once.
    assert (found.frameworks, found.reports) == ({"torch": "2.8.0"}, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch==2.8.0\ntorch=2.8.0\n", r'r\.txt:2: "torch=2\.8\.0" is not a requirement'),
        (
            "torch==2.8.0\n\ntorch==2.9.0\n",
            r"r\.txt:3: torch is pinned as 2\.9\.0, and as 2\.8\.0 in .*r\.txt:1\. Keep one",
        ),
        (
            "--index-url https://m.example/cu126\ntorch==2.8.0+cu128\n",
            r"r\.txt:2: torch is pinned as 2\.8\.0\+cu128, but the index of .*:1 is",
        ),
        ("-r\n", r"r\.txt:1: -r names no file"),
        ("-r absent.txt\n", r"r\.txt:1: requirements file .*absent\.txt does not exist"),
        (
            "--indx-url https://m.example\n",
            r'r\.txt:1: "--indx-url" is no option of a requirements file\. Use "--index-url"',
        ),
        ("torch==2.8.0 ; python_version > \n", r"r\.txt:1: .* is not a requirement"),
        ("torch-2.8.whl\n", r"r\.txt:1: "),
        ("--index-url\n", r"r\.txt:1: --index-url has no value"),
    ],
)
def test_malformed_or_conflicting_requirements_are_an_error(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(WorkloadError, match=expected):
        requirements(tmp_path, text)


# -- what a class names

CLASS = """\
class: here
backend: cuda
stack: debian12_r535
gpu: {model: A100-SXM4-40GB, count: 8}
"""


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's catalog directory; its class is CLASS with what a test adds."""
    (tmp_path / "classes").mkdir()
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path))
    return tmp_path


def of_class(catalog: Path, text: str) -> list[Workload]:
    (catalog / "classes" / "here.yml").write_text(CLASS + text, encoding="utf-8")
    return workloads.of_class(load_catalog().node_class("here"))


def test_workloads_of_a_class(catalog: Path) -> None:
    (catalog / "classes" / "r.txt").write_text("torch==2.8.0\n", encoding="utf-8")
    written(catalog / "classes" / "m.json", OCI)
    named, stated, inspected, pinned = of_class(
        catalog,
        "images:\n"
        "- nvidia/cuda:13.0.2-base-ubuntu24.04\n"
        '- {ref: "team/own:7", cuda: "12.6", forward_compat: false, frameworks: {torch: 2.8.0+cu126}}\n'
        "- {ref: team/own, metadata: m.json}\n"
        "requirements: [r.txt]\n",
    )
    assert (named.cuda, named.forward_compat) == ("13.0.2", True)
    assert named.place is not None
    assert (named.place.file.name, named.place.line) == ("here.yml", 6)
    assert (stated.cuda, stated.forward_compat, stated.frameworks, stated.reports) == (
        "12.6",
        False,
        {"torch": "2.8.0+cu126"},
        (),
    )
    assert (inspected.subject, inspected.cuda) == ("image team/own", "12.4.1")
    assert pinned.frameworks == {"torch": "2.8.0"}


def test_a_class_knows_better_than_what_follows_from_a_tag(catalog: Path) -> None:
    (found,) = of_class(
        catalog,
        'images: [{ref: "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", cuda: "12.4", forward_compat: false, cudnn: "9.5.1.17"}]\n',
    )
    assert (found.cuda, found.forward_compat, found.cudnn) == ("12.4.1", False, "9.5.1.17")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'images:\n- {ref: "nvidia/cuda:12.4.1-base-ubuntu22.04", cuda: "13.0"}\n',
            r"here\.yml:6: image nvidia/cuda:12\.4\.1-base-ubuntu22\.04 is stated to have cuda 13\.0, and its tag says 12\.4\.1",
        ),
        (
            'images:\n- ref: pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime\n  frameworks: {torch: "2.6.0"}\n',
            r"here\.yml:6: .* is stated to have torch 2\.6\.0, and its tag says 2\.5\.1\+cu124",
        ),
        ("images:\n- Nvidia/Cuda\n", r'here\.yml:6: "Nvidia/Cuda" is not an image reference'),
        (
            "images:\n- {ref: a, metadata: absent.json}\n",
            r"here\.yml:6: there is no .*absent\.json",
        ),
        ("requirements: [absent.txt]\n", r"here\.yml:5: there is no file .*absent\.txt"),
        (
            "images:\n- {ref: a, cuda: 12.4}\n",
            r'here\.yml:6: "images\.0\.cuda" is 12\.4, expected text\. Write it in quotes: "12\.4"',
        ),
        (
            "images:\n- {ref: a, cudda: '12.4'}\n",
            r'here\.yml:6: unknown key "cudda" in "images\.0"\. Use "cuda"',
        ),
        ("images:\n- 12\n", r'here\.yml:6: "images\.0" is 12, expected a mapping of keys'),
        ("images: [{ref: a, cuda: twelve}]\n", r'"twelve" is not a version'),
    ],
)
def test_classes_that_contradict_themselves(catalog: Path, text: str, expected: str) -> None:
    with pytest.raises(CatalogError, match=expected):
        of_class(catalog, text)


def test_a_class_that_contradicts_metadata(catalog: Path) -> None:
    written(catalog / "classes" / "m.json", OCI)
    with pytest.raises(
        WorkloadError,
        match=r"here\.yml:5: .* is stated to have cuda 13\.0, and its metadata says 12\.4\.1",
    ):
        of_class(catalog, 'images: [{ref: a, metadata: m.json, cuda: "13.0"}]\n')
