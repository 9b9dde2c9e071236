"""Trackers of tickets: Jira, ServiceNow, GitHub and plain e-mail. Each call raises EventHookError.

Sources: Jira REST API versions 2 and 3 (the texts of version 3 are Atlassian Document Format, and its search is
`search/jql` since `search` was removed), the Table API of ServiceNow, GitHub's REST API 2022-11-28, RFC 5322 and
RFC 3834. The tests run against servers that follow these pages, not against the products.
"""

from __future__ import annotations

import base64
import email.utils
import json
import smtplib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from goldnode.core.credentials import Credentials, CredentialSource
from goldnode.core.site import SiteHookTicket
from goldnode.fleet.events.hooks import EventHookError, requested
from goldnode.node.ground.text import shortened, spaced

Resolve = Callable[[str], Path]
_LONGEST = 30_000  # characters of a text: Jira takes 32,767
_PAGES = 10  # pages of a list that are searched


@dataclass(frozen=True)
class TicketText:
    """A ticket as trackers get it. `mark` is its id, which the tracker is searched for."""

    mark: str
    summary: str
    body: str


@dataclass(frozen=True)
class RemoteTicket:
    """A record of a tracker: its id there, and its address for persons."""

    id: str
    url: str


class Tracker(Protocol):
    """One tracker."""

    def probe(self) -> None:
        """Ask the tracker with the credentials, and change nothing."""

    def find(self, mark: str) -> RemoteTicket | None:
        """Return the record with a mark."""

    def create(self, text: TicketText) -> RemoteTicket:
        """Create a record."""

    def commented(self, remote: str, mark: str) -> bool:
        """Return whether a record has a comment with a mark."""

    def comment(self, remote: str, text: TicketText) -> None:
        """Add a comment to a record. `text.mark` is the mark of the comment."""


def tracker(hook: SiteHookTicket, resolve: Resolve) -> Tracker:
    """Return the tracker of a hook."""
    kinds: Mapping[str, type[Any]] = {
        "jira2": JiraTracker,
        "jira3": JiraTracker,
        "servicenow": ServiceNowTracker,
        "github": GitHubTracker,
        "mail": MailTracker,
    }
    made: Tracker = kinds[hook.system](hook, resolve)
    return made


@dataclass(frozen=True)
class _Settings:
    hook: SiteHookTicket
    resolve: Resolve

    @property
    def base(self) -> str:
        return self.hook.url.rstrip("/")

    def credentials(self) -> Credentials | None:
        """Return user and password; None for a mail server without a login."""
        if not self.hook.credentials and not self.hook.command:
            return None
        return CredentialSource(
            f"the tracker {urlsplit(self.hook.url).hostname}",
            "events.hooks.NAME.ticket",
            self.resolve(self.hook.credentials) if self.hook.credentials else None,
            self.hook.command,
            alone=True,
            error=EventHookError,
        ).read()

    def ask(self, method: str, path: str, content: Any = None, **headers: str) -> Any:
        """Return the JSON answer of a request."""
        own = self.credentials()
        shown = {"Accept": "application/json", "User-Agent": "goldnode", **headers}
        if content is not None:
            shown["Content-Type"] = "application/json"
        if own is not None and own.user:
            login = base64.b64encode(f"{own.user}:{own.password}".encode()).decode()
            shown["Authorization"] = f"Basic {login}"
        elif own is not None:
            shown["Authorization"] = f"Bearer {own.password}"
        text = requested(
            method,
            f"{self.base}{path}",
            None if content is None else json.dumps(content).encode(),
            headers=shown,
            ca=self.resolve(self.hook.ca) if self.hook.ca else None,
            timeout=self.hook.timeout,
        )
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError:
            raise EventHookError(
                f"{self.base} answered no JSON",
                remedy="compare the address in events.hooks with that of the API",
            ) from None

    def field(self, answer: Any, *names: str) -> str:
        """Return a field of an answer as text. Raises EventHookError for an answer without it."""
        for name in names:
            answer = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(answer, str | int) or answer == "":
            raise EventHookError(f"{self.base}: its answer has no {'.'.join(names)}")
        return str(answer)


