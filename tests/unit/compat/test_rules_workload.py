"""Rules over what runs on a node: what is refused, allowed and told, with which figures, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.compat import rules_workload
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.facts import host as facts

A100, V100, T4, H100, B200 = (
    "A100-SXM4-40GB",
    "V100-SXM2-16GB",
    "T4",
    "H100-SXM5-80GB",
    "B200-SXM-180GB",
)
GEFORCE, WORKSTATION, UNPLACED = "GeForce-RTX-4090", "RTX-PRO-6000-Blackwell-Workstation", "B100"
MI300X, MI355X = "MI300X", "MI355X"


def node(gpu: str | None = None, driver: str | None = None, **stated: Any) -> CompatHost:
    """A node as stated; `gpu` is a model's name, the vendor follows from it."""
    gpus = (facts.gpu(gpu),) if gpu else ()
    vendor = gpus[0].vendor if gpus else "nvidia"
    branch = driver.partition(".")[0] if driver and "." in driver else driver
    exact = driver if driver and "." in driver else None
    return CompatHost(
        "class it", **{"gpus": gpus, "vendor": vendor, "branch": branch, "driver": exact, **stated}
    )


def found(rule: str, host: CompatHost | None, workload: Workload) -> list[CompatFinding]:
    return [
        item
        for each in rules_workload.RULES
        for item in each.check(host, workload)
        if item.rule == rule
    ]


def whole(finding: CompatFinding) -> str:
    return f"{finding.severity}: {finding.message} -> {finding.remedy} ({finding.doubt})"


