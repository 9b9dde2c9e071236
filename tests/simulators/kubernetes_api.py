"""A simulated Kubernetes API server: what kubectl asks for when it reads, cordons, annotates and drains nodes.

It keeps nodes and pods in memory. Its answers follow the documentation of Kubernetes 1.36: API concepts
(https://kubernetes.io/docs/reference/using-api/api-concepts/: resource versions, chunks), field management
(https://kubernetes.io/docs/reference/using-api/server-side-apply/), field selectors
(https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/), evictions
(https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/) and Status
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/). It has no scheduler, no
controllers, no authentication and no admission.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
GROUPS = {"apps": ["daemonsets", "replicasets"], "policy": ["poddisruptionbudgets"]}
PATHS = re.compile(
    r"/api/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>nodes|pods|events)(?:/(?P<name>[^/]+))?(?P<part>/eviction|/status)?"
)
OWNER = re.compile(r"/apis/apps/v1/namespaces/(?P<namespace>[^/]+)/daemonsets/(?P<name>[^/]+)")


class RefusedError(Exception):
    """An answer that is a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": code,
        }


def not_found(kind: str, name: str) -> RefusedError:
    details = {"name": name, "kind": kind}
    return RefusedError(404, "NotFound", f'{kind} "{name}" not found', details)


