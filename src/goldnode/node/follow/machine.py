"""This node, as `follow` uses it: what it runs, how a state is applied, and how it boots."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ..ground.errors import NodeError
from ..ground.host import ENVIRONMENT, Host, boot_identity
from ..ground.typed import NamedTuple
from ..state import slots
from ..state.observe import gpu_holders
from ..verdict import blame, current
from .channel import image_of
from .repository import ChannelAwayError, ChannelSource, blocks
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Tuple

    from ..ground.host import Json
    from .channel import Wish

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
FELL_BACK = "slot.fallback"  # the finding of a node that gave an image up
PROGRAM = "goldnode-node"  # target of the channel: the program with the writer of images
COPY = "/run/goldnode/follow-program"
REASON = 1000  # letters


class Observation(NamedTuple):
    """A report of this node about itself."""

    boot_id: Optional[str]
    digest: Optional[str]
    verdict: str
    software: List[str]
    hardware: List[str]
    fell_back_from: Optional[str] = None
    settled: bool = True  # False while the boot of an image is still tried

    def fields(self) -> Dict[str, Any]:
        """Return the fields of a request."""
        return {
            "boot_id": self.boot_id,
            "digest": self.digest,
            "verdict": self.verdict,
            "software": self.software[:64],
            "hardware": self.hardware[:64],
            "fell_back_from": self.fell_back_from,
        }


class NotAppliedError(NodeError):
    """A state could not be applied, so no boot follows. The reason counts against the change."""


class Machine:
    """The live node."""

    def __init__(
        self, host: Host, settings: Settings, source: ChannelSource, say: Callable[[str], None]
    ) -> None:
        self.host, self.settings, self.source, self.say = host, settings, source, say

    # Its state

    def boot_id(self) -> Optional[str]:
        """Return the id of this boot."""
        return boot_identity(self.host)

    @property
    def kind(self) -> str:
        """Return the kind of states that this node moves to: its class has a command for locks, or it has slots."""
        return "lock" if self.settings.apply else "disk"

    @property
    def why(self) -> str:
        """Return why the node moves to states of its kind, for a message."""
        if self.settings.apply:
            return "this node follows locks: its class has `follow: {apply: COMMAND}`"
        return "this node follows disk builds: its class has no `follow: {apply: COMMAND}`"

    def observe(self, wanted: Optional[Wish]) -> Observation:
        """Return what the node runs now, and its verdict on that.

        :param wanted: the state that the node has tried to move to, if it has.
        """
        digest, given_up, settled = self.settings.lock, None, True
        software: List[str] = []
        hardware: List[str] = []
        survey = slots.survey(self.host) if self.kind == "disk" else None
        if survey is not None:
            own, other = survey["slots"][survey["running"]], survey["slots"][_other(survey)]
            digest, settled = own["build_id"], survey["tried"] is None
            tried = wanted is not None and other["build_id"] == wanted.digest != digest
            if wanted and tried and other["state"] == slots.FAILED:
                given_up, software = wanted.digest, [FELL_BACK]
        verdict, fault = current.load(self.host.root)
        judged = UNKNOWN
        if fault is None and verdict["exit_code"] in self.settings.accepted:
            judged = PASS
        elif fault is None and verdict["exit_code"] != current.UNKNOWN:
            judged = FAIL
            against, hardware = blame.causes(verdict)
            software = [*software, *against]
        return Observation(
            self.boot_id(),
            digest=digest,
            verdict=judged,
            software=software,
            hardware=hardware,
            fell_back_from=given_up,
            settled=settled,
        )

    def in_use(self) -> Optional[str]:
        """Return which processes use a GPU; None without any."""
        rows = gpu_holders(self.host)
        return ", ".join(f"pid {row['pid']} {row['command']}" for row in rows[:3]) or None

    # Its changes

    def stage(self, document: Json, wanted: Wish) -> Optional[str]:
        """Download what the node needs to apply a state. Return why it is not there yet; None if it is.

        Nothing that runs is touched.
        """
        if wanted.kind == "lock" or self._in_other_slot(wanted.digest):
            return None
        image = image_of(document, wanted.digest)
        if image is None:
            return f"the channel has no image of build {wanted.digest}: `goldnode rollout publish --image`"
        path = self._staged(image)
        return None if os.path.exists(path) else self.source.stage(image, path, self.say)

    def apply(self, document: Json, wanted: Wish, program: Optional[bytes]) -> None:
        """Apply a state, so that the next boot runs it. Raises NotAppliedError."""
        try:
            if wanted.kind == "lock":
                self._apply_lock(wanted)
            elif self._in_other_slot(wanted.digest):
                survey = slots.survey(self.host) or {}
                if survey["slots"][survey["next"]]["build_id"] != wanted.digest:
                    slots.back(self.host)
            else:
                self._write(document, wanted, program)
        except (NotAppliedError, ChannelAwayError):
            raise
        except NodeError as problem:
            raise NotAppliedError(str(problem)[:REASON]) from None

    def reboot(self) -> None:
        """Reboot through systemd. Returns; the boot follows."""
        done = self.host.run("systemctl", "--no-block", "reboot")
        if done.rc != 0:
            raise NodeError(f"the node cannot be rebooted: {done.tail(2)}.")

    def _in_other_slot(self, build: str) -> bool:
        """Return whether the other slot holds a good image of a build, or one that boots next."""
        survey = slots.survey(self.host)
        if survey is None:
            return False
        other = _other(survey)
        row = survey["slots"][other]
        if row["build_id"] != build or row["state"] == slots.EMPTY:
            return False
        known = slots.known(self.host, survey["place"], other)
        return row["state"] == slots.GOOD or bool(known.get("good")) or survey["next"] == other

    def _staged(self, image: Mapping[str, Any]) -> str:
        return self.host.located(f"{self.source.staged}/{os.path.basename(image['path'])}")

    def _write(self, document: Json, wanted: Wish, program: Optional[bytes]) -> None:
        image = image_of(document, wanted.digest)
        if image is None or program is None:
            raise NotAppliedError(f"the channel has no image of build {wanted.digest}")
        if slots.survey(self.host) is None:
            raise NotAppliedError(
                "this node has no slots: only a disk of layout `ab` with systemd-boot has"
            )
        # The writer comes from the channel: the program of this node may not know the format of the image.
        copy = self.host.located(COPY)
        self.host.write(COPY, program, 0o700)
        head, tail = os.pipe()
        words = [sys.executable, "-I", "-S", copy, "slot", "write", "--format", "json"]
        try:
            with self._packed(image) as packed:
                process = subprocess.Popen(
                    words, stdin=head, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                os.close(head)
                head = -1
                header = json.dumps(image["header"]).encode() + b"\n"
                errors, problem = _feed(process, tail, header, packed, self.say)
                tail = -1
        finally:
            for handle in (head, tail):
                if handle >= 0:
                    os.close(handle)
            self.host.remove(COPY)
        if isinstance(problem, ChannelAwayError):
            raise problem
        os.unlink(self._staged(image))
        if process.returncode != 0:
            last = (errors or [f"`slot write` ended with {process.returncode}"])[-1]
            raise NotAppliedError(last.replace("goldnode-node: ", "", 1)[:REASON])

    def _packed(self, image: Mapping[str, Any]) -> IO[bytes]:
        """Open the download. The header has the digest of the whole."""
        try:
            # Another user may have put it there (apart.py): no link, and no wait for a writer of a pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.fdopen(os.open(self._staged(image), flags), "rb")
        except OSError as problem:
            raise NotAppliedError(f"{problem.filename}: {problem.strerror}") from None

    def _apply_lock(self, wanted: Wish) -> None:
        """Run the site's command. It has the rollout and the digest in its environment."""
        self.say(f"running {' '.join(self.settings.apply)} for {wanted.digest}")
        more = {
            "GOLDNODE_ROLLOUT": wanted.rollout,
            "GOLDNODE_TARGET": wanted.digest,
            "GOLDNODE_DIRECTION": wanted.direction,
        }
        try:
            done = subprocess.run(
                self.settings.apply,
                env={**os.environ, **ENVIRONMENT, **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        except OSError as problem:
            raise NotAppliedError(f"{self.settings.apply[0]}: {problem.strerror}") from None
        text = done.stdout.decode("utf-8", "replace")
        for line in text.splitlines():
            self.say(line)
        if done.returncode != 0:
            last = (text.strip().splitlines() or ["no output"])[-1].strip()
            raise NotAppliedError(
                f"{self.settings.apply[0]} ended with {done.returncode}: {last}"[:REASON]
            )


def _other(survey: Json) -> str:
    """Return the slot that does not run."""
    return slots.SLOTS[1 - slots.SLOTS.index(survey["running"])]


def _feed(
    process: subprocess.Popen[bytes],
    tail: int,
    header: bytes,
    packed: Any,
    say: Callable[[str], None],
) -> Tuple[List[str], Optional[Exception]]:
    """Send an image to a process, pass on what it says, and wait for its end. Return its lines, and why the image
    could not be read to its end.
    """
    import threading  # here, to keep a pass without work quick

    lines: List[str] = []
    problem: Optional[Exception] = None

    def listen() -> None:
        for line in process.stderr or ():
            lines.append(line.decode("utf-8", "replace").rstrip())
            say(lines[-1])

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        with os.fdopen(tail, "wb") as out:
            out.write(header)
            for block in blocks(packed, "the image"):
                out.write(block)
    except BrokenPipeError:  # it has refused the image, and says why
        pass
    except ChannelAwayError as caught:  # the process gets half an image, and refuses it
        problem = caught
    process.wait()
    thread.join()
    return lines, problem
