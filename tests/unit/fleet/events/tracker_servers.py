"""Servers that take tickets as the API pages of Jira, ServiceNow and GitHub have it: SIMULATED trackers.

They refuse what these pages refuse: a text as description in version 3 of Jira, a document in version 2, labels
with spaces, requests without a login. `lose` ends the connection after the effect, as a proxy that restarts does.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD = "bot@example.org", "canary-s3cr3t-of-tracker"
_ADF_INLINE = ("text", "hardBreak")


class TrackerServer:
    """One server. `records`: what was created. `lose`: requests of this method whose answer is lost."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.comments: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.lose: list[str] = []
        self.bearer = False
        self.without_column = False
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                content = json.loads(self.rfile.read(size)) if size else None
                tracker.requests.append((self.command, self.path))
                login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                wanted = f"Bearer {PASSWORD}" if tracker.bearer else f"Basic {login}"
                if self.headers["Authorization"] != wanted:
                    status, body = 401, {"message": "who are you"}
                else:
                    status, body = tracker.route(self.command, self.path, content)
                if self.command in tracker.lose and status < 300:
                    tracker.lose.remove(self.command)
                    self.close_connection = True
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815 - names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def route(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        raise NotImplementedError


def adf_fault(value: Any) -> str:
    """Return why a value is no document of version 1; empty if it is one."""
    if not isinstance(value, dict) or value.get("type") != "doc" or value.get("version") != 1:
        return "Operation value must be an Atlassian Document"
    for block in value["content"]:
        if block["type"] != "paragraph":
            return f"unknown block {block['type']}"
        for node in block["content"]:
            if node["type"] not in _ADF_INLINE:
                return f"unknown node {node['type']}"
            if node["type"] == "text" and not node["text"]:
                return "empty text"
    return ""


class Jira(TrackerServer):
    """Jira with one version of its API."""

    version = "3"

    def route(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        place, api = urlsplit(path).path, f"/rest/api/{self.version}"
        if (method, place) == ("POST", f"{api}/issue"):
            return self._create(content["fields"])
        if (method, place) == (
            "POST",
            f"{api}/search/jql" if self.version == "3" else f"{api}/search",
        ):
            label = re.search(r'labels = "([^"]+)"', content["jql"])
            rows = [
                {"id": one["id"], "key": one["key"]}
                for one in self.records
                if label and label[1] in one["fields"]["labels"]
            ]
            return 200, {"issues": rows, "isLast": True}
        if place == "/rest/api/3/search":
            return 410, {"errorMessages": ["The requested API has been removed"]}
        match = re.fullmatch(rf"{api}/issue/([A-Z]+-\d+)/comment", place)
        if match and method == "GET":
            return 200, {"comments": [{"body": one} for one in self.comments.get(match[1], [])]}
        if match and method == "POST":
            if self._text_fault(content["body"]):
                return 400, {"errors": {"comment": self._text_fault(content["body"])}}
            self.comments.setdefault(match[1], []).append(content["body"])
            return 201, {"id": "1"}
        return 404, {}

    def _text_fault(self, value: Any) -> str:
        if self.version == "3":
            return adf_fault(value)
        return "" if isinstance(value, str) else "Operation value must be a string"

    def _create(self, fields: dict[str, Any]) -> tuple[int, Any]:
        fault = self._text_fault(fields["description"])
        if fault:
            return 400, {"errors": {"description": fault}}
        if any(" " in label for label in fields["labels"]) or len(fields["summary"]) > 255:
            return 400, {"errors": {"labels": "The label contains spaces which is invalid"}}
        key = f"{fields['project']['key']}-{len(self.records) + 1}"
        self.records.append({"id": str(len(self.records) + 10000), "key": key, "fields": fields})
        return 201, {"id": self.records[-1]["id"], "key": key, "self": f"{self.url}/{key}"}


class Jira2(Jira):
    """Jira Data Center."""

    version = "2"


class ServiceNow(TrackerServer):
    """The Table API. A query for a column that the table lacks is ignored, and all rows are the answer."""

    def route(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        parts = urlsplit(path)
        words = parse_qs(parts.query)
        match = re.fullmatch(r"/api/now/table/(\w+)(?:/(\w+))?", parts.path)
        if match is None:
            return 404, {}
        if method == "POST":
            name = f"{len(self.records) + 1:032x}"
            self.records.append({**content, "sys_id": name, "number": f"INC{len(self.records)}"})
            return 201, {"result": {"sys_id": name, "number": self.records[-1]["number"]}}
        if method == "PATCH":
            self.comments.setdefault(str(match[2]), []).append(content["work_notes"])
            return 200, {"result": {"sys_id": match[2]}}
        query = words["sysparm_query"][0]
        if match[1] == "sys_journal_field":
            name, mark = re.match(r"element_id=(\w+)\^.*valueLIKE(.*)", query).groups()  # type: ignore[union-attr]
            rows = [
                {"sys_id": "1", "value": one} for one in self.comments.get(name, []) if mark in one
            ]
            return 200, {"result": rows}
        if self.without_column:
            return 200, {"result": [{"sys_id": "9", "number": "TASK9"}]}
        mark = query.removeprefix("correlation_id=")
        return 200, {"result": [one for one in self.records if one["correlation_id"] == mark]}


class GitHub(TrackerServer):
    """Issues of one repository. The labels of this user are dropped."""

    def route(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        place = urlsplit(path).path
        if place == "/repos/ops/repairs/issues" and method == "POST":
            number = len(self.records) + 1
            address = f"https://github.example/ops/repairs/issues/{number}"
            self.records.append({**content, "number": number, "html_url": address, "labels": []})
            return 201, self.records[-1]
        if place == "/repos/ops/repairs/issues":
            page = int(parse_qs(urlsplit(path).query).get("page", ["1"])[0])
            return 200, list(reversed(self.records))[(page - 1) * 100 : page * 100]
        match = re.fullmatch(r"/repos/ops/repairs/issues/(\d+)/comments", place)
        if match and method == "POST":
            self.comments.setdefault(match[1], []).append(content["body"])
            return 201, {"id": 1}
        if match:
            return 200, [{"body": one} for one in self.comments.get(match[1], [])]
        return 404, {}
