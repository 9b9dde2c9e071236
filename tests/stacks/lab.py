"""A node on real packages, and a site whose mirror holds two real stacks with their modules built: in one call, for molecule and benchmarks.

Everything lies in the lab's directory: `mirror/` (served to the nodes), `keys/`, `locks/`, `site.yml` (mirror and prebuilt modules) and
`dkms.yml` (the machine's own archives, modules built on the node). What was built before from the same inputs is not built again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from docker import DockerClient

from goldnode.core import docker_engine as engine
from goldnode.core.errors import GoldnodeError
from goldnode.testing.lab.nodes import Lab, NodeSpec

# The release and flavour of every node here: a fresh Debian 12, which the stacks are for.
OS, FLAVOUR = "debian12", "bare"


@dataclass(frozen=True)
class StackLab:
    """The parts; `site`, `dkms` and `locks` are what GOLDNODE_SITE and GOLDNODE_LOCKS can be set to."""

    lab: Lab
    site: Path
    dkms: Path
    locks: Path

    def goldnode(self, *arguments: str) -> str:
        """Run the command line with this site and return what it printed. Raises GoldnodeError with its complaint."""
        program = Path(sys.executable).with_name("goldnode")
        environment = {
            **os.environ,
            "GOLDNODE_SITE": str(self.site),
            "GOLDNODE_LOCKS": str(self.locks),
        }
        done = subprocess.run(
            [str(program), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise GoldnodeError(
                f"goldnode {' '.join(arguments)} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}".strip()
            )
        return done.stdout


def up(
    name: str,
    stacks: Sequence[str],
    *,
    client: DockerClient,
    state: Path | None = None,
    say: engine.Say = print,
) -> StackLab:
    """Lock `stacks` for what the archive has now, build their modules, mirror them, and serve the mirror. Makes no node.

    A lab that is up already keeps its locks and its mirror, so that whoever comes again finds what was there.
    """
    lab = Lab(name, client, state=state, say=say)
    directory = lab.directory
    mirror, keys = directory / "mirror", directory / "keys"
    mirror.mkdir(parents=True, exist_ok=True)
    url = lab.serve(mirror, "mirror", keep=True).url
    made = StackLab(lab, directory / "site.yml", directory / "dkms.yml", directory / "locks")
    made.locks.mkdir(exist_ok=True)
    named = {
        "directory": str(mirror),
        "url": url,
        "key": str(keys / "mirror.asc"),
        "signing_key": str(keys / "mirror-signing.asc"),
    }
    made.site.write_text(
        yaml.safe_dump({"modules": "prebuilt", "mirror": named, "locks": str(made.locks)}),
        encoding="utf-8",
    )
    made.dkms.write_text(
        yaml.safe_dump({"modules": "dkms", "locks": str(made.locks)}), encoding="utf-8"
    )
    if not keys.exists():
        made.goldnode("mirror", "key", "--out", str(keys))
    stacks = [stack for stack in stacks if not (made.locks / f"{stack}.modules.yml").exists()]
    for stack in stacks:
        say(f"locking {stack}")
        made.goldnode("lock", stack, "--out", str(made.locks))
    for stack in stacks:
        say(f"building the modules of {stack}, unless they are in the cache; publishing its mirror")
        say(made.goldnode("modules", "build", stack).strip())
    return made


def main() -> None:
    """python -m tests.stacks.lab NAME --node NODE=CLASS --stack STACK…"""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks.lab")
    parser.add_argument("name")
    parser.add_argument("--node", required=True, help="NODE=CLASS")
    parser.add_argument(
        "--stack", action="append", required=True, help="stack to lock, build and mirror (repeat)"
    )
    chosen = parser.parse_args()
    # molecule's scenario names the site that is made here; until it is, this process goes by the machine's own archives.
    os.environ.pop("GOLDNODE_SITE", None)
    node, _, group = chosen.node.partition("=")
    try:
        made = up(chosen.name, chosen.stack, client=engine.connect())
        made.lab.up([NodeSpec(node, group, os=OS, flavour=FLAVOUR)])
    except GoldnodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(made.lab.inventory)


if __name__ == "__main__":
    main()
