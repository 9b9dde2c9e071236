"""The check of a Kubernetes cluster as one directory for `kubectl apply -k`: manifests, script, program."""

from __future__ import annotations

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

    Raises GoldnodeError for an image that YAML would read as something else.
    """
    if not image or image != image.strip() or any(char in image for char in " \t\n#\"'{}[],"):
        raise GoldnodeError(f'"{image}" is no image', remedy="name one as REGISTRY/NAME@DIGEST")
    source = data("integrations/kubernetes")
    texts = {name: (source / name).read_text(encoding="utf-8") for name in FILES}
    texts["check.yaml"] = texts["check.yaml"].replace(PLACEHOLDER, image)
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
