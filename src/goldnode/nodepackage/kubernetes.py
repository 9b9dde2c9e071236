"""The check of a Kubernetes cluster as one directory for `kubectl apply -k`: manifests, script, program."""

from __future__ import annotations

import re
from pathlib import Path

from goldnode.core.data import data
from goldnode.core.errors import GoldnodeError
from goldnode.core.program_file import build

FILES = ("kustomization.yaml", "namespace.yaml", "check.yaml", "check")
PLACEHOLDER = "PYTHON_IMAGE"
_PORT = '--port, "9859"'
_SCRIPT = "files: [goldnode-node, check]"


def write(out: Path, image: str, document: Path | None = None) -> None:
    """Write the directory. With `document`, nodes without a class of their own are judged by this class document.

    Raises GoldnodeError for an image that YAML or a kubelet would not read as one.
    """
    if not image or image != image.strip() or any(char in image for char in " \t\n#\"'{}[],"):
        raise GoldnodeError(f'"{image}" is no image', remedy="name one as REGISTRY/NAME@DIGEST")
    source = data("integrations/kubernetes")
    texts = {name: (source / name).read_text(encoding="utf-8") for name in FILES}
    texts["check.yaml"] = texts["check.yaml"].replace(PLACEHOLDER, image)
    name, digest, sum_ = image.partition("@")
    if digest and not (name and re.fullmatch("sha256:[0-9a-f]{64}", sum_)):
        raise GoldnodeError(
            f'"{image}" has no digest after its @',
            remedy="name the image as REGISTRY/NAME@sha256:… with 64 digits, or as REGISTRY/NAME:TAG",
        )
    if document is not None:
        texts["check.yaml"] = texts["check.yaml"].replace(
            _PORT, f"{_PORT}, --class, /goldnode/class.json"
        )
        texts["kustomization.yaml"] = texts["kustomization.yaml"].replace(
            _SCRIPT, f"{_SCRIPT[:-1]}, class.json]"
        )
        texts["class.json"] = document.read_text(encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    (out / "goldnode-node").write_bytes(build())
