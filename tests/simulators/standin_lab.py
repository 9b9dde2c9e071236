"""Lab whose nodes install from the stand-in archive: nodes, archive, site file and fresh locks in one call.

All files are in the lab's directory, `.goldnode/lab/NAME`: `archive/` (served to the nodes), `site.yml`,
`locks/`. It needs no network once the warm node image exists.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from tests.simulators.apt_archive import Archive, publish

from goldnode.core import docker_engine as engine
from goldnode.core.errors import GoldnodeError
from goldnode.testing.lab.images import RELEASES
from goldnode.testing.lab.nodes import Lab, LabServer, NodeSpec


@dataclass(frozen=True)
class StandinLab:
    """Parts of the lab. Set GOLDNODE_SITE to `site` and GOLDNODE_LOCKS to `locks`."""

    lab: Lab
    archive: Archive
    server: LabServer
    site: Path
    locks: Path

    def lock(self, stack: str, *, env: Mapping[str, str] | None = None) -> Path:
        """Resolve `stack` against the current archive, on top of the packages of the first node. Return the
        lock.

        `env` is added to the environment of `goldnode lock`, for example GOLDNODE_CATALOG. Raise
        GoldnodeError.
        """
        status = self.lab.directory / "dpkg-status"
        status.write_text(self.lab.nodes()[0].read("/var/lib/dpkg/status"), encoding="utf-8")
        program = Path(sys.executable).with_name("goldnode")
        done = subprocess.run(
            [
                str(program),
                "lock",
                stack,
                "--upgrade",
                "--on",
                str(status),
                "--out",
                str(self.locks),
            ],
            env={**os.environ, **(env or {}), "GOLDNODE_SITE": str(self.site)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise GoldnodeError(f"goldnode lock {stack} failed: {done.stdout}{done.stderr}".strip())
        return self.locks / f"{stack}.lock.yml"


def up(
    name: str,
    nodes: Sequence[NodeSpec],
    *,
    client: DockerClient,
    state: Path | None = None,
    say: engine.Say = print,
) -> StandinLab:
    """Start `nodes` (their images should be warm), and publish the archive for the release of the
    first one.
    """
    lab = Lab(name, client, state=state, say=say)
    archive = publish(lab.directory / "archive")
    lab.up(nodes)
    server = lab.serve(archive.directory)
    release = RELEASES[nodes[0].os].calls_itself
    site = archive.write_site(
        lab.directory / "site.yml", server.url, release=release, locks="locks"
    )
    locks = lab.directory / "locks"
    locks.mkdir(exist_ok=True)
    return StandinLab(lab, archive, server, site, locks)


def main() -> None:
    """Run python -m tests.simulators.standin_lab NAME --node NODE=CLASS --stack STACK [--os debian13]."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.standin_lab")
    parser.add_argument("name")
    parser.add_argument("--node", action="append", required=True, help="NODE=CLASS (repeat)")
    parser.add_argument("--os", default="debian12", choices=list(RELEASES))
    parser.add_argument("--stack", action="append", default=[], help="stack to lock (repeat)")
    chosen = parser.parse_args()
    pairs = [pair.partition("=") for pair in chosen.node]
    specs = [NodeSpec(node, group, os=chosen.os, flavour="warm") for node, _, group in pairs]
    try:
        made = up(chosen.name, specs, client=engine.connect())
        for stack in chosen.stack:
            print(made.lock(stack))
    except GoldnodeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(made.lab.inventory)


if __name__ == "__main__":
    main()
