"""The site's own commands as a way to drain: they show no state, so the records of earlier runs decide."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from goldnode.core.command_environment import without_secrets
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.drain.protocol import DrainCaller, DrainOutcome, busy, moved, own
from goldnode.fleet.drain.record import DRAIN, RESUME, DrainRecord, DrainRecords
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import FILE, mark, reason

# Notes the exit status of a command where it outlives the run that started it, which a signal to the run's process group must not end.
NOTING = 'f=$1; shift; "$@"; s=$?; echo $s >"$f.new" && mv "$f.new" "$f"; exit $s'


@dataclass
class CommandDrainer:
    """Drain with the site's own programs. Their arguments are the node's name and, for a drain, the reason.

    Exit status 0 is success. Exit status 3 of `drain_command` means that the node was out of
    service already; a line `reason: TEXT` on its output then has the reason, by which a drain of a
    run is recognised.
    """

    drain_command: Sequence[str]
    resume_command: Sequence[str]

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        stored = records.read() if records else drain_record.FoundRecords()
        old = own(stored, "command", node) or (stored.local if stored.damaged else None)
        # A command shows no state, so the record of another run is all there is to see of its drain.
        if old and caller.works(old.run, old.since):
            raise busy(node, old.run, old.controller, old.since)
        known = self._known(old, stored, records)
        actor = caller.actor
        text = reason(actor.run, actor.controller, caller.now(), why)
        record = DrainRecord(
            "command",
            node=node,
            run=actor.run,
            controller=actor.controller,
            since=caller.now(),
            reason=text,
            in_service=known or None,
        )
        # Before the command: a run that is killed in it must leave a trace of the drain.
        if records:
            records.write(record)
        status, said = self._call(
            [*self.drain_command, node, text],
            records.status_file(actor.run, DRAIN) if records else None,
        )
        if status not in (0, 3):
            raise GoldnodeError(
                f"{' '.join(self.drain_command)} {node} failed: {said}",
                remedy="Put that right, then run again",
            )
        given = re.search(r"^reason: *(.*)$", said, re.MULTILINE) if status == 3 else None
        if given:
            held = mark(given[1].strip())
            if held and caller.works(held.run, held.time):
                raise busy(node, held.run, held.controller, held.time)
            known = held is not None
        # Exit status 3 with a mark, or with a known record, is the continued drain of a run: the node was in service before.
        in_service = status == 0 or bool(known)
        record = replace(record, in_service=in_service)
        if records:
            records.write(record)
        left = old.about() if old and status == 3 and in_service else None
        note = f"{node} was out of service before, as {self.drain_command[0]} says"
        if old and known is None:
            note = f"{note}; {old.about()} was cut off as it drained the node, and it cannot be seen whose drain this is"
        elif stored.damaged:
            note = f"{note}; {FILE} on the node cannot be read ({stored.damaged})"
        elif stored.local and not old:
            note = f"{note}; {stored.local.about()} of this controller had drained it, and the node has no record of that any more"
        return DrainOutcome(
            changed=status == 0,
            in_service=in_service,
            ours=in_service,
            left=left,
            note=None if in_service else note,
            record=record,
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, None, returns=False)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, before, returns=True)

    def _end(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None,
        before: bool | None,
        returns: bool,
    ) -> DrainOutcome:
        stored = records.read() if records else drain_record.FoundRecords()
        if stored.node and (stored.node.by, stored.node.node) != ("command", node):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=stored.node.about(),
                note=moved(stored.node, "command", node),
            )
        record = stored.node or (stored.local if stored.damaged else None)
        left = record.about() if record and record.run != caller.actor.run else None
        if record and caller.works(record.run, record.since):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=left,
                note=str(busy(node, record.run, record.controller, record.since)),
            )
        in_service = self._known(record, stored, records) if record else before
        if in_service and records and record is None and identity.is_rollout(caller.actor.run):
            # The record went with a return of which the controller could not report. To return the node again could
            # undo a person's drain since.
            return DrainOutcome(changed=False, in_service=True)
        if in_service:
            # Done already by a run that was killed before it could forget the drain?
            done = bool(records and record and records.status(record.run, RESUME) == 0)
            if not done and not returns:
                return DrainOutcome(
                    changed=False, in_service=True, ours=True, left=left, record=record
                )
            if not done:
                noted = records.status_file(record.run, RESUME) if records and record else None
                status, said = self._call([*self.resume_command, node], noted)
                if status != 0:
                    raise GoldnodeError(
                        f"{' '.join(self.resume_command)} {node} failed: {said}",
                        remedy="Put that right, then run again",
                    )
            if records:
                records.clear()
            return DrainOutcome(changed=not done, in_service=True, left=left, record=record)
        note = f"{node} was out of service before, as {self.drain_command[0]} says, and stays so."
        if in_service is None:
            why = "the run was cut off as it drained it"
            if stored.damaged:
                why = f"{FILE} on the node cannot be read ({stored.damaged})"
            note = (
                f"It cannot be seen whether {node} was in service before: {why}. It stays as it is."
            )
        if records:
            records.clear()
        return DrainOutcome(
            False,
            False,
            left=left,
            note=f"{note} `{shlex.join([*self.resume_command, node])}` returns it.",
            record=record,
        )

    def marked(self) -> dict[str, str]:
        return {}

    @staticmethod
    def _known(
        record: DrainRecord | None, stored: drain_record.FoundRecords, records: DrainRecords | None
    ) -> bool | None:
        """Return whether the node was in service before the recorded drain.

        None if the run was killed before it could record that.
        """
        if record is None or record.in_service is not None:
            return record.in_service if record else None
        # The controller's copy is written even if the node cannot be reached, so it can have an answer that the node lacks.
        if stored.local and stored.local.run == record.run and stored.local.in_service is not None:
            return stored.local.in_service
        # The run was killed in its command, which ended by itself and has left its status.
        status = records.status(record.run, DRAIN) if records else None
        return None if status is None else {0: True, 3: False}.get(status)

    @staticmethod
    def _call(argv: Sequence[str], noted: Path | None) -> tuple[int, str]:
        """Return exit status and output of a command.

        The command finishes, and its status is recorded, even if this run is killed meanwhile.
        """
        if shutil.which(argv[0]) is None:
            raise GoldnodeError(
                f"{argv[0]}: not found",
                remedy="Correct goldnode_drain_command and goldnode_resume_command",
            )
        words = ["/bin/sh", "-c", NOTING, "sh", str(noted), *argv] if noted else list(argv)
        # Files and no pipes, which would end it as well.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            status = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=without_secrets(),
                check=False,
                start_new_session=True,  # a signal to the group of this process does not reach it
            ).returncode
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode("utf-8", "replace").strip())
        return status, said[0] if status in (0, 3) else said[1] or said[0]
