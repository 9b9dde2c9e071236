"""A node that installs from the archive of its own release, with a stack locked for what that has today: in one call, for molecule.

`site.yml` and `locks/` lie in the lab's directory. The site takes an index that is past its date, as that of testing in a mirror may be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import yaml

from goldnode.core import docker_engine as engine
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site
from goldnode.testing.lab import images
from goldnode.testing.lab.nodes import Lab, NodeSpec

SITE = {"archives": {"debian": {"accept_expired": True}}, "locks": "locks"}


def up(name: str, node: NodeSpec, stack: str) -> Lab:
    """Lock `stack`, and start `node` without goldnode's part of it. Raises GoldnodeError."""
    client = engine.connect()
    lab = Lab(name, client)
    site, locks = lab.directory / "site.yml", lab.directory / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    site.write_text(yaml.safe_dump(SITE), encoding="utf-8")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("goldnode")), "lock", stack, "--out", str(locks)],
        env={**os.environ, "GOLDNODE_SITE": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise GoldnodeError(f"goldnode lock {stack} failed: {done.stdout}{done.stderr}".strip())
    image = images.ensure(client, node.os, node.flavour, say=lab.say, site=load_site(site))
    lab.up([NodeSpec(node.name, node.group, os=node.os, image=image, engine=True)])
    return lab


def main() -> None:
    """python -m tests.stacks.archive_lab NAME --os OS --node NODE=CLASS --stack STACK"""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks.archive_lab")
    parser.add_argument("name")
    parser.add_argument("--os", required=True, choices=list(images.RELEASES))
    parser.add_argument("--node", required=True, help="NODE=CLASS")
    parser.add_argument("--stack", required=True, help="stack to lock")
    chosen = parser.parse_args()
    node, _, group = chosen.node.partition("=")
    try:
        lab = up(chosen.name, NodeSpec(node, group, os=chosen.os, flavour="bare"), chosen.stack)
    except GoldnodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(lab.inventory)


if __name__ == "__main__":
    main()
