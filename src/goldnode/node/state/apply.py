"""The only writer: applies one part of a plan to a node and verifies that nothing is left to do.

A journal marks the time in which a run that is cut off may leave packages half installed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import json
import os
import re
import time
from pathlib import Path

from ..effective import apt as apt_effective
from ..effective.boot_choice import boot_choice
from ..ground.errors import NodeError
from ..ground.host import Host, Result, boot_identity
from ..ground.text import phrase
from . import applied, deferred, history, initramfs_batch, shaping, slots
from . import record as records
from .deferred import APT, APT_TIME
from .domains import apt, driver, kernel, packages
from .engine import plan, plan_absent
from .family import kernel_release
from .handlers import modules, policy, removal, runtime, scratch, tuning, units
from .model import ABSENT, PROGRESS, Action, Plan, declared
from .observe import (
    JOURNAL,
    LINKS,
    REBOOT_MARKS,
    RECORD,
    TRIAL,
    automatic,
    initramfs_contents,
    load_json,
)
from .removal import completed, own_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        Callable,
        Dict,
        Iterator,
        List,
        Mapping,
        Optional,
        Sequence,
        Tuple,
    )

    from ..ground.document import ClassDocument
    from .contract import Handler


LOCK = "/run/goldnode/engine.lock"
EXPLAINING_LINES = 12  # lines
NO_HANDLERS: Mapping[str, Handler] = {}


def explaining_lines(result: Result) -> str:
    """Return the lines of an apt output that explain a failure.

    These are the last lines, preceded by the lines up to the first package that failed. Output of a
    hook or a maintainer script precedes dpkg's own lines. There are many of those if other packages
    depend on the failed one.
    """
    lines = (result.out + "\n" + result.err).strip().splitlines()
    failed = next(
        (at for at, line in enumerate(lines) if line.startswith("dpkg: error processing")),
        len(lines),
    )
    end = len(lines) - EXPLAINING_LINES
    first, after = max(0, min(failed + 2 - EXPLAINING_LINES, end)), failed + 2
    return "\n".join(
        [*lines[first:after], *(["…"] if after < end else []), *lines[max(after, end) :]]
    )


class Applier:
    """Applier of actions to one host. Each handler is registered under the kind of action that it applies.

    The rooms above the engine hand theirs in: `handlers` has those of the gate (gate/handlers.py).
    """

    def __init__(
        self,
        host: Host,
        document: ClassDocument,
        payloads: Mapping[str, Any],
        say: Callable[[str], None],
        part: str = "",
        *,
        handlers: Mapping[str, Handler] = NO_HANDLERS,
    ) -> None:
        self.host, self.document, self.payloads, self.say, self.part = (
            host,
            document,
            payloads,
            say,
            part,
        )
        # An image build has all its packages in one place and no network.
        self.local = payloads.get("sources")
        self.sources = apt.from_file(self.local) if self.local else apt.only(document)
        self.apt = (*APT, *self.sources)
        # All actions of this pass. Some handlers batch several of them, because starting their tool is slow.
        self.planned: List[Action] = []
        # Results of such a batch, which the remaining actions of the batch pick up.
        self.outcomes: Dict[Tuple[str, str], Dict[str, Any]] = {}
        self.handlers: Dict[str, Callable[[Action], Optional[str]]] = {
            "file.write": self.write_file,
            "file.remove": self.remove_file,
            "file.comment": self.comment_line,
            "directory.secure": self.secure,
            "link": self.link,
            "packages.repair": self.repair,
            "packages.transact": self.transact,
            "packages.hold": self.hold,
            "packages.unhold": self.unhold,
            "packages.manual": self.manual,
            "initramfs.rebuild": self.rebuild_initramfs,
            "boot.entry": self.boot_entry,
            "boot.once": self.boot_once,
            "boot.slot": self.boot_slot,
        }
        for module in (modules, runtime, policy, tuning, scratch, units, removal):
            self.register(module.HANDLERS)
        self.register(handlers)

    def register(self, handlers: Mapping[str, Handler]) -> None:
        """Add handlers by the kind of action that each applies."""
        for kind, handler in handlers.items():
            self.handlers[kind] = functools.partial(handler, self)

    def apply(self, action: Action) -> Optional[str]:
        """Apply one change. Return a message that goes beyond the action's own reason, or None."""
        # A file that goldnode shares with the administrator: record its content first, so that
        # a removal can restore it.
        foreign = action.target.startswith("/etc/") and action.kind not in (
            "file.write",
            "file.unmerge",
        )
        if self.part != ABSENT and foreign and "content" in action.data:
            records.before_merge(self.host, action.target, action.data["content"])
        return self.handlers[action.kind](action)

    # -- files

    def write_file(self, action: Action) -> None:
        name = action.data.get("payload")
        if name:
            content = Path(self.payloads[name]["file"]).read_bytes()
        elif "base64" in action.data:
            content = base64.b64decode(action.data["base64"])
        else:
            content = str(action.data["content"]).encode()
        self._make_way(action.target)
        # Replace the file rather than rewrite it: open descriptors and further hard
        # links keep the old content.
        self.host.write(action.target, content, int(action.data["mode"]), self.host.superuser)

    def _make_way(self, name: str) -> None:
        """Remove an empty directory at the path of a file.

        A directory with content is not goldnode's to remove.
        """
        if self.host.is_link(name) or not self.host.is_dir(name):
            return
        try:
            os.rmdir(self.host.located(name))
        except OSError as problem:
            raise NodeError(
                f"{name} is a directory, where goldnode has a file: {problem.strerror}. Move it "
                "away and run again."
            ) from None

    def secure(self, action: Action) -> None:
        self.host.secure(action.target)

    def remove_file(self, action: Action) -> None:
        self.host.remove(action.target)

    def comment_line(self, action: Action) -> None:
        """Replace a line that goldnode does not own by a comment that still contains the line."""
        name = action.data["file"]
        lines = self.host.lines(name)
        at = int(action.data["line"]) - 1
        # The file may have changed since it was observed.
        if at < len(lines) and lines[at].split()[:1] == [action.data["module"]]:
            lines[at] = f"# goldnode: {lines[at]}"
            self.remember("commented", [name])
            self.host.write_lines(name, lines)

    def link(self, action: Action) -> None:
        if self.part != ABSENT and action.target not in LINKS:
            records.before_link(self.host, action.target, action.data["to"])
        here = self.host.path(action.target)
        here.parent.mkdir(parents=True, exist_ok=True)
        # Rename over the old link: a reader never finds the path missing.
        temporary = here.with_name(f".{here.name}.goldnode")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(action.data["to"])
        os.replace(str(temporary), str(here))

    # -- packages

    def repair(self, action: Action) -> str:
        """Finish an interrupted transaction.

        dpkg may not manage alone; apt's fixer (-f) also respects the pins.
        """
        self._begin()
        leave = list(action.data["leave"])
        if leave:
            left = self.host.run(
                "dpkg", "--remove", "--force-remove-reinstreq", *leave, timeout=APT_TIME
            )
            if left.rc != 0:
                raise NodeError(
                    f"dpkg cannot remove {', '.join(leave)}, which an earlier run left half done: "
                    f"{left.tail()}"
                )
        # The result is not checked: apt fixes below what dpkg cannot configure.
        first = self.host.run(
            "dpkg", "--configure", "-a", "--force-confdef", "--force-confold", timeout=APT_TIME
        )
        again = self._again()
        request = (
            *self.apt,
            "--allow-downgrades",
            "--allow-change-held-packages",
            "-f",
            "install",
            *again,
        )
        simulated = self.host.run(*request, "-s", timeout=300).out
        self._refuse_removals(simulated, leave)
        records.before_transaction(self.host, simulated, ())
        fixed = self.host.run(*request, timeout=APT_TIME)
        if fixed.rc != 0:
            raise self._apt_error("apt cannot finish what was interrupted", fixed)
        return f"{first.tail(6)}\n{fixed.tail(6)}"

    def _begin(self) -> None:
        """Write the journal, so that the next run may finish an interrupted one.

        An interruption from here on may leave packages half installed.
        """
        self.host.write(
            JOURNAL, json.dumps({"part": self.part, "digest": self.document["digest"]}).encode()
        )

    def _again(self) -> List[str]:
        """Return apt arguments that reinstall half-unpacked packages at the locked version."""
        wanted = {package["name"]: package["version"] for package in self.document["packages"]}
        state = self.host.run(
            "dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${db:Status-Eflag}\n"
        ).out
        rows = [line.split() for line in state.splitlines()]
        cut = [row[0] for row in rows if row[2] == "reinstreq" or row[1] == "half-installed"]
        names = [f"{name}={wanted[name]}" if name in wanted else name for name in cut]
        return ["--reinstall", *names] if names else []

    def transact(self, action: Action) -> str:
        """Install the locked stack.

        Compare apt's indexes with the lock, simulate, download, and only then install.
        """
        install, remove = (
            list(action.data["install"]),
            [f"{name}-" for name in action.data["remove"]],
        )
        self._hold_boot_entry(action.data["remove"])
        request = (
            "--allow-downgrades",
            "--allow-change-held-packages",
            "install",
            *install,
            *remove,
        )
        updated = self._known_to_apt(install)
        simulated = self.host.run(*self.apt, "-s", *request, timeout=300)
        # Outdated indexes can make the set look unsolvable. Refresh them once, then try again.
        if simulated.rc != 0 and not updated:
            self._update()
            simulated = self.host.run(*self.apt, "-s", *request, timeout=300)
        if simulated.rc != 0:
            alone = (
                " from the site's mirror alone (is a package of the base system newer here than there? "
                "Lock and mirror again)"
            )
            raise self._apt_error(
                f"apt finds no way to install the locked set{alone if self.sources else ''}",
                simulated,
            )
        self._refuse_removals(simulated.out, action.data["remove"])
        fetched = self.host.run(*self.apt, "--download-only", *request, timeout=APT_TIME)
        if fetched.rc != 0:
            if not updated:
                self._update()
                self._known_to_apt(install)
                fetched = self.host.run(*self.apt, "--download-only", *request, timeout=APT_TIME)
            if fetched.rc != 0:
                raise self._apt_error(
                    "a locked package cannot be downloaded; no package was changed", fetched
                )
        driver, build = self.document.get("driver"), ""
        if driver and driver.get("dkms"):
            build = f"; dkms builds {driver['module']} meanwhile, which takes minutes"
        self.say(f"installing {len(install)} locked packages{build}")
        names = [item.partition("=")[0] for item in install]
        records.before_transaction(self.host, simulated.out, names)
        self._begin()
        deferred.begin(self.host)
        # Everything is downloaded by now. Archives with file: URIs are never downloaded: with --no-download,
        # apt no longer finds their files.
        local = self.local or any(
            row["uri"].startswith(("file:", "copy:")) for row in apt_effective.sources(self.host)
        )
        offline = () if local else ("--no-download",)
        done = self.host.run(*self.apt, *deferred.OPTIONS, *offline, *request, timeout=APT_TIME)
        # Hold even after a failure: an automatic upgrade must not replace the
        # packages that did get installed.
        self.host.run("apt-mark", "hold", *names)
        self.remember("held", names)
        if done.rc != 0:
            raise self._apt_error(
                "the transaction failed; the kernel that ran before is still the default", done
            )
        deferred.settle(self.host, self.say, packages.driver_family(self.document))
        # Purge the leftover configuration of packages that goldnode installed, for this stack or an earlier
        # one. Configuration that was left over before goldnode stays.
        record = records.read(self.host)
        own = {*action.data.get("purge", ()), *record.get("brought", ())} - set(
            record.get("residual", ())
        )
        rest = [name for name in records.residual_states(self.host) if name in own]
        if rest:
            removal.purge_configuration(self, rest)
        return "\n".join(action.data["lines"])

    def _refuse_removals(self, simulated: str, expected: List[str]) -> None:
        """Refuse to remove packages that a person installed.

        Allowed are packages that the plan names, that apt installed as dependencies, and that
        goldnode held.
        """
        record = load_json(self.host, RECORD) or {}
        free = {*expected, *automatic(self.host.text("/var/lib/apt/extended_states") or "")}
        free.update(record.get("held", []), record.get("was_held", []))
        leaving = sorted(records.removed_by(simulated) - free)
        if leaving:
            raise NodeError(
                f"installing the locked set would remove {', '.join(leaving)}, whose removal goldnode "
                "was not asked for. "
                "Remove those packages yourself, or change the stack; no package was changed."
            )

    def _update(self) -> None:
        self.say("reading package indexes")
        updated = self.host.run(*self.apt, "update", timeout=600)
        bad = [
            line
            for line in (updated.out + updated.err).splitlines()
            if re.match(r"(E:|W: (GPG error|An error|Failed))", line)
        ]
        if updated.rc != 0 or bad:
            raise self._apt_error("apt cannot read the stack's archives", updated)

    def _known_to_apt(self, install: List[str]) -> bool:
        """Check that apt's indexes offer every locked package with the locked checksum.

        Refresh the indexes if they do not.

        Return whether the indexes were refreshed. Raises NodeError if a version has vanished from
        its archive, or if the archive offers different content under the same version.
        """
        wanted = {
            f"{package['name']}={package['version']}": package
            for package in self.document["packages"]
        }
        missing = self.missing(install, wanted)
        if not missing:
            return False
        self._update()
        missing = self.missing(install, wanted)
        if missing:
            name = missing[0].partition("=")[0]
            offered = [
                line.split("|")[1].strip()
                for line in self.host.run(
                    "apt-cache", *self.sources, "madison", name
                ).out.splitlines()
                if "|" in line
            ]
            raise NodeError(
                f"{len(missing)} locked packages have vanished from the archives: "
                f"{', '.join(missing[:4])}{' …' if len(missing) > 4 else ''} "
                f"({name} is offered as {', '.join(offered) or 'nothing'}). Lock again with "
                f"`goldnode lock {self.document['stack']['name']}`, "
                "or point the site file at a mirror that keeps the locked files. No package was changed."
            )
        return True

    def missing(
        self,
        install: List[str],
        wanted: Mapping[str, Mapping[str, Any]],
        options: Sequence[str] = (),
    ) -> List[str]:
        """Return the packages of `install` (name=version) that apt no longer offers.

        `options` are passed to apt-cache. Raises NodeError if a package has a
        different checksum than the lock.
        """
        shown = self.host.run(
            "apt-cache", *(options or self.sources), "show", "--no-all-versions", *install
        )
        # apt-cache fails as a whole if one version is missing, so ask for each package.
        if shown.rc != 0 or "E:" in shown.err:
            shown = Result(
                shown.argv,
                0,
                "\n\n".join(
                    self.host.run("apt-cache", *(options or self.sources), "show", item).out
                    for item in install
                ),
                "",
            )
        offered: Dict[str, List[str]] = {}
        for stanza in shown.out.split("\n\n"):
            fields = dict(re.findall(r"^(Package|Version|SHA256): (.*)$", stanza, re.MULTILINE))
            if "Package" in fields:
                offered.setdefault(f"{fields['Package']}={fields['Version']}", []).append(
                    fields.get("SHA256", "")
                )
        missing = []
        for item in install:
            hashes = [digest for digest in offered.get(item, []) if digest]
            if not hashes:
                # An installed version needs no archive.
                have = self.host.run("dpkg-query", "-W", "-f", "${Version}", item.partition("=")[0])
                if have.out != item.partition("=")[2]:
                    missing.append(item)
            elif wanted[item]["sha256"] not in hashes:
                raise NodeError(
                    f"{item}: the archive offers other bytes under the locked version (want "
                    f"{wanted[item]['sha256']}, offered {hashes[0]}). "
                    "Do not install it before its archive's owner has explained that; then lock "
                    "again. No package was changed."
                )
        return missing

    def hold(self, action: Action) -> None:
        names = list(action.data["names"])
        done = self.host.run("apt-mark", "hold", *names)
        if done.rc != 0:
            raise NodeError(f"apt-mark cannot hold {', '.join(names)}: {done.tail(3)}")
        self.remember("held", names)

    def unhold(self, action: Action) -> None:
        names = list(action.data["names"])
        self.host.run("apt-mark", "unhold", *names)
        self.remember("held", names, forget=True)
        self.remember("was_held", names)

    def manual(self, action: Action) -> None:
        self.remember("automatic", action.data["names"])
        self.host.run("apt-mark", "manual", *action.data["names"])

    def remember(self, key: str, names: List[str], forget: bool = False) -> None:
        """Record a change to something that goldnode does not own, so that a removal can undo it."""
        record = records.read(self.host)
        known = set(record.get(key, []))
        record[key] = sorted(known - set(names) if forget else known | set(names))
        records.write(self.host, record)

    def _apt_error(self, what: str, result: Result) -> NodeError:
        text = f"{what}:\n{explaining_lines(result)}"
        driver = self.document.get("driver")
        dkms = driver.get("dkms") if driver and "dkms" in result.out + result.err else None
        if driver and dkms:
            text += phrase(
                "\n{}", modules.make_log(self, dkms["name"], declared(driver["version"]))
            )
        return NodeError(text)

    # -- initramfs

    def rebuild_initramfs(self, action: Action) -> Optional[str]:
        release = action.data["release"]
        inside = initramfs_contents(self.host, self.document, keep=False)
        due = self.part == ABSENT or action.data["owed"]
        if (
            not due
            and inside.get(release)
            and not driver.initramfs_faults(self.document, inside[release])
        ):
            return "the transaction has made it already"
        self.say(f"rebuilding the initramfs of {release}")
        before = shaping.configuration(self.host)
        mode = "-u" if release in inside else "-c"
        done = initramfs_batch.update_initramfs(self.host, self.say, mode, "-k", release)
        if done.rc != 0:
            raise NodeError(
                f"update-initramfs fails for {release}; the earlier initramfs is kept. {done.tail()}"
            )
        if self.part != ABSENT:  # a removal leaves no record
            shaping.keep(self.host, [release], packages.driver_family(self.document), before)
        if action.data["owed"] == "last":
            deferred.forget(self.host)
        return None

    # -- boot

    def _hold_boot_entry(self, leave: Sequence[str]) -> None:
        """Make the running kernel the default before a kernel is installed or removed.

        If the run is interrupted afterwards, the node still boots the kernel that works.
        """
        stays = not any(kernel_release(name) for name in leave)
        if not self.host.live or (stays and self.document["kernel"]["image"] in self._installed()):
            return
        choice = boot_choice(self.host, os.uname().release)
        if choice["entry"] and choice["loader"] == "grub":
            self.host.write(kernel.DROP_IN, kernel.drop_in(choice["entry"]).encode())
        # The boot entry of a slot has its own copy of the kernel on the ESP and needs no default.
        elif choice["entry"] and slots.survey(self.host) is None:
            self._loader_default(choice["entry"])

    def _installed(self) -> List[str]:
        rows = self.host.run(
            "dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"
        ).out.splitlines()
        return [row.split()[0] for row in rows if row.endswith(" installed")]

    def boot_entry(self, action: Action) -> None:
        self.make_default(action.data["release"])

    def boot_slot(self, action: Action) -> Optional[str]:
        """Copy the class's kernel to the ESP for the running slot, and make the slot's entry boot it."""
        return slots.sync(self.host, action.data["release"])

    def _loader_default(self, entry: str) -> None:
        done = self.host.run("bootctl", "set-default", entry)
        if done.rc != 0:
            raise NodeError(
                f"`bootctl set-default {entry}` fails: {done.tail(2)}. Choose the entry yourself, "
                "then run again."
            )

    def _entry(self, release: str) -> str:
        """Return the entry of a kernel in grub.cfg. Run update-grub if it is missing."""
        entry = boot_choice(self.host, release)["entry"]
        if not entry:
            self.update_grub()
            entry = boot_choice(self.host, release)["entry"]
        if not entry:
            raise NodeError(
                f"grub.cfg has no entry for {release}, although its package is installed. Look at "
                "`update-grub` on the node."
            )
        return entry

    def boot_once(self, action: Action) -> None:
        """Boot another kernel once, and keep the running kernel the default.

        GRUB clears `next_entry` when it boots it, so a failed boot falls back to the default.
        """
        release, runs = action.data["release"], os.uname().release
        entry = self._entry(release)
        # Clear it first: boot_choice would report this entry instead of the default.
        self._environment("unset", "next_entry")
        if boot_choice(self.host, runs)["release"] != runs:
            self.make_default(runs)
        trial = {
            "release": release,
            "selector": entry,
            "boot_identity": boot_identity(self.host),
            "failed": None,
        }
        self.host.write(
            TRIAL, json.dumps({**trial, "class_digest": self.document["digest"]}, indent=1).encode()
        )
        self._environment("set", f"next_entry={entry}")
        choice = boot_choice(self.host, release)
        if (choice["release"], choice["via"]) != (release, "next_entry"):
            raise NodeError(
                f"the next boot is {choice['release'] or 'unknown'} ({choice['reason']}), want "
                f"{release}, once. "
                "Look at `grub-editenv list` on the node."
            )

    def _environment(self, *words: str) -> None:
        done = self.host.run("grub-editenv", "/boot/grub/grubenv", *words)
        if done.rc != 0:
            raise NodeError(
                f"grub-editenv {' '.join(words)} fails: {done.tail(2)}. Look at /boot/grub/grubenv "
                "on the node."
            )

    def make_default(self, release: str) -> None:
        """Make a kernel the default of every boot, and verify that by reading grub.cfg.

        This ends a trial of this kernel or of another one.
        """
        now = boot_choice(self.host, release)
        if now["loader"] == "systemd-boot":
            if not now["entry"]:
                raise NodeError(
                    f"systemd-boot has no entry for {release}, although its package is installed. "
                    "Run `kernel-install add` for it."
                )
            self._loader_default(now["entry"])
            choice = boot_choice(self.host, release)
            if choice["release"] != release:
                raise NodeError(
                    f"the next boot is {choice['release'] or 'unknown'} ({choice['reason']}), want "
                    f"{release}. Look at `bootctl list`."
                )
            return
        entry = self._entry(release)
        trial = load_json(self.host, TRIAL)
        if trial:
            choice = boot_choice(self.host, release)
            if choice["via"] == "next_entry" and trial["release"] == choice["release"]:
                self._environment("unset", "next_entry")
        self.host.write(kernel.DROP_IN, kernel.drop_in(entry).encode())
        self.update_grub()
        choice = boot_choice(self.host, release)
        if choice["release"] != release:
            raise NodeError(
                f"after update-grub the next boot is {choice['release'] or 'unknown'} "
                f"({choice['reason']}), want {release}. "
                "Look at /etc/default/grub.d and at grub-editenv list."
            )
        self.host.remove(TRIAL)

    def update_grub(self) -> None:
        done = self.host.run("update-grub", timeout=300)
        if done.rc != 0:
            raise NodeError(f"update-grub fails: {done.tail()}")


