"""Commands `goldnode rollout denied`, `deny` and `lift`: the deny list of a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import REASON, STORE, address, key_file, opened, order
from goldnode.commands.options import options
from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site

if TYPE_CHECKING:
    from goldnode.fleet.shared.denylist import DenyList
    from goldnode.fleet.store.database import StoreDatabase

_STATE = options(
    click.argument("digest", metavar="STATE"),
    click.option(
        "--class", "class_name", metavar="CLASS", required=True, help="Class of the state."
    ),
)


@click.command()
@click.option(
    "--write", is_flag=True, help="Write the deny list of the site, signed if the site has a key."
)
@click.option(
    "--accept-older",
    is_flag=True,
    help="Accept the file of the list even if this machine has read a later one. Needs no store.",
)
@STORE
@reports("rollout-denied")
def denied(write: bool, accept_older: bool, where: str | None, form: str) -> None:
    """List the denied states.

    With --write, write the file that `site.yml` and `disks update` read. A machine refuses a list that is older than
    the last one that it has read. After a restore of the store, or with another store, --accept-older makes it accept
    the file, and lists what it denies.
    """
    if accept_older:
        if write:
            raise click.UsageError(
                "--accept-older reads the file, and --write writes it: give one of them"
            )
        _accept(where, form)
        return
    with opened(where) as store:
        # Written first: the list that is shown is then the one in the file.
        done = _written(store, _place(where)) if write else None
        entries = _in_force(store)
    rows = _rows(entries)
    content: dict[str, Any] = {"number": entries.number, "denied": entries.rows()}
    if done is not None:
        content |= done
        rows.append(f"{'wrote' if done['changed'] else 'unchanged:'} {done['file']}")
    emit(form, content, "\n".join(rows))


@click.command()
@_STATE
@REASON
@STORE
@reports("rollout-deny")
def deny(digest: str, class_name: str, reason: str, where: str | None, form: str) -> None:
    """Deny a state of a class.

    No grant moves a node to it, and no run applies it. STATE is the digest of a lock or the id of a disk build. `goldnode rollout lift` ends it.
    """
    from goldnode.fleet.store import orders  # sqlalchemy: only the extra `fleet` installs it

    # Before the store changes: a site without a place for the list is refused.
    path = _place(where)
    with opened(where) as store:
        given = order(reason)
        changed = store.run(lambda connection: orders.deny(connection, class_name, digest, given))
        # Even if nothing changed: an earlier run may have ended between the store and the file.
        done = _written(store, path)
    text = f"{digest} {'is' if changed else 'was'} denied for class {class_name}{'' if changed else ' already'}"
    content = {"class": class_name, "digest": digest, "changed": changed, "file": done["file"]}
    emit(form, content, f"{text}; {done['file']} has it")


@click.command()
@_STATE
@REASON
@STORE
@reports("rollout-deny")
def lift(digest: str, class_name: str, reason: str, where: str | None, form: str) -> None:
    """Lift the denial of a state.

    Runs and rollouts may apply it again. STATE is the digest of a lock or the id of a disk build.
    """
    from goldnode.fleet.store import orders  # sqlalchemy: only the extra `fleet` installs it

    path = _place(where)
    with opened(where) as store:
        given = order(reason)
        changed = store.run(
            lambda connection: orders.lift_denial(connection, class_name, digest, given)
        )
        if not changed:
            raise GoldnodeError(
                f"{digest} is not denied for class {class_name}",
                remedy="list all with `goldnode rollout denied`",
            )
        done = _written(store, path)
    content = {"class": class_name, "digest": digest, "changed": changed, "file": done["file"]}
    emit(
        form,
        content,
        f"{digest} is no longer denied for class {class_name}; {done['file']} does not have it",
    )


def _accept(where: str | None, form: str) -> None:
    from goldnode.fleet.shared import denylist, denylist_seen

    site = load_site()
    place = site.deny_list(address(where, site))
    if place is None:
        denylist.place_to_write(place)  # raises what is missing
        return
    # Forgotten before it is read, since the reader refuses an older number.
    before = denylist_seen.forget(place)
    denials = denylist.DenyList(denylist.read(place), denylist_seen.number(place) or 0)
    rows = _rows(denials)
    text = f"{place.file} is accepted as list {denials.number}"
    rows.append(text if before is None else f"{text}; list {before} was read here before")
    content = {
        "number": denials.number,
        "denied": denials.rows(),
        "file": place.file,
        "changed": before is not None,
    }
    emit(form, content, "\n".join(rows))


def _rows(entries: DenyList) -> list[str]:
    rows = [
        f"class {item.node_class}: {item.digest} since {item.at} by "
        f"{f'rollout {item.rollout}' if item.rollout else item.who}: {item.reason}"
        for item in entries.denials
    ]
    return rows or ["no state is denied"]


def _in_force(store: StoreDatabase) -> DenyList:
    from goldnode.fleet.store import denials  # sqlalchemy: only the extra `fleet` installs it

    with store.read() as connection:
        return denials.in_force(connection)


def _place(where: str | None) -> Path:
    from goldnode.fleet.shared import denylist

    site = load_site()
    return denylist.place_to_write(site.deny_list(address(where, site)))


def _written(store: StoreDatabase, path: Path) -> dict[str, Any]:
    from goldnode.fleet.store import denials  # sqlalchemy: only the extra `fleet` installs it

    changed = denials.write(store, path, key_file(load_site(), "signing_key"))
    return {"changed": changed, "file": str(path)}
