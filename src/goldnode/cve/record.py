"""The record of a vulnerability: a folder of the site with its mitigation, its events, its rollouts and its proof."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from pydantic import ValidationError

from goldnode.classdoc import mitigations
from goldnode.core.errors import SiteError
from goldnode.core.files import sync
from goldnode.core.site import Site
from goldnode.documents.cve_lane import LaneEvent

EVENTS, PROOF = "record.jsonl", "proof.json"
MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def moment(at: dt.datetime) -> str:
    """Return a time as records have it."""
    return at.astimezone(dt.UTC).strftime(MOMENT)


def event(
    at: dt.datetime, by: str, step: str, kind: str, text: str = "", *, class_: str | None = None
) -> LaneEvent:
    """Return an event: `kind` is begun, proved or stopped."""
    content = {"at": moment(at), "by": by, "step": step, "event": kind, "text": text}
    return LaneEvent.model_validate({**content, "class": class_})


class CveRecord:
    """The folder of one vulnerability. It is created with its first event."""

    def __init__(self, site: Site, cve: str) -> None:
        self.cve, self.folder = cve, mitigations.directory(site) / cve

    @property
    def mitigation(self) -> Path:
        """Return the file of the mitigation."""
        return self.folder / mitigations.FILE

    @property
    def proof(self) -> Path:
        """Return the file of the proof."""
        return self.folder / PROOF

    def rollout(self, class_: str) -> Path:
        """Return the file of the rollout document of a class."""
        return self.folder / f"rollout-{class_}.yml"

    def events(self) -> list[LaneEvent]:
        """Return the events, oldest first. Raise SiteError for a line that is none.

        A last line without its end was cut by a crash, before its effect began: it is left out.
        """
        path = self.folder / EVENTS
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as problem:
            raise SiteError(
                f"the record cannot be read: {problem}", file=path, remedy="make it readable"
            ) from problem
        events = []
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                events.append(LaneEvent.model_validate_json(line))
            except ValidationError as problem:
                raise SiteError(
                    f"this line is no event of a record: {problem.errors()[0]['msg']}",
                    file=path,
                    line=number,
                    remedy="restore the file from a copy; a record is never edited",
                ) from problem
        return events

    def add(self, event: LaneEvent) -> None:
        """Write an event durably. Raise OSError: without a record there is no effect."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / EVENTS
        line = event.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
        with path.open("ab+") as file:
            # A line that a crash has cut is ended, so that it spoils no other.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.truncate(_whole_lines(path))
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync(self.folder)

    def published(self) -> dt.datetime | None:
        """Return when the vulnerability was published, by the last event that states it."""
        stated = [event.text for event in self.events() if event.step == "published"]
        if not stated:
            return None
        return dt.datetime.strptime(stated[-1], MOMENT).replace(tzinfo=dt.UTC)


def _whole_lines(path: Path) -> int:
    data = path.read_bytes()
    return data.rfind(b"\n") + 1


def hours_since(published: dt.datetime | None, now: dt.datetime) -> float | None:
    """Return the hours since a publication, with one decimal; None if it is not recorded."""
    return None if published is None else round((now - published).total_seconds() / 3600, 1)
