"""The image of a job by its description: the image.json in an image of goldnode, `docker inspect`, or the environment in it."""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict, as_list
from ..ground.optional import optional
from ..probe.machine import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

PLACE = "/usr/lib/goldnode/image.json"
LABELS = "io.goldnode."
MOST = 8 << 20  # bytes of a description


def read(name: str) -> Dict[str, Any]:
    """Return {name, backend, cuda, forward_compat, nccl} of the image that a file describes. Raises NodeError."""
    try:
        with open(name, "rb") as opened:
            content = json.loads(opened.read(MOST))
    except OSError as problem:
        raise NodeError(
            f"{printable(name, 200)} cannot be read: {problem.strerror}. Correct --image."
        ) from None
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, list) and len(content) == 1:  # docker inspect
        content = content[0]
    if isinstance(content, dict) and content.get("schema") == "goldnode.image/1":
        return described(content)
    settings = (
        (content.get("config") or content.get("Config")) if isinstance(content, dict) else None
    )
    if not isinstance(settings, dict):
        raise NodeError(
            f"{printable(name, 200)} does not describe an image. Give image.json of an image of goldnode, or the output of "
            "`docker inspect IMAGE`."
        )
    # CUDA's images have no label for their version, only variables.
    pairs = [str(row).partition("=")[::2] for row in as_list(settings.get("Env"))]
    labels = settings.get("Labels")
    found_image = of_environment(dict(pairs)) or _image(None, None, None)
    if isinstance(labels, dict) and labels.get(f"{LABELS}backend"):
        found_image["backend"] = labels[f"{LABELS}backend"]
    tags = content.get("RepoTags")
    found_image["name"] = str(tags[0]) if isinstance(tags, list) and tags else None
    return found_image


def described(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the image of a description (goldnode.image/1). Pure."""
    backend = document.get("backend")
    version = document.get("version")
    nccl = as_dict(document.get("parts")).get("nccl")
    nccl = nccl.get("version") if isinstance(nccl, dict) else nccl
    cuda = version if backend == "cuda" else None
    image = _image(backend, cuda, optional(str, nccl))
    image["name"] = document.get("name")
    return image


def of_environment(environment: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """Return the image by the variables that NVIDIA's and goldnode's CUDA images set; None without them. Pure."""
    cuda = environment.get("CUDA_VERSION")
    if not cuda:
        return None
    image = _image("cuda", cuda, environment.get("NCCL_VERSION"))
    image["forward_compat"] = any(
        environment.get(name) for name in ("NV_CUDA_COMPAT_PACKAGE", "_CUDA_COMPAT_PATH")
    )
    return image


def inside(environment: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """Return the image that this process runs in, by its own files and variables; None if they describe none."""
    try:
        with open(PLACE, "rb") as opened:
            document = json.loads(opened.read(MOST))
    except (OSError, ValueError, RecursionError):
        return of_environment(environment)
    if not isinstance(document, dict):
        return of_environment(environment)
    return described(document)


def _image(backend: Any, cuda: Any, nccl: Optional[str]) -> Dict[str, Any]:
    return {"name": None, "backend": backend, "cuda": cuda, "forward_compat": False, "nccl": nccl}
