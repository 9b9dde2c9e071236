"""python -m tests.simulators.apt_archive DIRECTORY: publish the stand-in archive there."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.simulators.apt_archive import DEFAULT, GROUPS, publish


def main() -> None:
    """Publish, optionally write a site file, print the directory."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.apt_archive")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--group", action="append", choices=GROUPS, help="optional part to include (repeat)")
    parser.add_argument("--plain", action="store_true", help="no optional part at all")
    parser.add_argument("--withdraw", action="append", default=[], help="glob on NAME_VERSION that has left")
    parser.add_argument("--site", type=Path, help="site file to write, for --url")
    parser.add_argument("--url", help="address the directory is served at; its file address otherwise")
    parser.add_argument("--release", default="bookworm", choices=("bookworm", "trixie"))
    parser.add_argument("--locks", help="the site file's `locks`")
    chosen = parser.parse_args()
    groups = frozenset(chosen.group or ()) if chosen.plain or chosen.group else DEFAULT
    archive = publish(chosen.directory.absolute(), groups=groups, withdraw=chosen.withdraw)
    if chosen.site is not None:
        url = chosen.url or f"file://{archive.directory}"
        archive.write_site(chosen.site, url, release=chosen.release, locks=chosen.locks)
    print(archive.directory)


if __name__ == "__main__":
    main()