# rule, node, workload, severity (None: the rule says nothing), what its words must have
CASES: list[Any] = [
    # -- PyTorch's wheels for aarch64 are CPU builds up to 2.10
    (
        "torch-cpu",
        node("GH200-144G-HBM3e", "580.178.04", architecture="arm64"),
        {"kind": "requirements", "frameworks": {"torch": "2.6.0"}, "machine": "aarch64"},
        "block",
        (
            "torch 2.6.0 has no wheel with CUDA for aarch64",
            "installs the CPU build",
            "torch 2.11.0, whose wheel for aarch64 has CUDA",
        ),
    ),
    (
        "torch-cpu",
        node("GH200-144G-HBM3e", "580.178.04", architecture="arm64"),
        {"kind": "requirements", "frameworks": {"torch": "2.11.0"}, "machine": "aarch64"},
        None,
        (),
    ),
    (
        "torch-cpu",
        node("GH200-144G-HBM3e", "580.178.04", architecture="arm64"),
        {"kind": "requirements", "frameworks": {"torch": "2.5.1+cu124"}, "machine": "aarch64"},
        None,
        (),
    ),
    (
        "torch-cpu",
        node(A100, "580.178.04"),
        {"kind": "requirements", "frameworks": {"torch": "2.6.0"}},
        None,
        (),
    ),
    # -- the CUDA family that names of packages state
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {
            "kind": "requirements",
            "families": {"cudf-cu13": "13", "nvidia-nccl-cu13": "13"},
            "forward_compat": False,
        },
        "block",
        (
            "CUDA 13.0 of cudf-cu13, nvidia-nccl-cu13 needs driver 580.65.06 or later",
            "only the CUDA family is stated",
        ),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"kind": "requirements", "families": {"cudf-cu12": "12"}},
        None,
        (),
    ),
    (
        "cuda-gpu",
        node(V100, "580.178.04"),
        {"kind": "requirements", "families": {"cupy-cuda13x": "13"}},
        "block",
        ("CUDA 13.0 of cupy-cuda13x has no code for", "12.9 is the last with Volta"),
    ),
    (
        "cuda-gpu",
        node(B200, "580.178.04"),
        {"kind": "requirements", "families": {"cudf-cu12": "12"}},
        None,
        (),
    ),
    # -- CUDA and the driver: native
    ("cuda-driver", node(A100, "535.309.01"), {"cuda": "12.2"}, None, ()),
    ("cuda-driver", node(A100, "535.309.01"), {"cuda": "12.2.2"}, None, ()),
    ("cuda-driver", node(A100, "535.309.01"), {"cuda": "11.8.0"}, None, ()),
    ("cuda-driver", node(A100, "580.178.04"), {"cuda": "13.0.2"}, None, ()),
    ("cuda-driver", node(A100, "615.71.09"), {"cuda": "13.4"}, None, ()),
    # The compatibility package that is made of driver 620.70.06 is that of CUDA 13.5.
    ("cuda-driver", node(A100, "620.70.06"), {"cuda": "13.5"}, None, ()),
    # -- minor-version compatibility: allowed, with its limits
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "12.4.1"},
        "warn",
        (
            "CUDA 12.4.1 runs on driver 535.309.01 of class it by minor-version compatibility only (CUDA 12.2 is its native one)",
            "cannot compile PTX of CUDA 12.4",
            "features that need a newer driver",
            "use driver 550.54.14 or later, or CUDA 12.2 or older",
        ),
    ),
    (
        "cuda-driver",
        node(GEFORCE, "535.309.01"),
        {"cuda": "12.9"},
        "warn",
        ("minor-version", "driver 575.51.03 or later"),
    ),
    ("cuda-driver", node(A100, "525.60.13"), {"cuda": "12.9"}, "warn", ("minor-version",)),
    (
        "cuda-driver",
        node(A100, "525.60.11"),
        {"cuda": "12.9"},
        "block",
        ("needs driver 525.60.13 or later", "525.60.11"),
    ),
    (
        "cuda-driver",
        node(A100, "580.178.04"),
        {"cuda": "13.4"},
        "warn",
        ("CUDA 13.0 is its native one", "branch 615"),
    ),
    (
        "cuda-driver",
        node(A100, "625.10.01"),
        {"cuda": "13.5"},
        "warn",
        ("no source says which CUDA is native to branch 625",),
    ),
    ("cuda-driver", node(V100, "535.309.01"), {"cuda": "12.9"}, "warn", ("use driver 575.51.03",)),
    # -- forward compatibility: the package, a data-centre GPU, a branch of its list
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "13.0", "forward_compat": True},
        "warn",
        (
            "CUDA 13.0 needs driver 580.65.06 or later; class it has 535.309.01",
            "only by forward compatibility",
            "cuda-compat-13-0",
            "535, 550, 565, 570 and 575",
            "use driver 580.65.06 or later, or CUDA 12.9 or older",
        ),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "13.0", "forward_compat": False},
        "block",
        (
            "CUDA 13.0 needs driver 580.65.06 or later; class it has 535.309.01, and the image carries no forward-compatibility package",
            "use driver 580.65.06 or later, or CUDA 12.9 or older (12.2 or older without",
            "or an image that carries cuda-compat-13-0",
        ),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "13.0"},
        "unknown",
        ("whether the image carries cuda-compat-13-0 is not known",),
    ),
    (
        "cuda-driver",
        node(GEFORCE, "535.309.01"),
        {"cuda": "13.0", "forward_compat": True},
        "block",
        (
            "does not work on GeForce-RTX-4090, which is no data-centre GPU",
            "use driver 580.65.06 or later, or CUDA 12.9 or older",
        ),
    ),
    (
        "cuda-driver",
        node(GEFORCE, "535.309.01"),
        {"cuda": "13.0"},
        "block",
        ("no data-centre GPU",),
    ),
    (
        "cuda-driver",
        node(WORKSTATION, "575.57.08"),
        {"cuda": "13.0", "forward_compat": True},
        "block",
        ("no data-centre GPU",),
    ),
    (
        "cuda-driver",
        node(UNPLACED, "575.57.08"),
        {"cuda": "13.0", "forward_compat": True},
        "unknown",
        ("whether B100 is a data-centre GPU",),
    ),
    (
        "cuda-driver",
        node(None, "535.309.01"),
        {"cuda": "13.0", "forward_compat": True},
        "unknown",
        ("which GPUs class it has",),
    ),
    (
        "cuda-driver",
        node(A100, "545.29.06"),
        {"cuda": "13.0", "forward_compat": True},
        "block",
        ("is for driver branches 535, 550",),
    ),
    (
        "cuda-driver",
        node(A100, "470.256.02"),
        {"cuda": "12.9", "forward_compat": True},
        "block",
        ("is for no older branch",),
    ),
    (
        "cuda-driver",
        node(A100, "470.256.02"),
        {"cuda": "12.4", "forward_compat": True},
        "warn",
        ("cuda-compat-12-4", "also admits GeForce"),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "13.2", "forward_compat": True},
        "unknown",
        ("the newest list that was read is of CUDA 13.1",),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"kind": "requirements", "forward_compat": False, "frameworks": {"torch": "2.9.0+cu130"}},
        "block",
        (
            "CUDA 13.0 of torch 2.9.0 (cu130) needs driver 580.65.06",
            "the wheels contain no forward-compatibility package",
        ),
    ),
    # -- where minor-version compatibility would do, the package takes the driver's place
    (
        "cuda-driver",
        node(GEFORCE, "535.309.01"),
        {"cuda": "12.4.1", "forward_compat": True},
        "block",
        (
            "the image carries cuda-compat-12-4, which takes the place of drivers before 550 and fails on GeForce",
            "use an image without",
        ),
    ),
    (
        "cuda-driver",
        node(GEFORCE, "550.163.01"),
        {"cuda": "12.4.1", "forward_compat": True},
        None,
        (),
    ),
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "12.4.1", "forward_compat": True},
        "warn",
        ("forward compatibility", "puts its library before that of the driver"),
    ),
    (
        "cuda-driver",
        node(WORKSTATION, "570.211.01"),
        {"cuda": "12.9", "forward_compat": True},
        "unknown",
        ("is not known to work on",),
    ),
    # -- no driver would help: the remedy does not send for one
    (
        "cuda-driver",
        node(V100, "535.309.01"),
        {"cuda": "13.0"},
        "block",
        ("-> use CUDA 12.9 or older",),
    ),
    # -- what is not known
    (
        "cuda-driver",
        node(A100, "535.309.01"),
        {"cuda": "12.7"},
        "unknown",
        ("not among the releases", "nearest", "12.6"),
    ),
    (
        "cuda-driver",
        node(A100),
        {"cuda": "12.4"},
        "unknown",
        ("which driver class it has is not known",),
    ),
    (
        "cuda-driver",
        node(A100, "525"),
        {"cuda": "12.4"},
        "unknown",
        ("has branch 525, and nothing says which version", "lock the stack"),
    ),
    ("cuda-driver", node(A100, "580"), {"cuda": "13.0"}, None, ()),
    ("cuda-driver", node(A100, "590"), {"cuda": "13.0"}, None, ()),
    ("cuda-driver", node(MI300X), {"cuda": "13.0"}, None, ()),
    # -- CUDA and the GPU
    (
        "cuda-gpu",
        node(V100, "580.178.04"),
        {"cuda": "13.0"},
        "block",
        ("no code for V100", "12.9 is the last with Volta", "use CUDA 12.9 or older"),
    ),
    ("cuda-gpu", node(V100, "580.178.04"), {"cuda": "12.9"}, None, ()),
    (
        "cuda-gpu",
        node(B200, "580.178.04"),
        {"cuda": "12.6"},
        "warn",
        ("12.8 is the first with Blackwell", "use CUDA 12.8 or later"),
    ),
    ("cuda-gpu", node(B200, "580.178.04"), {"cuda": "12.8"}, None, ()),
    (
        "cuda-gpu",
        node(GEFORCE, "535.309.01"),
        {"cuda": "11.7"},
        "warn",
        ("runs what was built for 8.0, 8.6 and 8.7", "before CUDA 11.8"),
    ),
    (
        "cuda-gpu",
        node(H100, "535.309.01"),
        {"cuda": "11.7"},
        "warn",
        ("11.8 is the first with Hopper", "9.0a needs 12.0"),
    ),
    (
        "cuda-gpu",
        node("B300-SXM6-AC", "580.178.04"),
        {"cuda": "12.8"},
        "warn",
        ("runs what was built for 10.0",),
    ),
    # -- cuDNN
    ("cudnn-cuda", None, {"cuda": "12.4.1", "cudnn": "9.1.0.70"}, None, ()),
    ("cudnn-cuda", None, {"cuda": "12.6", "cudnn": "9.5.1"}, None, ()),
    (
        "cudnn-cuda",
        None,
        {"cuda": "11.8", "cudnn": "9.17.0"},
        "block",
        ("cuDNN 9.17.0 is for CUDA", "12", "13", "has CUDA 11.8"),
    ),
    (
        "cudnn-cuda",
        None,
        {"cuda": "12.4", "cudnn": "9.0.0"},
        "unknown",
        ("lists CUDA 12.0, 12.1, 12.2, 12.3, and not 12.4",),
    ),
    ("cudnn-cuda", None, {"cuda": "12.9", "cudnn": "9.28.0.42"}, None, ()),
    (
        "cudnn-cuda",
        None,
        {"cuda": "11.8", "cudnn": "9.12.0.46"},
        "block",
        ("published for CUDA 12 and 13, and not for CUDA 11",),
    ),
    (
        "cudnn-cuda",
        None,
        {"cuda": "12.4", "cudnn": "9.99.0"},
        "unknown",
        ("no source says which CUDA cuDNN 9.99.0 is for",),
    ),
    ("cudnn-gpu", node(V100, "580.178.04"), {"cuda": "12.9", "cudnn": "9.10.2.21"}, None, ()),
    (
        "cudnn-gpu",
        node(V100, "580.178.04"),
        {"cuda": "12.9", "cudnn": "9.17.0"},
        "block",
        ("does not list V100", "use cuDNN 9.10.2"),
    ),
    (
        "cudnn-gpu",
        node(V100, "580.178.04"),
        {"cuda": "12.9", "cudnn": "9.28.0.42"},
        "block",
        ("no longer lists V100", "derived"),
    ),
    (
        "cudnn-gpu",
        node(V100, "580.178.04"),
        {"cuda": "12.9", "cudnn": "9.14.0"},
        "unknown",
        ("9.10.2 (with it) and 9.17.0 (without it)",),
    ),
    ("cudnn-gpu", node(A100, "580.178.04"), {"cuda": "12.9", "cudnn": "9.14.0"}, None, ()),
    (
        "cudnn-gpu",
        node(A100, "580.178.04"),
        {"cuda": "12.9", "cudnn": "9.28.0.42"},
        "unknown",
        ("no support matrix of cuDNN 9.28.0.42 was read",),
    ),
    (
        "cudnn-gpu",
        node(B200, "580.178.04"),
        {"cuda": "12.4", "cudnn": "9.1.0.70"},
        "block",
        ("neither", "9.0.0", "9.5.1"),
    ),
    (
        "cudnn-gpu",
        node(B200, "580.178.04"),
        {"cuda": "12.4", "cudnn": "9.10.2"},
        "block",
        ("with CUDA 12.8, 12.9, and the workload has CUDA 12.4",),
    ),
    (
        "cudnn-gpu",
        node(B200, "570.20.01"),
        {"cuda": "12.8", "cudnn": "9.10.2"},
        "block",
        ("needs driver 570.26 or later", "570.20.01"),
    ),
    # -- NCCL
    ("nccl-cuda", None, {"cuda": "12.4.1", "nccl": "2.21.5"}, None, ()),
    ("nccl-cuda", None, {"cuda": "13.0", "nccl": "2.28.9"}, None, ()),
    (
        "nccl-cuda",
        None,
        {"cuda": "13.0", "nccl": "2.21.5"},
        "unknown",
        ("no source says whether NCCL 2.21.5 works with CUDA 13.0", "CUDA 11 and 12"),
    ),
    (
        "nccl-cuda",
        None,
        {"kind": "requirements", "nccl": "2.25.1", "library_cuda": {"nccl": "11"}},
        "block",
        ("published for CUDA 12, and not for CUDA 11", "use NCCL 2.21.5"),
    ),
    # -- versions and builds
    ("framework-version", None, {"frameworks": {"torch": "2.8.0+cu128"}}, None, ()),
    ("framework-version", None, {"frameworks": {"torch": "2.8.0+cpu"}}, None, ()),
    ("framework-version", None, {"frameworks": {"torch": "2.8", "vllm": "0.11"}}, None, ()),
    (
        "framework-version",
        None,
        {"frameworks": {"torch": "2.4.0a0+07cecf4168.nv24.05"}},
        "unknown",
        ("a third party's build",),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"torch": "2.16.0"}},
        "unknown",
        ("torch 2.16.0 is not in the facts",),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"torch": "2.8.0+cu130"}},
        "block",
        ("has no build cu130", "use cu128 or cu129"),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"torch": "3.1.0"}},
        "unknown",
        ("torch 3.1.0 is not in the facts", "use torch 2.15.0"),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"vllm": "0.34.0"}},
        "unknown",
        ("use vllm 0.33.0",),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"mxnet": "1.9"}},
        "unknown",
        ("the facts hold nothing about mxnet",),
    ),
    (
        "framework-version",
        None,
        {"frameworks": {"tensorflow": "2.13.0"}, "library_cuda": {"tensorflow": ""}},
        "unknown",
        ("no source says which CUDA tensorflow 2.13.0",),
    ),
    (
        "framework-version",
        None,
        {"rocm": "7.1", "frameworks": {"torch": "2.8.0+rocm7.1"}},
        None,
        (),
    ),
    (
        "framework-version",
        None,
        {"kind": "requirements", "frameworks": {"torch": "2.8.0+rocm7.1"}},
        "block",
        ("use rocm6.4",),
    ),
    # -- Python
    ("framework-python", None, {"python": "3.12", "frameworks": {"torch": "2.8.0"}}, None, ()),
    (
        "framework-python",
        None,
        {"python": "3.14", "frameworks": {"torch": "2.8.0"}},
        "block",
        ("wheels for Python 3.9 to 3.13", "has Python 3.14"),
    ),
    (
        "framework-python",
        None,
        {"python": "3.10.4", "frameworks": {"torch": "2.15.0"}},
        "block",
        ("Python 3.11 to 3.15",),
    ),
    (
        "framework-python",
        None,
        {"python": "3.13", "frameworks": {"vllm": "0.10.0"}},
        "block",
        ("needs Python <3.13,>=3.9",),
    ),
    (
        "framework-python",
        None,
        {"python": "3.10", "frameworks": {"jax": "0.11.0"}, "library_cuda": {"jax": "12"}},
        "block",
        (">=3.12",),
    ),
    # -- what PyTorch was built for
    ("torch-gpu", node(A100, "580.178.04"), {"frameworks": {"torch": "2.5.1+cu124"}}, None, ()),
    ("torch-gpu", node(GEFORCE, "580.178.04"), {"frameworks": {"torch": "2.8.0"}}, None, ()),
    (
        "torch-gpu",
        node(V100, "580.178.04"),
        {"frameworks": {"torch": "2.11.0+cu128"}},
        "block",
        (
            "7.5, 8.0, 8.6, 9.0, 10.0 and 12.0, and not for V100-SXM2-16GB (compute capability 7.0)",
            "use the cu126 build of PyTorch 2.11",
        ),
    ),
    ("torch-gpu", node(V100, "580.178.04"), {"frameworks": {"torch": "2.10.0+cu128"}}, None, ()),
    (
        "torch-gpu",
        node(B200, "580.178.04"),
        {"frameworks": {"torch": "2.5.1"}},
        "block",
        ("use the cu128 build of PyTorch 2.7",),
    ),
    (
        "torch-gpu",
        node("GH200-144G-HBM3e", "580.178.04", architecture="arm64"),
        {"frameworks": {"torch": "2.15.0"}},
        "unknown",
        ("no source says which compute capabilities",),
    ),
    (
        "torch-gpu",
        node(V100, "580.178.04"),
        {"frameworks": {"vllm": "0.33.0"}},
        "block",
        ("torch 2.14.0 (cu130, pinned by vllm 0.33.0)",),
    ),
    (
        "torch-gpu",
        node(H100, "580.178.04", architecture="arm64"),
        {"frameworks": {"torch": "2.5.1+cu124"}},
        None,
        (),
    ),
    (
        "torch-gpu",
        node(A100, "580.178.04", architecture="arm64"),
        {"frameworks": {"torch": "2.5.1+cu124"}},
        "block",
        ("built for compute capabilities 9.0",),
    ),
    (
        "torch-gpu",
        node(MI300X),
        {"kind": "requirements", "frameworks": {"torch": "2.2.0+rocm5.7"}},
        "block",
        ("not for MI300X (gfx942)",),
    ),
    (
        "torch-gpu",
        node(MI300X),
        {"kind": "requirements", "frameworks": {"torch": "2.4.0+rocm6.1"}},
        None,
        (),
    ),
    (
        "torch-gpu",
        node(MI300X),
        {"kind": "requirements", "frameworks": {"torch": "2.7.0+rocm6.3"}},
        "unknown",
        ("no source says which gfx names",),
    ),
    # -- TensorFlow, JAX, vLLM
    (
        "framework-gpu",
        node(V100, "535.309.01"),
        {"frameworks": {"jax": "0.10.0"}, "library_cuda": {"jax": "12"}},
        None,
        (),
    ),
    (
        "framework-gpu",
        node(A100, "535.309.01"),
        {"frameworks": {"jax": "0.10.0"}, "library_cuda": {"jax": "13"}},
        "block",
        ("580", "jax[cuda12]"),
    ),
    (
        "framework-gpu",
        node(V100, "580.178.04"),
        {"frameworks": {"jax": "0.10.0"}, "library_cuda": {"jax": "13"}},
        "block",
        ("7.5 or higher",),
    ),
    ("framework-gpu", node(V100, "580.178.04"), {"frameworks": {"vllm": "0.6.0"}}, None, ()),
    # -- frameworks and libraries
    (
        "framework-libraries",
        None,
        {
            "kind": "requirements",
            "frameworks": {"torch": "2.8.0"},
            "cudnn": "9.5.1.17",
            "library_cuda": {"cudnn": "12"},
        },
        "block",
        ("torch 2.8.0 (cu128) pins cuDNN 9.10.2.21, and the requirements pin 9.5.1.17",),
    ),
    (
        "framework-libraries",
        None,
        {"kind": "requirements", "frameworks": {"torch": "2.8.0"}, "nccl": "2.27.3"},
        None,
        (),
    ),
    (
        "framework-libraries",
        None,
        {"frameworks": {"torch": "2.8.0"}, "cuda": "12.4.1", "cudnn": "9.1.0.70"},
        None,
        (),
    ),
    (
        "framework-libraries",
        None,
        {
            "kind": "requirements",
            "frameworks": {"torch": "2.8.0"},
            "nccl": "2.28.9",
            "library_cuda": {"nccl": "13"},
        },
        "block",
        ("pinned for CUDA 13", "uses libraries of CUDA 12", "pin nvidia-nccl-cu12"),
    ),
    (
        "framework-libraries",
        None,
        {"frameworks": {"torch": "2.9.0", "vllm": "0.11.0"}},
        "block",
        ("needs torch ==2.8.0",),
    ),
    (
        "framework-libraries",
        None,
        {"frameworks": {"torch": "2.11.0+cu128", "vllm": "0.24.0"}},
        "block",
        ("pins libraries of CUDA 13", "vllm 0.21.0"),
    ),
    (
        "framework-libraries",
        None,
        {
            "kind": "requirements",
            "frameworks": {"jax": "0.6.0"},
            "library_cuda": {"jax": "12"},
            "cudnn": "9.5.1.17",
        },
        "block",
        ("jax 0.6.0 needs cuDNN <10.0,>=9.8",),
    ),
    (
        "framework-libraries",
        None,
        {"frameworks": {"tensorflow": "2.20.0"}, "cuda": "13.0"},
        "unknown",
        ("is built for CUDA 12",),
    ),
    # -- ROCm
    ("tensorrt-cuda", None, {"frameworks": {"tensorrt": "10.13.2.6"}, "cuda": "13.0"}, None, ()),
    (
        "tensorrt-cuda",
        None,
        {"frameworks": {"tensorrt": "10.13.2"}, "cuda": "11.8"},
        "block",
        ("use TensorRT 10.13.0",),
    ),
    (
        "tensorrt-cuda",
        None,
        {"frameworks": {"tensorrt": "10.9.0"}, "cuda": "13.0"},
        "block",
        ("12.8 and 11.8",),
    ),
    ("rocm-driver", node(MI300X, amdgpu="30.30.2"), {"rocm": "7.2.1"}, None, ()),
    ("rocm-driver", node(MI300X, amdgpu="6.3.1"), {"rocm": "6.2.4"}, None, ()),
    ("rocm-driver", node(MI300X, amdgpu="30.10.1"), {"rocm": "7.1.1"}, None, ()),
    (
        "rocm-driver",
        node(MI300X, amdgpu="6.1.3"),
        {"rocm": "7.0.0"},
        "block",
        ("serves ROCm 5.7 - 6.4", "amdgpu 30.10.0", "narrower tested windows"),
    ),
    (
        "rocm-driver",
        node(MI300X, amdgpu="31.40.1"),
        {"rocm": "10.0"},
        "unknown",
        ("amdgpu 31.40.1",),
    ),
    (
        "rocm-driver",
        node(MI300X, kernel="6.12.117"),
        {"rocm": "7.1"},
        "unknown",
        ("the amdgpu driver of its kernel (6.12.117)",),
    ),
    ("rocm-driver", node(A100, "535.309.01"), {"rocm": "7.1"}, None, ()),
    ("rocm-driver", node(MI300X, amdgpu="31.40.1"), {"rocm": "7.14"}, None, ()),
    (
        "rocm-os",
        node(MI355X, os="debian 12"),
        {"rocm": "7.1.1"},
        "unknown",
        (
            "lists Debian 12 (MI325X, MI300X, MI300A, MI250X, MI250, MI210), and class it has MI355X",
        ),
    ),
    ("rocm-gpu", node(MI300X), {"rocm": "7.1"}, None, ()),
    (
        "rocm-gpu",
        node(MI355X),
        {"rocm": "6.4.1"},
        "block",
        ("and not MI355X (gfx950)", "use ROCm 7.0.0 or later", "derived"),
    ),
    ("rocm-gpu", node(MI355X), {"rocm": "7.0.0"}, None, ()),
    ("rocm-gpu", node(MI300X), {"rocm": "5.7"}, "unknown", ("no source says which gfx names",)),
    ("rocm-gpu", node(MI300X), {"rocm": "12.0"}, "unknown", ("ROCm 12.0 is not in the facts",)),
    ("rocm-os", node(MI300X, os="debian 13"), {"rocm": "7.1"}, None, ()),
    ("rocm-os", node(MI300X, os="ubuntu 22.04"), {"rocm": "6.3.0"}, None, ()),
    (
        "rocm-os",
        node(MI300X, os="debian 13"),
        {"rocm": "6.4.0"},
        "unknown",
        ("has no Debian 13", "use ROCm"),
    ),
    (
        "rocm-os",
        node(MI300X, os="debian 12"),
        {"rocm": "6.4.0"},
        "warn",
        ("Debian 12 (MI300X single node) only",),
    ),
    # -- the image as such
    ("image-backend", node(MI300X), {"cuda": "12.4"}, "block", ("built for CUDA", "AMD's")),
    (
        "image-backend",
        node(A100, "535.309.01"),
        {"rocm": "7.1"},
        "block",
        ("built for ROCm", "NVIDIA's"),
    ),
    ("image-backend", node(vendor=None), {"cuda": "12.4"}, "block", ("has no GPU driver",)),
    ("image-backend", node(vendor=None), {"python": "3.12"}, None, ()),
    ("image-backend", node(A100, "535.309.01"), {"cuda": "12.4"}, None, ()),
    (
        "image-architecture",
        node(A100),
        {"architecture": "arm64"},
        "block",
        ("built for arm64, and class it is amd64",),
    ),
    ("image-architecture", node(A100), {"architecture": "amd64"}, None, ()),
    (
        "image-system",
        None,
        {"repository": "nvidia/cuda", "cuda": "12.4.1", "os": "centos 7"},
        "block",
        ("end with CUDA 12.4.0",),
    ),
    (
        "image-system",
        None,
        {"repository": "nvidia/cuda", "cuda": "12.4.1", "os": "ubuntu 24.04"},
        "block",
        ("begin with CUDA 12.5.1",),
    ),
    (
        "image-system",
        None,
        {"repository": "nvidia/cuda", "cuda": "12.5.1", "os": "ubuntu 24.04"},
        None,
        (),
    ),
    (
        "image-system",
        None,
        {"repository": "us/own", "cuda": "12.4.1", "os": "ubuntu 24.04"},
        None,
        (),
    ),
    # -- the image's own condition
    (
        "image-requirement",
        node(A100, "550.163.01"),
        {"require_driver": "cuda>=12.4 brand=tesla,driver>=535,driver<536"},
        None,
        (),
    ),
    (
        "image-requirement",
        node(A100, "535.309.01"),
        {"require_driver": "cuda>=12.4 brand=tesla,driver>=535,driver<536"},
        None,
        (),
    ),
    (
        "image-requirement",
        node(GEFORCE, "535.309.01"),
        {"require_driver": "cuda>=12.5 brand=tesla,driver>=535,driver<536"},
        "block",
        ("cuda>=12.5",),
    ),
    (
        "image-requirement",
        node(A100, "545.29.06"),
        {"require_driver": "cuda>=12.5 brand=tesla,driver>=535,driver<536"},
        "block",
        ("545.29.06",),
    ),
    (
        "image-requirement",
        node(WORKSTATION, "535.309.01"),
        {"require_driver": "cuda>=12.5 brand=quadrortx,driver>=535"},
        "unknown",
        ("not known",),
    ),
]


