"""The suite as a Kubernetes Job. Written by Kubernetes' documentation and tested against a recorded API: not verified on a cluster."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from goldnode.canary import pack
from goldnode.canary.errors import CanaryError
from goldnode.canary.session import PERIOD, CanaryRun
from goldnode.documents.canary import CanaryDocument

START = 60.0  # seconds within which the pod must run: otherwise the node has no GPUs free
GRACE = 8  # seconds between SIGTERM and SIGKILL, within the ten that work waits
ANSWER = 30.0  # seconds for one call of kubectl
DEADLINE = 3600  # seconds of a Job: the longest run of a node


def prepared(
    request: Mapping[str, Any], node: str, image: str, namespace: str | None = None, gpus: int = 0
) -> CanaryRun:
    """Return the run of a Job on one node. The command creates it; its manifest is in `request`."""
    name = f"goldnode-canary-{os.getpid()}-{os.urandom(3).hex()}"
    asked = {**request, "values": {**request.get("values", {}), "node": node, "how": "kubernetes"}}
    words = ("kubectl", *(("--namespace", namespace) if namespace else ()))
    return CanaryRun(node, "kubernetes", words, manifest(name, node, image, gpus, asked))


def manifest(
    name: str, node: str, image: str, gpus: int, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Return Job and ConfigMap as one List.

    The ConfigMap carries the program (below the limit of 1 MiB). GPUs are requested like any pod's,
    so that the pod waits where other pods have them. It tolerates a cordoned node.
    """
    labels = {"app.kubernetes.io/name": "goldnode-canary", "app.kubernetes.io/instance": name}
    container = {
        "name": "canary",
        "image": image,
        "command": [
            "python3",
            "-I",
            "/canary/goldnode-canary",
            "--request",
            "/canary/request.json",
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the container's own
        "volumeMounts": [
            {"name": "canary", "mountPath": "/canary", "readOnly": True},
            {"name": "work", "mountPath": "/tmp"},  # noqa: S108
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [
            {
                "key": "node.kubernetes.io/unschedulable",
                "operator": "Exists",
                "effect": "NoSchedule",
            }
        ],
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "canary", "configMap": {"name": name}},
            {"name": "work", "emptyDir": {}},
        ],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE,  # also where this controller has died
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    data = {"goldnode-canary": base64.b64encode(pack.program()).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "binaryData": data,
        "data": {"request.json": json.dumps(request)},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [config, job]}


def run(given: CanaryRun) -> CanaryDocument:
    """Create the Job, wait for its end, and return its document. Raises CanaryError. Job and ConfigMap are removed."""
    name = given.request["items"][1]["metadata"]["name"]
    # `create` and not `apply`, which would repeat the program in an annotation.
    _kubectl(given, "create", "--filename=-", stdin=json.dumps(given.request))
    try:
        why = _wait(given, name)
        # A deleted pod has no logs, so work that has arrived leaves no document.
        if why:
            raise CanaryError(
                f"{given.node}: ended without results: {why}", remedy="run it again on an idle node"
            )
        return _document(given, _kubectl(given, "logs", f"job/{name}", "--container=canary"))
    finally:
        words = ("delete", "--ignore-not-found", "--wait=false", f"job/{name}", f"configmap/{name}")
        with contextlib.suppress(subprocess.TimeoutExpired):  # the Job ends by its deadline
            subprocess.run(
                [*given.command, *words], capture_output=True, check=False, timeout=ANSWER
            )


def _wait(given: CanaryRun, name: str) -> str:
    """Wait until the Job has ended. Return why it was given up; empty if it has ended."""
    started = time.monotonic()
    while True:
        status = json.loads(_kubectl(given, "get", f"job/{name}", "--output=json")).get(
            "status", {}
        )
        if status.get("succeeded") or status.get("failed"):
            return ""
        passed = time.monotonic() - started
        if not status.get("ready") and passed > START:
            return f"its pod did not run within {START:g} s: the node is busy, or lacks the image"
        if passed > given.limit:
            return f"it did not end within {given.limit:g} s"
        if given.arrived is not None and (work := given.arrived()):
            return work
        time.sleep(PERIOD)


def _document(given: CanaryRun, text: str) -> CanaryDocument:
    # Standard error is in the log, too: the document is what begins with a brace.
    start = text.find("{")
    try:
        document, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
        return CanaryDocument.model_validate_json(json.dumps(document))
    except (ValueError, ValidationError):
        last = (text.strip().splitlines() or ["it printed nothing"])[-1][:300]
        raise CanaryError(
            f"{given.node}: the Job gave no document of schema goldnode.canary/1: {last}"
        ) from None


def _kubectl(given: CanaryRun, *words: str, stdin: str | None = None) -> str:
    try:
        done = subprocess.run(
            [*given.command, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER,
        )
    except FileNotFoundError:
        raise CanaryError("kubectl: not found on this machine", remedy="install kubectl") from None
    except subprocess.TimeoutExpired:
        raise CanaryError(f"kubectl {words[0]}: no answer within {ANSWER:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CanaryError(f"kubectl {words[0]} failed: {last}", remedy="see the message of kubectl")
    return done.stdout
