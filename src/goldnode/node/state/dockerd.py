"""Reader of the state of the running docker daemon, over its socket (Docker Engine API). Read-only."""

from __future__ import annotations

import json

from ..ground.host import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional


SOCKET = "/var/run/docker.sock"
# A daemon with many containers answers within a second. One that hangs must not block the check.
SECONDS = 10.0

# Device files of GPUs: NVIDIA's, and AMD's compute and render nodes.
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def ask(path: str, where: str = SOCKET) -> Any:
    """Return the JSON answer to GET `path`. Raises OSError if docker does not answer.

    HTTP 1.0 (RFC 1945): the answer is whole where the connection ends, and never in chunks. `http.client` loads the
    e-mail parser, which took a seventh of the CPU of a check on a node with docker.
    """
    import socket  # start-up time: nodes without a running docker do not need it

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(where)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
        parts: List[bytes] = []
        while not parts or parts[-1]:
            parts.append(connection.recv(1 << 16))
    head, end, body = b"".join(parts).partition(b"\r\n\r\n")
    version, _, status = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1.") or not end:
        raise OSError(f"GET {path}: the answer is not HTTP")
    if status.split(" ", 1)[0] != "200":
        raise OSError(f"GET {path}: {status}")
    try:
        return json.loads(body)  # fails for an answer that was cut: it is an object or a list
    except ValueError as error:
        raise OSError(f"GET {path}: {error}") from None


def info() -> Json:
    """Return {version, runtimes: name -> program, default, cdi: CDI is enabled}, or {error}."""
    try:
        state = ask("/info")
    except OSError as error:
        return {"error": str(error)}
    runtimes = {
        name: entry.get("path") or entry.get("runtimeType")
        for name, entry in (state.get("Runtimes") or {}).items()
    }
    return {
        "version": state.get("ServerVersion"),
        "runtimes": runtimes,
        "default": state.get("DefaultRuntime"),
        "cdi": bool(state.get("CDISpecDirs")),
    }


def gpu_containers(default: Optional[str]) -> List[Json]:
    """Return the running containers that use a GPU: [{id, name, why}].

    A container that cannot be inspected is included, since it may use one. `default` is the
    daemon's default runtime.
    """
    try:
        rows = ask("/containers/json")
    except OSError as error:
        unknown = f"docker does not answer at {SOCKET}, so that it is unknown what its containers use: {error}"
        return [{"id": "unknown", "name": "any container", "why": unknown}]
    containers = []
    for row in rows:
        name = ", ".join(str(item).lstrip("/") for item in row.get("Names") or ())
        try:
            why = uses_gpu(ask(f"/containers/{row['Id']}/json"), default)
        except OSError as error:
            why = (
                None if "404" in str(error) else str(error)
            )  # 404: the container has exited meanwhile
        if why:
            containers.append({"id": row["Id"][:12], "name": name, "why": why})
    return containers


def uses_gpu(container: Json, default: Optional[str]) -> Optional[str]:
    """Return how a container got access to a GPU, or None if it has no access."""
    config: Dict[str, Any] = container.get("HostConfig") or {}
    for request in config.get("DeviceRequests") or ():
        if request.get("Driver") == "cdi":
            names = [
                name
                for name in request.get("DeviceIDs") or ()
                if name.partition("/")[0] in ("nvidia.com", "amd.com")
            ]
            if names:
                return f"CDI device {', '.join(names)}"
        else:
            return "--gpus"
    if config.get("Runtime") == "nvidia":
        wanted = dict(
            item.split("=", 1)
            for item in (container.get("Config") or {}).get("Env") or ()
            if "=" in item
        )
        # If nvidia is the default runtime, every container has it. Only this variable
        # shows which ones want a GPU.
        if default != "nvidia" or wanted.get("NVIDIA_VISIBLE_DEVICES", "") not in (
            "",
            "void",
            "none",
        ):
            return "runtime nvidia"
    files = [
        str(item.get("PathOnHost"))
        for item in config.get("Devices") or ()
        if str(item.get("PathOnHost")).startswith(GPU_FILES)
    ]
    return f"device {', '.join(files)}" if files else None
