"""The group `goldnode events`: `deliver` runs hooks, `view` shows and skips events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from goldnode.commands import LazyGroup
from goldnode.core.errors import GoldnodeError, nearest

if TYPE_CHECKING:
    from goldnode.core.site import Site, SiteHook

_SECTIONS = {
    "Deliver": {
        "deliver": ("events.deliver", "Run the hooks of the site on new events."),
        "test": ("events.deliver", "Run one hook on a test event."),
    },
    "View": {
        "list": ("events.view", "List the last events."),
        "status": ("events.view", "Show what each hook has, and what has failed."),
    },
    "Orders of a person": {
        "skip": ("events.view", "Remove the events that wait for a hook."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS)
def events() -> None:
    """Run hooks on changes of nodes, gates, rollouts and channels."""


def site_with_hooks() -> Site:
    """Return the site. Raise GoldnodeError if it has no hooks."""
    from goldnode.core.site import load_site  # start-up time: it loads pydantic

    site = load_site()
    if not site.events.hooks:
        raise GoldnodeError(
            "the site has no hooks for events",
            file=site.file,
            remedy="add one under events.hooks of the site file (docs/how-to/events.md)",
        )
    return site


def hook_of(site: Site, name: str) -> SiteHook:
    """Return a hook of the site. Raise GoldnodeError for a name that it does not have."""
    if name not in site.events.hooks:
        raise GoldnodeError(
            f'the site has no hook "{name}"',
            file=site.file,
            remedy=nearest(name, site.events.hooks),
        )
    return site.events.hooks[name]
