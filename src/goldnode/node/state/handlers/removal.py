"""Handlers for actions that only a removal plans. That of `gate.release` is in gate/handlers.py.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from ...ground import drained
from ...ground.errors import NodeError
from .. import record as records
from ..deferred import APT, APT_TIME
from ..domains.runtime import DAEMON
from ..observe import JOURNAL
from ..removal import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence

    from ..contract import Handler, Writer
    from ..model import Action


# Debian's docker.io leaves this script behind when it is removed. A purge runs it,
# and it deletes all volumes.
DOCKER = "/var/lib/docker"
NUKE = f"{DOCKER}/nuke-graph-directory.sh"


def stop_units(applier: Writer, action: Action) -> None:
    """Stop goldnode's units, and clear the state of those that failed."""
    names = list(action.data["names"])
    done = applier.host.run("systemctl", "stop", *names, timeout=300)
    if done.rc != 0:
        raise NodeError(
            f"systemctl cannot stop {', '.join(names)}: {done.tail(3)}. Look at their state with "
            "`systemctl status` and run again."
        )
    applier.host.run("systemctl", "reset-failed", *names)


def uncomment(applier: Writer, action: Action) -> None:
    """Replace goldnode's comment by the administrator's line, unless the comment was changed."""
    name, text = action.data["file"], action.data["text"]
    lines = applier.host.lines(name)
    at = int(action.data["line"]) - 1
    if at < len(lines) and lines[at].rstrip("\n") == f"# goldnode: {text}":
        lines[at] = lines[at][len("# goldnode: ") :]
        applier.host.write_lines(name, lines)


def unmerge(applier: Writer, action: Action) -> None:
    """Remove our settings from a file that we do not own. Delete the file if nothing else is left."""
    host = applier.host
    content = action.data["content"]
    if content is None:
        host.remove(action.target)
    else:
        here = host.real(action.target)  # a link stays a link: change its target
        host.write(
            "/" + os.path.relpath(here, host.root), content.encode(), os.stat(here).st_mode & 0o7777
        )
    record = records.read(host)
    record.get("merged", {}).pop(action.target, None)
    records.write(host, record)
    if action.target == DAEMON and host.live:
        # SIGHUP: dockerd drops removed runtimes, and no container stops. The result is not checked: a stopped
        # dockerd has nothing to drop.
        host.run("systemctl", "reload", "docker.service", timeout=60)


def leave(applier: Writer, action: Action) -> Optional[str]:
    """Remove packages with apt, which must not remove any others, and purge their configuration with dpkg."""

    host, data = applier.host, action.data
    remove, purge, back = list(data["remove"]), list(data["purge"]), list(data["back"])
    messages = []
    if data["broken"]:
        # An interrupted run left them half unpacked. apt would download them again to finish them, so use
        # dpkg; no remaining package depends on the set.
        done = host.run("dpkg", "--remove", "--force-remove-reinstreq", *remove, timeout=APT_TIME)
        if done.rc != 0:
            raise NodeError(
                f"dpkg cannot remove what an earlier run left half done: {done.tail()}. Put that "
                "right, then run again."
            )
        remove = []
    if remove or back:
        request = [
            *APT,
            "--allow-downgrades",
            "--allow-change-held-packages",
            "install",
            *back,
            *(f"{name}-" for name in remove),
        ]
        simulated = host.run(*request, "-s", timeout=300)
        if back and (simulated.rc != 0 or records.removed_by(simulated.out) - set(remove)):
            messages.append(
                f"{', '.join(back)}: apt cannot put these back ({simulated.tail(2)}); they stay as they are"
            )
            records.forget_versions(host, [item.partition("=")[0] for item in back])
            request = [*APT, "--allow-change-held-packages", "remove", *remove]
            simulated = host.run(*request, "-s", timeout=300)
        more = records.removed_by(simulated.out) - set(remove)
        if simulated.rc != 0 or more:
            what = f"is refused by apt: {simulated.tail()}"
            if more:
                what = f"would also remove {', '.join(sorted(more))}"
            raise NodeError(
                f"removing what goldnode installed {what}. Check those packages, then run again; "
                "no package was changed."
            )
        if remove or "remove" not in request:
            applier.say(f"removing {len(remove)} packages")
            done = host.run(*request, timeout=APT_TIME)
            if done.rc != 0:
                raise NodeError(
                    f"apt cannot remove what goldnode installed: {done.tail(12)}. Fix that, then run again."
                )
    if "docker.io" in purge and host.exists(DOCKER):
        messages.append(
            f"{DOCKER} stays: containers, images and volumes in it belong to their users. To remove "
            f"them: rm -r {DOCKER}"
        )
    purge_configuration(applier, purge)
    return "\n".join([*messages, *data["lines"]])


def purge_configuration(applier: Writer, names: Sequence[str]) -> None:
    """Purge the configuration of removed packages. The data of docker containers stays."""

    host = applier.host
    host.remove(NUKE)
    left = [name for name in names if name in set(records.residual_states(host))] if names else []
    if left:
        done = host.run("dpkg", "--purge", *left, timeout=APT_TIME)
        if done.rc != 0:
            raise NodeError(
                f"dpkg cannot purge {', '.join(left)}: {done.tail()}. Fix that, then run again."
            )


def automatic(applier: Writer, action: Action) -> None:
    """Restore apt's automatic marks."""
    done = applier.host.run("apt-mark", "auto", *action.data["names"])
    if done.rc != 0:
        raise NodeError(
            f"apt-mark cannot mark {', '.join(action.data['names'])}: {done.tail(3)}. Put that "
            "right, then run again."
        )


def settle(applier: Writer, action: Action) -> None:
    """Make systemd and GRUB read their configuration again.

    Delete the journal last: until then the removal is unfinished.
    """
    host = applier.host
    if action.data["systemd"]:
        host.run("systemctl", "daemon-reload")
        # A service of a removed package may have failed (persistenced does without a GPU).
        # Clear that state explicitly.
        listed = host.run(
            "systemctl", "list-units", "--all", "--failed", "--plain", "--no-legend", "--full"
        ).out
        gone = [row[0] for row in map(str.split, listed.splitlines()) if row[1:2] == ["not-found"]]
        if gone:
            host.run("systemctl", "reset-failed", *gone)
    if action.data["grub"]:
        done = host.run("update-grub", timeout=300)
        if done.rc != 0:
            raise NodeError(f"update-grub fails: {done.tail()}. Fix that, then run again.")
    host.remove(JOURNAL)


def remove_directory(applier: Writer, action: Action) -> None:
    """Remove a directory that goldnode owns with its content.

    Remove a directory elsewhere only if it is empty.
    """
    here = applier.host.path(action.target)
    if applier.host.is_link(action.target):  # a user has replaced the directory by a link
        os.unlink(here)
    elif action.target in OWN:
        # Keep the record of a run that has drained the node: it is needed to return the node to service.
        with contextlib.suppress(OSError):
            for inner in here.iterdir():
                if inner.is_dir() and not inner.is_symlink():
                    shutil.rmtree(str(inner), ignore_errors=True)
                elif f"{action.target}/{inner.name}" != drained.FILE:
                    inner.unlink()
            here.rmdir()
    else:
        with contextlib.suppress(OSError):
            os.rmdir(str(here))


HANDLERS: Dict[str, Handler] = {
    "units.stop": stop_units,
    "file.uncomment": uncomment,
    "file.unmerge": unmerge,
    "packages.leave": leave,
    "packages.auto": automatic,
    "removal.settle": settle,
    "directory.remove": remove_directory,
}