class JiraTracker(_Settings):
    """Jira: version 2 with texts, version 3 with documents (ADF)."""

    def probe(self) -> None:
        """See Tracker."""
        self._search("goldnode-probe")

    def find(self, mark: str) -> RemoteTicket | None:
        """See Tracker."""
        issues = self._search(mark)
        return self._remote(issues[0]) if issues else None

    def create(self, text: TicketText) -> RemoteTicket:
        """See Tracker."""
        fields = {
            **self.hook.fields,
            "project": {"key": self.hook.target},
            "issuetype": {"name": self.hook.issue_type},
            "summary": shortened(text.summary, 250),
            "description": self._body(text.body),
            "labels": [*self.hook.fields.get("labels", ()), "goldnode", text.mark],
        }
        return self._remote(self.ask("POST", f"{self._api}/issue", {"fields": fields}))

    def commented(self, remote: str, mark: str) -> bool:
        """See Tracker."""
        path = f"{self._api}/issue/{quote(remote)}/comment?orderBy=-created&maxResults=100"
        return mark in json.dumps(self.ask("GET", path))

    def comment(self, remote: str, text: TicketText) -> None:
        """See Tracker."""
        path = f"{self._api}/issue/{quote(remote)}/comment"
        self.ask("POST", path, {"body": self._body(f"{text.body}\n\n{text.mark}")})

    @property
    def _api(self) -> str:
        return f"/rest/api/{self.hook.system[-1]}"

    def _search(self, mark: str) -> list[Any]:
        jql = f'project = "{self.hook.target}" AND labels = "{mark}"'
        path = f"{self._api}/search" + ("/jql" if self.hook.system == "jira3" else "")
        answer = self.ask("POST", path, {"jql": jql, "fields": ["key"], "maxResults": 1})
        issues = answer.get("issues") if isinstance(answer, dict) else None
        if not isinstance(issues, list):
            raise EventHookError(f"{self.base}: its answer has no issues")
        return issues

    def _remote(self, answer: Any) -> RemoteTicket:
        key = self.field(answer, "key")
        return RemoteTicket(key, f"{self.base}/browse/{key}")

    def _body(self, text: str) -> Any:
        text = shortened(text, _LONGEST)
        if self.hook.system == "jira3":
            return document(text)
        # Its wiki markup would make links and mentions of what a node reports.
        return f"{{noformat}}\n{text.replace('{noformat', '{ noformat')}\n{{noformat}}"


def document(text: str) -> dict[str, Any]:
    """Return a text as a document of the Atlassian Document Format: a paragraph for each block of lines."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.strip()]
    return {
        "version": 1,
        "type": "doc",
        "content": [{"type": "paragraph", "content": _inline(lines)} for lines in blocks],
    }


def _inline(lines: list[str]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = []
    for line in lines:
        if nodes:
            nodes.append({"type": "hardBreak"})
        if line:  # a text node may not be empty
            nodes.append({"type": "text", "text": line})
    return nodes


class ServiceNowTracker(_Settings):
    """ServiceNow: records of one table, found by their `correlation_id`."""

    def probe(self) -> None:
        """See Tracker."""
        self._rows(self.hook.target, "correlation_id=goldnode-probe", "sys_id")

    def find(self, mark: str) -> RemoteTicket | None:
        """See Tracker. The instance may answer any row where the table has no such column: it is compared."""
        rows = self._rows(
            self.hook.target, f"correlation_id={mark}", "sys_id,number,correlation_id"
        )
        right = [row for row in rows if row.get("correlation_id") == mark]
        if rows and not right:
            raise EventHookError(
                f"{self.base}: rows of {self.hook.target} have no correlation_id",
                remedy="name a table with this column as events.hooks.NAME.ticket.target, such as incident",
            )
        return self._remote({"result": right[0]}) if right else None

    def create(self, text: TicketText) -> RemoteTicket:
        """See Tracker."""
        record = {
            **self.hook.fields,
            "short_description": shortened(text.summary, 160),
            "description": shortened(text.body, _LONGEST),
            "correlation_id": text.mark,
            "correlation_display": "goldnode",
        }
        path = f"/api/now/table/{quote(self.hook.target)}?sysparm_fields=sys_id,number"
        return self._remote(self.ask("POST", path, record))

    def commented(self, remote: str, mark: str) -> bool:
        """See Tracker."""
        query = f"element_id={remote}^element=work_notes^valueLIKE{mark}"
        rows = self._rows("sys_journal_field", query, "sys_id,value")
        return any(mark in str(row.get("value")) for row in rows)

    def comment(self, remote: str, text: TicketText) -> None:
        """See Tracker."""
        note = shortened(f"{text.body}\n\n{text.mark}", _LONGEST)
        path = f"/api/now/table/{quote(self.hook.target)}/{quote(remote)}?sysparm_fields=sys_id"
        self.ask("PATCH", path, {"work_notes": note})

    def _rows(self, table: str, query: str, fields: str) -> list[dict[str, Any]]:
        words = urlencode({"sysparm_query": query, "sysparm_fields": fields, "sysparm_limit": "10"})
        answer = self.ask("GET", f"/api/now/table/{quote(table)}?{words}")
        rows = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            raise EventHookError(f"{self.base}: its answer has no result")
        return [row for row in rows if isinstance(row, dict)]

    def _remote(self, answer: Any) -> RemoteTicket:
        name = self.field(answer, "result", "sys_id")
        return RemoteTicket(name, f"{self.base}/{self.hook.target}.do?sys_id={name}")


class GitHubTracker(_Settings):
    """Issues of a GitHub repository. GitHub drops labels of users who may not push: the mark is in the body."""

    def probe(self) -> None:
        """See Tracker."""
        self._ask("GET", f"/repos/{self.hook.target}/issues?per_page=1")

    def find(self, mark: str) -> RemoteTicket | None:
        """See Tracker. The list is asked, not the search, whose index is late."""
        for page in range(1, _PAGES + 1):
            path = f"/repos/{self.hook.target}/issues?state=all&sort=created&direction=desc&per_page=100&page={page}"
            rows = self._list(path)
            for row in rows:
                if mark in str(row.get("body")) and "pull_request" not in row:
                    return self._remote(row)
            if len(rows) < 100:
                return None
        return None

    def create(self, text: TicketText) -> RemoteTicket:
        """See Tracker."""
        issue = {
            **self.hook.fields,
            "title": shortened(text.summary, 250),
            "body": f"{fenced(text.body)}\n\n{text.mark}",
        }
        return self._remote(self._ask("POST", f"/repos/{self.hook.target}/issues", issue))

    def commented(self, remote: str, mark: str) -> bool:
        """See Tracker."""
        for page in range(1, _PAGES + 1):
            path = f"/repos/{self.hook.target}/issues/{quote(remote)}/comments?per_page=100&page={page}"
            rows = self._list(path)
            if any(mark in str(row.get("body")) for row in rows):
                return True
            if len(rows) < 100:
                return False
        return False

    def comment(self, remote: str, text: TicketText) -> None:
        """See Tracker."""
        path = f"/repos/{self.hook.target}/issues/{quote(remote)}/comments"
        self._ask("POST", path, {"body": f"{fenced(text.body)}\n\n{text.mark}"})

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        more = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        return self.ask(method, path, content, **more)

    def _list(self, path: str) -> list[dict[str, Any]]:
        answer = self._ask("GET", path)
        if not isinstance(answer, list):
            raise EventHookError(f"{self.base}: its answer is no list")
        return [row for row in answer if isinstance(row, dict)]

    def _remote(self, answer: Any) -> RemoteTicket:
        return RemoteTicket(self.field(answer, "number"), self.field(answer, "html_url"))


def fenced(text: str) -> str:
    """Return a text as a code block of Markdown: no mention, link or image of it comes into effect."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{shortened(text, _LONGEST)}\n{fence}"


