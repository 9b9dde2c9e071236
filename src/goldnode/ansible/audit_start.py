"""Start of :mod:`goldnode.ansible.audit`: what it imports is half of a small run, and the collector would walk over it again and again."""

from __future__ import annotations

import os

from goldnode.core.collector import collect_rarely


def main() -> None:
    """Run as `ansible` does."""
    collect_rarely()
    from goldnode.ansible import audit  # start-up time: after the collector is quiet

    audit.main()


if __name__ == "__main__":
    os.umask(0o077)
    main()