@pytest.mark.parametrize(
    ("rule", "host", "stated", "severity", "expected"), CASES, ids=range(len(CASES))
)
def test_workload_rule_gives_its_finding_or_none(
    rule: str,
    host: CompatHost | None,
    stated: dict[str, Any],
    severity: str | None,
    expected: tuple[str, ...],
) -> None:
    result = found(rule, host, Workload("image it", **stated))
    if severity is None:
        assert [whole(item) for item in result] == []
        return
    assert [item.severity for item in result] == [severity], [whole(item) for item in result]
    missing = [part for part in expected if part not in whole(result[0])]
    assert missing == [], whole(result[0])


def test_every_rule_has_a_case_that_finds_and_words_that_explain() -> None:
    reported = {"workload-told", "requirement-open"}  # found by the readers: test_workloads
    finding = {case[0] for case in CASES if case[3] is not None}
    assert {rule.id for rule in rules_workload.RULES} == finding | reported
    for rule in rules_workload.RULES:
        assert rule.title
        assert len(rule.explanation) > 40


def test_findings_read_as_one_sentence_and_name_what_they_are_about() -> None:
    for rule, host, stated, severity, _ in CASES:
        if severity is None:
            continue
        for item in found(rule, host, Workload("image it", **stated)):
            assert not item.message.endswith("."), item.message
            assert "None" not in whole(item).replace("(None)", "").replace("-> None", ""), whole(
                item
            )
            assert item.subject == "image it"
            assert item.remedy is None or not item.remedy.endswith("."), item.remedy
            if severity == "block" and rule not in ("image-backend", "image-architecture"):
                assert item.sources, whole(item)