def teller(host: Host) -> Callable[[str], None]:
    """Return a `say` that appends to /run/goldnode/progress. Action plugins on the controller show its lines."""

    def say(text: str) -> None:
        here = host.path(PROGRESS)
        # A run must not fail because its progress cannot be shown.
        with contextlib.suppress(OSError):
            here.parent.mkdir(parents=True, exist_ok=True)
            with here.open("a", encoding="utf-8", errors="replace") as opened:
                opened.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    return say


@contextlib.contextmanager
def alone(
    host: Host, wait: float, say: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Hold the node's apply lock. The kernel drops it when a run is killed, so there are no stale locks."""
    here = host.path(LOCK)
    here.parent.mkdir(parents=True, exist_ok=True)
    with here.open("a+") as opened:
        end = time.monotonic() + wait
        waits = False
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not waits and host.live:
                    say(f"waiting up to {wait:.0f} s for another goldnode run on this node")
                waits = True
                if time.monotonic() > end:
                    opened.seek(0)
                    raise NodeError(
                        "another goldnode run is at work on this node (process "
                        f"{opened.read().strip() or '?'}). Wait for it and run again."
                    ) from None
                time.sleep(1)
        opened.truncate(0)
        opened.write(str(os.getpid()))
        opened.flush()
        yield


class PartError(NodeError):
    """A part that could not be applied completely: a refused plan, or an action that failed.

    :ivar done: rows as :func:`apply` returns them; the last one contains the error if an action failed.
    :ivar refusals: [{code, message, remedy}].
    """

    def __init__(
        self, text: str, done: List[Dict[str, Any]], refusals: List[Dict[str, Any]]
    ) -> None:
        super().__init__(text)
        self.done, self.refusals = done, refusals


def refusal_of(plan: Plan) -> PartError:
    """Return the error for a plan with refusals."""
    lines = " ".join(refusal.line() for refusal in plan.refusals)
    return PartError(
        f"refused before anything was touched: {lines}",
        [],
        [refusal._asdict() for refusal in plan.refusals],
    )


def perform(applier: Applier, action: Action, done: List[Dict[str, Any]]) -> None:
    """Apply one action, and append its row to `done` whether or not it succeeds.

    A row is {kind, target, reason, phase, before, after, told, error, seconds}.
    """
    row: Dict[str, Any] = {
        name: getattr(action, name)
        for name in ("kind", "target", "reason", "phase", "before", "after")
    }
    # The row is complete before the action starts: if the run is interrupted, the history still shows it.
    row.update(told=None, error="interrupted", seconds=0.0)
    done.append(row)
    begun = time.monotonic()
    try:
        row["told"] = applier.apply(action)
        row["error"] = None
    except NodeError as problem:
        row["error"] = str(problem)
    except OSError as problem:
        row["error"] = (
            f"{problem.filename or action.target}: {problem.strerror}. Fix that on the node and run "
            "again; what was done before remains."
        )
    finally:
        row["seconds"] = round(time.monotonic() - begun, 2)
    if row["error"]:
        raise PartError(row["error"], done, [])


def apply(
    host: Host,
    document: ClassDocument,
    part: str,
    payloads: Mapping[str, Any],
    say: Callable[[str], None] = lambda text: None,
    *,
    handlers: Mapping[str, Handler],
    lock_timeout: float = 120,
) -> Tuple[List[Dict[str, Any]], Plan, Plan]:
    """Apply one part. Return the applied actions (see :func:`perform`), the plan before, and the plan after.

    A live node records the run (state/history.py), even a failed one.

    :param handlers: those of the gate, as for :class:`Applier`.
    :raises NodeError: (:class:`PartError`) if the node refuses, an action fails, or the part still differs
        afterwards. The journal stays in these cases. It shows the next run that half-done changes are
        goldnode's own and that it may finish them.
    """
    if host.live:
        say(f"{part}: start")  # goldnode.ansible.follow shows the lines after it
    with alone(host, lock_timeout, say):
        before = plan(host, document, payloads, lock_timeout=lock_timeout, say=say)
        if before.refusals:
            raise refusal_of(before)
        done: List[Dict[str, Any]] = []
        error: Optional[str] = "interrupted"
        if before.part(part):
            records.first_contact(host)
        earlier, begun = history.earlier_lock(host, document["lock"]["digest"]), time.monotonic()
        by = applied.BY_ROLLBACK if payloads.get("back") else applied.BY_APPLY
        if before.part(part) and host.live:
            applied.enter(host, document, by)
        try:
            after = settle(
                host,
                document=document,
                part=part,
                before=before,
                applier=Applier(host, document, payloads, say, part, handlers=handlers),
                done=done,
            )
            error = None
            if host.live and not after.actions:
                applied.mark(host, document, whole=True)
        except Exception as problem:
            error = str(problem) or type(problem).__name__
            raise
        finally:
            # An image gets no history: the time of the build would make every build different.
            if done and host.live:
                try:
                    seconds = time.monotonic() - begun
                    history.record(
                        host,
                        document,
                        history.AppliedPart(
                            part, done=done, earlier=earlier, seconds=seconds, error=error, by=by
                        ),
                    )
                except OSError as problem:
                    say(f"no record of this run could be kept: {problem}")
        return done, before, after


def settle(
    host: Host,
    document: ClassDocument,
    part: str,
    before: Plan,
    applier: Applier,
    *,
    done: List[Dict[str, Any]],
) -> Plan:
    """Apply one part of a plan, and verify that nothing of it is left. Return the plan afterwards.

    Rows are appended to `done`.
    """
    applier.planned = list(before.part(part))
    if part != ABSENT:
        records.before_files(host, applier.planned)
    for number, action in enumerate(applier.planned, 1):
        if host.live:
            applier.say(f"{part} {number}/{len(applier.planned)}: {action.kind} {action.target}")
        perform(applier, action, done)
        if action.reboot and host.live:
            marks = list(load_json(host, REBOOT_MARKS) or [])
            host.write(
                REBOOT_MARKS, json.dumps(list(dict.fromkeys([*marks, action.reboot]))).encode()
            )
    after = plan(host, document, applier.payloads)
    left = after.part(part)
    if left and done:
        # The first pass may cause new differences (an initramfs built by the transaction); a second pass
        # settles them. If a third were necessary, two actions would be undoing each other.
        applier.planned = list(left)
        if part != ABSENT:
            records.before_files(host, applier.planned)
        for action in left:
            perform(applier, action, done)
        after = plan(host, document, applier.payloads)
        left = after.part(part)
    if left:
        details = "".join(f"\n{row['kind']}: {row['told']}" for row in done if row["told"])
        raise PartError(
            f"still different after it was applied: {'; '.join(action.line() for action in left)}{details}",
            done,
            [],
        )
    # A part that succeeds after another one failed has not finished what that one left with dpkg.
    if not any(action.kind == "packages.repair" for action in after.actions):
        host.remove(JOURNAL)
    return after


def withdraw(
    host: Host,
    say: Callable[[str], None] = lambda text: None,
    lock_timeout: float = 120,
    *,
    handlers: Mapping[str, Handler],
) -> Tuple[List[Dict[str, Any]], Plan, Plan]:
    """Remove goldnode from a node, in the order of the plan. Return values are those of :func:`apply`.

    The plan afterwards also names the reboot reasons of the applied actions: nothing is left
    on the node to store them.

    :raises NodeError: (:class:`PartError`) like :func:`apply`. The next removal finishes an interrupted one.
    """
    with alone(host, lock_timeout):
        before = plan_absent(host, lock_timeout)
        if before.refusals:
            raise refusal_of(before)
        done: List[Dict[str, Any]] = []
        applier = Applier(host, completed(own_document(host)), {}, say, ABSENT, handlers=handlers)
        after = before
        if before.actions:
            host.write(JOURNAL, json.dumps({"part": ABSENT}).encode())
            if host.live:
                say(f"{ABSENT}: start")  # the lines before it are of earlier runs
        for _ in range(2):  # the first pass may uncover more; a second settles it
            for action in after.actions:
                perform(applier, action, done)
            after = plan_absent(host)
            if not after.actions:
                break
        else:
            raise PartError(
                "still there after it was taken away: "
                f"{'; '.join(action.line() for action in after.actions)}",
                done,
                [],
            )
        forget_lock(host)
        applied = [action.reboot for action in before.actions if action.reboot] if host.live else []
        return done, before, after._replace(reboot=tuple(dict.fromkeys([*after.reboot, *applied])))


def forget_lock(host: Host) -> None:
    """Remove the lock that this run created under /run, and the directory if nothing else is in it."""
    host.remove(LOCK)
    with contextlib.suppress(OSError):
        host.path(LOCK).parent.rmdir()
