"""Command that publishes the stand-in archive: python -m tests.simulators.apt_archive DIRECTORY."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from tests.simulators.apt_archive import DEFAULT, GROUPS, Archive, publish

from goldnode.core.site import load_site


def main() -> None:
    """Publish the archive, optionally write a site file, and print the directory."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.apt_archive")
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="optional part to include (repeat)"
    )
    parser.add_argument("--plain", action="store_true", help="no optional part at all")
    parser.add_argument(
        "--withdraw", action="append", default=[], help="glob on NAME_VERSION that has left"
    )
    parser.add_argument("--site", type=Path, help="site file to write, for --url")
    parser.add_argument(
        "--beside",
        metavar="ARCHIVE",
        help="leave all but ARCHIVE of the site file to the site in force",
    )
    parser.add_argument(
        "--url", help="address the directory is served at; its file address otherwise"
    )
    parser.add_argument("--release", default="bookworm", choices=("bookworm", "trixie"))
    parser.add_argument("--locks", help="the site file's `locks`")
    chosen = parser.parse_args()
    groups = frozenset(chosen.group or ()) if chosen.plain or chosen.group else DEFAULT
    archive = publish(chosen.directory.absolute(), groups=groups, withdraw=chosen.withdraw)
    if chosen.site is not None:
        url = chosen.url or f"file://{archive.directory}"
        if chosen.beside:
            write_next_to(archive, chosen.site, url, chosen.beside)
        else:
            archive.write_site(chosen.site, url, release=chosen.release, locks=chosen.locks)
    print(archive.directory)


def write_next_to(archive: Archive, path: Path, url: str, name: str) -> None:
    """Write the active site configuration to `path`, with archive `name` replaced by a stand-in.

    Relative paths become absolute.
    """
    site = load_site()
    text = site.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    archives = text.setdefault("archives", {})
    for entry in archives.values():
        if "key" in entry:
            entry["key"] = str(site.resolve(entry["key"]).absolute())
    if "locks" in text:
        text["locks"] = str(site.resolve(text["locks"]).absolute())
    archives[name] = archive.entry(url, name)
    # Writing the same text again leaves the bytes identical, so a comparison reports no change.
    path.write_text(
        "# Written by scripts/demo.\n" + yaml.safe_dump(text, sort_keys=False), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