class MailTracker(_Settings):
    """Plain e-mail. The id of a message is that of its cause: receivers drop a repetition and thread follow-ups."""

    def probe(self) -> None:
        """See Tracker."""
        self._with(lambda server: server.noop())

    def find(self, mark: str) -> RemoteTicket | None:
        """See Tracker. A mailbox cannot be asked: a message without a known end is sent again, with its id."""
        return None

    def create(self, text: TicketText) -> RemoteTicket:
        """See Tracker."""
        self._send(self._message(text, self._id(text.mark)))
        return RemoteTicket(text.mark, f"mailto:{self.hook.target}")

    def commented(self, remote: str, mark: str) -> bool:
        """See Tracker."""
        return False

    def comment(self, remote: str, text: TicketText) -> None:
        """See Tracker."""
        message = self._message(text, self._id(text.mark))
        message["In-Reply-To"] = message["References"] = self._id(remote)
        self._send(message)

    def _id(self, mark: str) -> str:
        domain = (self.hook.sender or "").rpartition("@")[2]
        return f"<{''.join(mark.split())}.goldnode@{domain or 'localhost'}>"

    def _message(self, text: TicketText, name: str) -> EmailMessage:
        message = EmailMessage()
        message["From"], message["To"] = self.hook.sender, self.hook.target
        message["Subject"] = shortened(" ".join(spaced(text.summary).split()), 200)
        message["Message-ID"] = name
        message["Date"] = email.utils.formatdate(localtime=False)
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation message answers it
        message.set_content(shortened(text.body, _LONGEST))
        return message

    def _send(self, message: EmailMessage) -> None:
        self._with(lambda server: server.send_message(message))

    def _with(self, work: Callable[[smtplib.SMTP], Any]) -> None:
        place, own = urlsplit(self.hook.url), self.credentials()
        host = place.hostname or ""
        ca = str(self.resolve(self.hook.ca)) if self.hook.ca else None
        try:
            context = ssl.create_default_context(cafile=ca)
            with self._connected(host, place.port or 0, context) as server:
                if own is not None and place.scheme == "smtp" and not _encrypted(server):
                    raise EventHookError(
                        f"{host} offers no STARTTLS: the password would be readable",
                        remedy="use smtps://, or a server without a login",
                    )
                if own is not None:
                    server.login(own.user, own.password)
                refused = work(server)
                if isinstance(refused, dict) and refused:
                    raise EventHookError(f"{host} refuses {', '.join(sorted(refused))}")
        except (OSError, smtplib.SMTPException) as problem:
            # The text of an error of a login has the answer of the server, and no password.
            raise EventHookError(f"{host} does not take the mail: {problem}") from problem

    def _connected(self, host: str, port: int, context: ssl.SSLContext) -> smtplib.SMTP:
        if self.hook.url.startswith("smtps:"):
            return smtplib.SMTP_SSL(host, port, timeout=self.hook.timeout, context=context)
        server = smtplib.SMTP(host, port, timeout=self.hook.timeout)
        server.ehlo()
        if server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
        return server


def _encrypted(server: smtplib.SMTP) -> bool:
    return isinstance(server.sock, ssl.SSLSocket)
