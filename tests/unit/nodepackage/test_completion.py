"""Completion of goldnode-node, asked of the shells themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.nodepackage import completion
from goldnode.nodepackage.manpages import of_node

SHELLS = pytest.mark.parametrize("shell", completion.SHELLS)
# Words before the cursor, and what is offered for the last one.
CASES = [
    (["che"], ["check"]),
    (["pre"], ["preflight"]),
    (["check", "--form"], ["--format"]),
    (["check", "--format", ""], ["json", "text"]),
    (["cache", "ver"], ["verify"]),
    (["--root-less", "che"], ["check"]),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    for shell in completion.SHELLS:
        done = CliRunner().invoke(main, ["completion", shell, "--node"])
        assert done.exit_code == 0
        (directory / shell).write_text(done.output)
    return directory


@SHELLS
def test_every_command_and_option_is_in_the_script(shell: str, scripts: Path) -> None:
    text = (scripts / shell).read_text()
    found = completion.commands(of_node())
    assert len(found) > 20
    for row in found:
        assert row.path.rpartition("/")[2] in text
        for option in row.options:
            for flag in option.flags:
                assert flag in text or f"-l {flag[2:]}" in text or f"-s {flag[1:]}" in text


@SHELLS
def test_the_shell_reads_the_script(shell: str, scripts: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", scripts / shell], check=True)


@pytest.mark.parametrize(("words", "want"), CASES)
def test_bash_offers(words: list[str], want: list[str], scripts: Path) -> None:
    given = " ".join(f"'{word}'" for word in ["goldnode-node", *words])
    text = (
        f"complete() {{ :; }}; . {scripts / 'bash'}; COMP_WORDS=({given}); COMP_CWORD={len(words)}; "
        '_goldnode_node; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == want


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("words", "want"), CASES)
def test_fish_offers(words: list[str], want: list[str], scripts: Path, tmp_path: Path) -> None:
    text = f"source {scripts / 'fish'}; complete -C 'goldnode-node {' '.join(words)}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", text],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
    )
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert sorted(set(want) & set(offered)) == want
    if not words[-1].startswith("-") and words[-1]:
        assert offered == want