@dataclass
class Cluster:
    """The objects of a cluster.

    `budgets`: labels `app` whose pods no eviction may end. `refuses`: (verb, kind) that the user has no right to.
    `grace`: seconds that an evicted pod takes to end. `before_patch`: called before a patch is applied.
    """

    nodes: dict[str, Json] = field(default_factory=dict)
    pods: dict[tuple[str, str], Json] = field(default_factory=dict)
    budgets: set[str] = field(default_factory=set)
    refuses: set[tuple[str, str]] = field(default_factory=set)
    grace: float = 0.1
    before_patch: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    revision: int = 1000
    lock: threading.RLock = field(default_factory=threading.RLock)
    ends: dict[tuple[str, str], float] = field(default_factory=dict)

    def add_node(self, name: str, **spec: Any) -> None:
        self.revision += 1
        metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": str(self.revision)}
        labels = {"kubernetes.io/hostname": name}
        self.nodes[name] = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {**metadata, "labels": labels, "managedFields": []},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    def add_pod(
        self,
        node: str,
        name: str,
        owner: str | None,
        app: str = "",
        phase: str = "Running",
        volumes: tuple[str, ...] = (),
        limit: int | None = None,
        mirror: bool = False,
    ) -> None:
        """Add a pod; `owner`: kind of its controller, None for a pod without one."""
        self.revision += 1
        metadata: Json = {"name": name, "namespace": "jobs", "uid": f"u-{name}-{self.revision}"}
        metadata["resourceVersion"] = str(self.revision)
        metadata["labels"] = {"app": app or name}
        if mirror:
            metadata["annotations"] = {"kubernetes.io/config.mirror": "x"}
        if owner:
            one = {"apiVersion": "apps/v1", "kind": owner, "name": f"{name}-owner", "uid": "u"}
            metadata["ownerReferences"] = [{**one, "controller": True}]
        spec: Json = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        spec["volumes"] = [{"name": kind, kind: {}} for kind in volumes]
        if limit is not None:
            spec["activeDeadlineSeconds"] = limit
        self.pods["jobs", name] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": spec,
            "status": {"phase": phase, "startTime": "2026-11-29T00:00:00Z"},
        }

    def running(self) -> list[str]:
        with self.lock:
            self._end()
            return sorted(name for _, name in self.pods)

    def conditions(self, name: str) -> dict[str, Json]:
        with self.lock:
            return {row["type"]: dict(row) for row in self.nodes[name]["status"]["conditions"]}

    def patch_node(self, name: str, patch: Json, manager: str) -> Json:
        """Merge a patch into a node, note who set what, and return the node."""
        self.before_patch()
        with self.lock:
            if name not in self.nodes:
                raise not_found("nodes", name)
            node = self.nodes[name]
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != node["metadata"]["resourceVersion"]:
                raise RefusedError(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on nodes "{name}": the object has been modified; '
                    "please apply your changes to the latest version and try again",
                    {"name": name, "kind": "nodes"},
                )
            before = copy.deepcopy(node)
            patch = copy.deepcopy(patch)
            patch.get("metadata", {}).pop("resourceVersion", None)
            _merge(node, patch)
            changed = dict(_leaves(before, node))
            if changed:
                self.revision += 1
                node["metadata"]["resourceVersion"] = str(self.revision)
                _own(node["metadata"]["managedFields"], changed, manager)
            return node

    def patch_conditions(self, name: str, patch: Json) -> Json:
        """Merge conditions into those of a node by their type, as their patchMergeKey has it."""
        with self.lock:
            if name not in self.nodes:
                raise not_found("nodes", name)
            status = self.nodes[name]["status"]
            merged = {row["type"]: row for row in status["conditions"]}
            for row in patch["status"]["conditions"]:
                merged[row["type"]] = {**merged.get(row["type"], {}), **row}
            status["conditions"] = [*merged.values()]
            self.revision += 1
            self.nodes[name]["metadata"]["resourceVersion"] = str(self.revision)
            return copy.deepcopy(self.nodes[name])

    def add_event(self, namespace: str, event: Json) -> Json:
        """Keep an event that passes the API server's validation: its namespace, and at most 1,024 characters."""
        with self.lock:
            of = event["involvedObject"].get("namespace", "")
            if namespace != event["metadata"].get("namespace") or of not in ("", namespace):
                message = "involvedObject.namespace: Invalid value: does not match event.namespace"
                raise RefusedError(422, "Invalid", message)
            if len(event.get("message", "")) > 1024:
                raise RefusedError(422, "Invalid", "message: can have at most 1024 characters")
            self.events.append(event)
            return event

    def evict(self, namespace: str, name: str) -> None:
        with self.lock:
            pod = self.pods.get((namespace, name))
            if pod is None:
                raise not_found("pods", name)
            if pod["metadata"]["labels"]["app"] in self.budgets:
                cause = {"reason": "DisruptionBudget", "message": "The disruption budget needs 1."}
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise RefusedError(429, "TooManyRequests", message, {"causes": [cause]})
            pod["metadata"].setdefault("deletionTimestamp", "2026-11-29T00:00:01Z")
            self.ends.setdefault((namespace, name), time.monotonic() + self.grace)

    def listed(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> Json:
        with self.lock:
            self._end()
            rows = [*self.nodes.values()] if kind == "nodes" else [*self.pods.values()]
            rows = [
                row for row in rows if namespace in (None, row["metadata"].get("namespace", None))
            ]
            rows = [row for row in rows if _selected(row, query.get("fieldSelector", ""))]
            start = int(query.get("continue") or 0)
            end = start + int(query.get("limit") or len(rows) or 1)
            metadata: Json = {"resourceVersion": str(self.revision)}
            if end < len(rows):
                metadata["continue"] = str(end)
            of = {"nodes": "NodeList", "pods": "PodList"}[kind]
            return {
                "kind": of,
                "apiVersion": "v1",
                "metadata": metadata,
                "items": copy.deepcopy(rows[start:end]),
            }

    def one(self, kind: str, namespace: str | None, name: str) -> Json:
        with self.lock:
            self._end()
            found = self.nodes.get(name) if kind == "nodes" else None
            if kind == "pods":
                found = self.pods.get((namespace or "", name))
            if found is None:
                raise not_found(kind, name)
            return copy.deepcopy(found)

    def _end(self) -> None:
        for key, end in [*self.ends.items()]:
            if time.monotonic() >= end:
                del self.ends[key]
                self.pods.pop(key, None)


def _merge(value: Json, patch: Json) -> None:
    """RFC 7396, which is a strategic merge as well where no list is patched."""
    for key, item in patch.items():
        if item is None:
            value.pop(key, None)
        elif isinstance(item, dict):
            _merge(value.setdefault(key, {}), item)
        else:
            value[key] = item


def _leaves(before: Json, after: Json) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each field that differs, and whether it is there now."""
    for part in ("annotations", "labels"):
        old, new = before["metadata"].get(part, {}), after["metadata"].get(part, {})
        for key in {*old, *new}:
            if old.get(key) != new.get(key):
                yield ("metadata", part, key), key in new
    for key in {*before["spec"], *after["spec"]}:
        if before["spec"].get(key) != after["spec"].get(key):
            yield ("spec", key), key in after["spec"]


def _own(rows: list[Json], changed: Mapping[tuple[str, ...], bool], manager: str) -> None:
    """Give changed fields to their manager, and take them from all others."""
    owned: dict[str, set[tuple[str, ...]]] = {
        row["manager"]: set(_paths(row["fieldsV1"])) for row in rows
    }
    for paths in owned.values():
        paths -= set(changed)
    owned.setdefault(manager, set()).update(path for path, there in changed.items() if there)
    rows[:] = [
        {
            "manager": name,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-11-29T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(paths),
        }
        for name, paths in owned.items()
        if paths
    ]


def _tree(paths: set[tuple[str, ...]]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        place = tree
        for key in path:
            place = place.setdefault(f"f:{key}", {})
    return tree


def _paths(tree: Json, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        path = (*above, key.removeprefix("f:"))
        if value:
            yield from _paths(value, path)
        else:
            yield path


def _selected(row: Json, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        matched = re.fullmatch(r"([\w.]+)(!=|==|=)(.*)", part)
        assert matched is not None, selector
        key, sign, wanted = matched.groups()
        value: Any = row
        for name in key.split("."):
            value = value.get(name, {}) if isinstance(value, dict) else {}
        if key == "spec.unschedulable":
            value = bool(value)
        text = str(value).lower() if isinstance(value, bool) else str(value or "")
        if (text == wanted) == (sign == "!="):
            return False
    return True


def _discovery(path: str) -> Json | None:
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0-simulated"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups = []
        for name in GROUPS:
            version = {"groupVersion": f"{name}/v1", "version": "v1"}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/api/v1":
        rows: list[Json] = [
            {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node"},
            {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod"},
        ]
        evictions = {"name": "pods/eviction", "singularName": "", "namespaced": True}
        rows.append({**evictions, "group": "policy", "version": "v1", "kind": "Eviction"})
        return _resources("v1", rows)
    for name, kinds in GROUPS.items():
        if path == f"/apis/{name}/v1":
            rows = [{"name": kind, "namespaced": True, "kind": kind.title()} for kind in kinds]
            return _resources(f"{name}/v1", rows)
    return None


def _resources(version: str, rows: list[Json]) -> Json:
    resources = [{"verbs": VERBS, **row} for row in rows]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        try:
            code, answer = self._answer(body)
        except RefusedError as refused:
            code, answer = refused.code, refused.status
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of the standard library

    def _answer(self, body: bytes) -> tuple[int, Json]:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if (found := _discovery(url.path)) is not None:
            return 200, found
        if owner := OWNER.fullmatch(url.path):
            return 200, {
                "kind": "DaemonSet",
                "apiVersion": "apps/v1",
                "metadata": {**owner.groupdict()},
            }
        matched = PATHS.fullmatch(url.path)
        if matched is None:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        kind, namespace, name = matched["kind"], matched["namespace"], matched["name"]
        self.cluster.asked.append(f"{self.command} {self.path}")
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "POST": "create"}.get(
            self.command, "delete"
        )
        of = f"{kind}{matched['part'] or ''}"
        if (verb, of) in self.cluster.refuses:
            raise RefusedError(
                403,
                "Forbidden",
                f'{kind} "{name}" is forbidden: User "goldnode" cannot {verb} resource "{of}" in API group "" '
                "at the cluster scope",
            )
        if verb == "list":
            return 200, self.cluster.listed(kind, namespace, query)
        if verb == "get":
            return 200, self.cluster.one(kind, namespace, name)
        if verb == "create" and kind == "events":
            return 201, self.cluster.add_event(namespace, json.loads(body))
        if verb == "patch" and of == "nodes/status":
            return 200, self.cluster.patch_conditions(name, json.loads(body))
        if verb == "patch" and kind == "nodes":
            agent = self.headers.get("User-Agent", "").split("/")[0]
            manager = query.get("fieldManager", agent)
            return 200, copy.deepcopy(self.cluster.patch_node(name, json.loads(body), manager))
        if verb == "create" and of == "pods/eviction":
            self.cluster.evict(namespace, name)
            return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        raise RefusedError(405, "MethodNotAllowed", "the server does not allow this method")


@contextmanager
def serving(cluster: Cluster, kubeconfig: Path) -> Iterator[str]:
    """Serve a cluster on loopback, and write a kubeconfig for it. Yields the address."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    one = {"name": "simulated", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "simulated", "context": {"cluster": "simulated", "user": "goldnode"}}
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [one],
                "contexts": [context],
                "users": [{"name": "goldnode", "user": {"token": "x"}}],
                "current-context": "simulated",
            }
        )
    )
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
