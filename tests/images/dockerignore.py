"""Ask Docker's builders which files a .dockerignore leaves out.

`python -m tests.images.dockerignore` asks again for every case and writes tests/cases/dockerignore.json. $CLASSIC and
$BUILDKIT name the docker programs; BuildKit needs one with a builder of its own (20.10) or buildx.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "cases/dockerignore.json"


def read_table() -> dict[str, Any]:
    """Return the recorded table: `tree`, and `cases` of text with the files that each builder left out, or its error."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def write_tree(context: Path, tree: list[str]) -> None:
    """Write the files of the table and a Dockerfile that copies all."""
    for name in tree:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")


def classic(context: Path, tree: list[str]) -> list[str] | str:
    """Return the files that the classic builder leaves out, or its error."""
    docker = os.environ.get("CLASSIC", "docker")
    built = _run(docker, "build", "-q", "--no-cache", "--force-rm", str(context), buildkit="0")
    if built.returncode:
        return f"error: {built.stderr.decode().strip().splitlines()[-1]}"
    image = built.stdout.decode().split()[-1]
    try:
        container = _run(docker, "create", image, "x").stdout.decode().strip()
        data = _run(docker, "export", container).stdout
        _run(docker, "rm", container)
    finally:
        _run(docker, "rmi", "-f", image)
    return _missing(tree, data)


def buildkit(context: Path, tree: list[str]) -> list[str] | str:
    """Return the files that BuildKit leaves out, or its error."""
    docker = os.environ.get("BUILDKIT", "docker")
    out = context.parent / "out.tar"
    options = ("build", "-q", "--output", f"type=tar,dest={out}")
    built = _run(docker, *options, str(context), buildkit="1")
    if built.returncode:
        return f"error: {built.stderr.decode().strip().splitlines()[-1]}"
    return _missing(tree, out.read_bytes())


def _run(*command: str, buildkit: str = "0") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "DOCKER_BUILDKIT": buildkit}
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)


def _missing(tree: list[str], data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = {info.name.removeprefix("./") for info in tar if info.isreg()}
    return [name for name in tree if name not in names]


def main() -> None:
    """Ask both builders for every case, and write the table."""
    table = read_table()
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder) / "context"
        write_tree(context, table["tree"])
        for case in table["cases"]:
            (context / ".dockerignore").write_bytes(case["text"].encode())
            for name, ask in (("classic", classic), ("buildkit", buildkit)):
                case[name] = ask(context, table["tree"])
    head = {key: value for key, value in table.items() if key != "cases"}
    rows = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in table["cases"])
    text = json.dumps(head, ensure_ascii=False, indent=1)[:-2]
    TABLE.write_text(f'{text},\n "cases": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