def test_finding_cites_the_source_for_a_data_centre_gpu() -> None:
    (item,) = found(
        "cuda-driver",
        node(A100, "535.309.01"),
        Workload("image it", cuda="13.0", forward_compat=True),
    )
    assert "CUDA GPU Compute Capability" in [origin.title for origin in item.sources]


def test_every_nvidia_gpu_placed_as_data_centre_or_not_has_a_source() -> None:
    kinds = {name: gpu.data_centre for name, gpu in facts.gpus().items() if gpu.vendor == "nvidia"}
    # NVIDIA's tables leave out its models for single markets and single customers.
    unplaced = [name for name, kind in kinds.items() if kind is None]
    assert UNPLACED in unplaced
    assert {"GeForce-RTX-4090", "RTX-A6000", "L4", "H100-SXM5-80GB"}.isdisjoint(unplaced)
    assert [
        name
        for name, kind in kinds.items()
        if kind is False and not name.startswith(("GeForce", "RTX", "Quadro", "T"))
    ] == []
    for name, kind in kinds.items():
        assert bool(facts.gpu(name).origins("data_centre")) == (kind is not None), name


def test_an_image_with_two_runtimes_has_both_judged() -> None:
    both = Workload(
        "image it", cuda="12.2.2", frameworks={"torch": "2.9.0+cu130"}, forward_compat=False
    )
    (item,) = found("cuda-driver", node(A100, "535.309.01"), both)
    assert item.severity == "block"
    assert "CUDA 13.0 of torch 2.9.0 (cu130)" in item.message


def test_an_assumed_build_is_marked_as_such() -> None:
    bare = Workload(
        "requirements it", kind="requirements", frameworks={"torch": "2.8.0"}, forward_compat=False
    )
    (item,) = found("cuda-driver", node(A100, "535.309.01"), bare)
    assert "assumed: the wheel that the package index gives by itself" in (item.doubt or "")
