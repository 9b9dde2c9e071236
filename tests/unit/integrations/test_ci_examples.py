"""integrations/ci: each script line names commands that exist, and the check of a site runs in a new site."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.test_page_commands import fault

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "integrations/ci").glob("*/*.yml"))
GITLAB_KEYWORDS = {"default", "variables", "stages", "include", "workflow"}


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield job and line for each line that a runner would give to a shell."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "github":
        for name, job in document["jobs"].items():
            yield from ((name, step["run"]) for step in job["steps"] if "run" in step)
    else:
        shared = document.get("default", {}).get("before_script", [])
        for name, job in document.items():
            if name not in GITLAB_KEYWORDS:
                for line in (*job.get("before_script", shared), *job["script"]):
                    yield name, line


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_script_lines_name_commands_and_options_that_exist(path: Path) -> None:
    seen = 0
    for _, line in lines(path):
        words = shlex.split(line)
        if words[0] == "goldnode":
            assert fault(words[1 : words.index(">")] if ">" in words else words[1:]) is None, line
            seen += 1
        elif words[0] == "./scripts/test":
            usage = (ROOT / "scripts/test").read_text(encoding="utf-8")
            assert all(f"{option} " in usage for option in words[1:])
            seen += 1
    assert seen


def test_check_of_a_site_passes_in_a_new_site(tmp_path: Path) -> None:
    site = tmp_path / "site"
    goldnode = [sys.executable, "-m", "goldnode.cli"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    init = [*goldnode, "init", str(site), "--class", "cpu_only", "--host", "gpu1", "--yes"]
    done = subprocess.run(init, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kind in ("github", "gitlab"):
        commands = [
            line
            for job, line in lines(ROOT / f"integrations/ci/{kind}/site.yml")
            if job == "check" and line.startswith("goldnode ")
        ]
        assert len(commands) == 2
        for command in commands:
            ran = subprocess.run(
                ["sh", "-c", command],
                cwd=site,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
