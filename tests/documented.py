"""Blocks of code in the documentation, the test that runs each, and a shell that runs them as a reader does.

`python -m tests.documented --write` writes the list in docs/proof.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.release_files import export
from tests.unit.test_docs import PAGES, slug

ROOT = Path(__file__).parents[1]
# Pages whose console blocks are run. The examples in Python and SQL of all pages are run.
GUIDES = (
    "CONTRIBUTING.md",
    "README.md",
    "docs/development.md",
    "docs/how-to/cloud-init.md",
    "docs/how-to/install.md",
    "docs/how-to/keys.md",
    "docs/how-to/ladder.md",
    "docs/how-to/packages.md",
    "docs/how-to/provision.md",
    "docs/how-to/queue.md",
    "docs/how-to/tickets.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").glob("*.md")),
)
# Sections of further pages whose console blocks are run.
SECTIONS = ("docs/how-to/canary.md#find-the-bad-node",)
EXAMPLES = ("python", "sql")
# Reasons for which a block is not run.
REASONS = ("an archive", "a GPU", "a service")

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_MARK = re.compile(r"<!-- not run: (.*?) -->\n\s*\Z", re.DOTALL)
_REASON = re.compile(rf"needs ({'|'.join(REASONS)}): (\S.*)")
_PROMPT = re.compile(r"(?P<host>[\w.-]*)[$#] (?P<text>.*)")
_HEREDOC = re.compile(r"<<'?(\w+)'?")


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    page: str
    heading: str
    number: int  # among the blocks of its kind below this heading
    kind: str
    text: str
    mark: str | None = None  # of `<!-- not run: … -->` directly above it
    shown: str = ""  # the block of text below it: what its last command prints

    @property
    def key(self) -> str:
        return f"{self.page}#{slug(self.heading)}-{self.kind}-{self.number}"

    @property
    def reason(self) -> tuple[str, str] | None:
        """Return the reason for which it is not run, and what exactly is missing. Raise ValueError for another mark."""
        if self.mark is None:
            return None
        found = _REASON.fullmatch(" ".join(self.mark.split()))
        if not found:
            raise ValueError(
                f"{self.key}: write `<!-- not run: needs {' | '.join(REASONS)}: WHAT -->`"
            )
        return found[1], found[2]


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the blocks of code of a page, in order."""
    counts: Counter[tuple[str, str]] = Counter()
    at, heading = 0, ""
    made: list[Block] = []
    for found in _BLOCK.finditer(text):
        before, kind, body = text[at : found.start()], found["kind"], textwrap.dedent(found["text"])
        headings = _HEADING.findall(before)
        heading = headings[-1] if headings else heading
        if kind == "text" and made and made[-1].kind == "console" and not headings:
            made[-1] = replace(made[-1], shown=body)
        counts[heading, kind] += 1
        mark = _MARK.search(before)
        made.append(
            Block(
                page,
                heading=heading,
                number=counts[heading, kind],
                kind=kind,
                text=body,
                mark=mark[1] if mark else None,
            )
        )
        at = found.end()
    return made


@cache
def blocks() -> dict[str, Block]:
    """Return every block of the documentation that has to be run, by its key."""
    found = {}
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        for block in blocks_of(page, path.read_text(encoding="utf-8")):
            guide = page in GUIDES or f"{page}#{slug(block.heading)}" in SECTIONS
            if block.kind in EXAMPLES or (block.kind == "console" and guide):
                found[block.key] = block
    return found


@dataclass
class Command:
    """One command of a console block; `answers`: lines that the page shows behind the prompt of what it starts."""

    text: str
    answers: str = ""


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block: with continued lines and here documents, without what is shown below."""
    found: list[Command] = []
    end = None
    for line in block.text.splitlines():
        prompted = _PROMPT.fullmatch(line)
        if end or (found and found[-1].text.endswith("\\")):
            found[-1].text += f"\n{line}"
            end = None if line == end else end
        elif prompted and prompted["host"]:
            found[-1].answers += f"{prompted['text']}\n"
        elif prompted:
            found.append(Command(prompted["text"]))
        if end is None and found and (here := _HEREDOC.search(line)):
            end = here[1]
    return found


@dataclass(frozen=True)
class Scenario:
    """Blocks that one test runs in one place, in this order."""

    name: str
    keys: tuple[str, ...]
    needs: tuple[str, ...] = ()  # blocks that are run before, and are another scenario's

    @property
    def blocks(self) -> list[Block]:
        return [blocks()[key] for key in (*self.needs, *self.keys)]


def _keys(page: str, *sections: str) -> tuple[str, ...]:
    """Return the keys of console blocks. A section is the anchor of its heading; `ANCHOR*N` has N blocks."""
    found: list[str] = []
    for section in sections:
        anchor, _, count = section.partition("*")
        found += [f"{page}#{anchor}-console-{number}" for number in range(1, int(count or 1) + 1)]
    return tuple(found)


_CHECK, _INSTALL, _NODE = (
    "docs/tutorials/first-check.md",
    "docs/how-to/install.md",
    "docs/tutorials/first-node.md",
)
_FLEET, _DRIFT, _ROLLOUT, _IMAGE = (
    f"docs/tutorials/first-{name}.md" for name in ("fleet", "drift", "rollout", "image")
)
_DEVELOPMENT, _KEYS, _LADDER, _TICKETS = (
    "docs/development.md",
    "docs/how-to/keys.md",
    "docs/how-to/ladder.md",
    "docs/how-to/tickets.md",
)
_PACKAGES, _CLOUD_INIT = "docs/how-to/packages.md", "docs/how-to/cloud-init.md"
_RELEASE = _keys(_INSTALL, "install-the-commands")
# Run by tests/unit/test_documented.py.
CHEAP = (
    Scenario(
        "commands",
        (
            *_keys(
                _CHECK,
                "write-the-program",
                "check-this-machine",
                "check-a-recorded-gpu",
                "break-it",
            ),
            *_keys(_CHECK, "look-up-an-error"),
            *_keys("README.md", "try-it"),
            *_keys(_INSTALL, "install-the-commands*3")[2:],
            *_keys(_INSTALL, "first-steps"),
            *_keys("docs/how-to/queue.md", "see-who-waits"),
            # On the store with the nodes of the page on the queue.
            *_keys(_LADDER, "watch-for-a-week*2")[1:],
            *_keys(_LADDER, "a-stop-and-a-ticket"),
            *_keys(_TICKETS, "by-hand"),
            *_keys(_KEYS, "keys", "make-a-key", "revoke-the-certificate-of-a-node", "rotate-a-key"),
            *_keys(_NODE, "describe-a-machine"),
            *_keys(_PACKAGES, "install-goldnode-as-a-package"),
            *_keys(_PACKAGES, "man-pages-and-completion-of-both-programs"),
            *_keys(_CLOUD_INIT, "from-an-empty-directory", "your-own-user-data"),
        ),
    ),
    Scenario(
        "release",
        (
            *_keys("docs/how-to/provision.md", "install-the-controller"),
            *_RELEASE,
        ),
    ),
)
# Run by tests/e2e/test_documented_nodes.py.
LONG = (
    Scenario(
        "wheel",
        (
            *_keys(_INSTALL, "install-the-commands*2")[1:],
            *_keys(_INSTALL, "the-collection", "verify-a-release"),
        ),
        needs=_RELEASE,
    ),
    Scenario(
        "demo",
        (
            *_keys(
                _NODE,
                "start-the-demo",
                "log-in-to-the-node",
                "change-something-by-hand",
                "remove-it",
            ),
            *_keys("README.md", "try-it*2")[1:],
        ),
    ),
    Scenario(
        "image",
        _keys(
            _IMAGE,
            *(
                "set-up",
                "choose-an-image",
                "check-its-lock*2",
                "build-it",
                "inspect-and-test-it",
                "sign-it",
            ),
        ),
    ),
    Scenario(
        "fleet",
        _keys(
            _FLEET,
            *(
                "start-three-nodes",
                "plan*2",
                "apply-it-to-one-node-then-to-the-rest",
                "detect-drift",
            ),
            *("correct-it", "remove-everything"),
        ),
    ),
    Scenario(
        "drift",
        _keys(
            _DRIFT,
            *(
                "start-six-nodes",
                "report-on-a-fleet-without-drift",
                "change-two-nodes",
                "find-the-changes*3",
            ),
            *("ask-a-question-of-your-own", "correct-both", "remove-everything"),
        ),
    ),
    Scenario(
        "rollout",
        _keys(
            _ROLLOUT,
            *("install-goldnode-and-start-six-nodes", "describe-the-nodes*3", "prepare-a-change*3"),
            *("run-it*3", "try-a-bad-change*2", "clean-up"),
        ),
        needs=_RELEASE,
    ),
    Scenario(
        "development",
        _keys(_DEVELOPMENT, "set-up", "property-tests*2", "one-end-to-end-test", "documentation"),
    ),
)
_UNIT, _NODES = "tests/unit/test_documented.py", "tests/e2e/test_documented_nodes.py"


def tests() -> dict[str, str]:
    """Return the key of each block that a test runs, with the name of that test."""
    found: dict[str, str] = {}
    for file, scenarios in ((_UNIT, CHEAP), (_NODES, LONG)):
        for each in scenarios:
            found |= dict.fromkeys(each.keys, f"{file}::test_documented_commands_run[{each.name}]")
    return found | OTHERS


LONG_OTHERS = {"docs/how-to/dual-run.md#the-model-python-1"}
# Blocks that another test reads from the page and runs.
OTHERS = {
    "README.md#contribute-console-1": f"{_UNIT}::test_ci_runs_the_command_of_the_readme",
    "docs/how-to/derive.md#derive-python-1": (
        "tests/images/test_real_builds.py::test_guide_is_followed_from_an_empty_directory"
    ),
    "docs/how-to/dual-run.md#the-model-python-1": "tests/images/test_dual_torch.py::test_model_of_the_guide_is_recorded",
    "docs/how-to/fleet-data.md#rows-that-did-not-change-python-1": f"{_UNIT}::test_example_reads_the_data_of_a_fleet",
    "docs/how-to/cache-keys.md#use-it-python-1": f"{_UNIT}::test_example_sets_the_caches_or_prints_why_not",
    "docs/how-to/integrations.md#your-own-services-goldnodediagnostics-python-1": (
        f"{_UNIT}::test_example_serves_the_report_of_a_process"
    ),
    "docs/how-to/testing-nodes.md#write-a-test-python-1": (
        "tests/unit/testing/testinfra/test_fixtures.py::test_example_of_the_guide_passes_on_a_healthy_node"
    ),
    "docs/adding.md#a-health-check-python-1": f"{_UNIT}::test_example_of_a_health_check_judges",
    "docs/adding.md#a-health-check-python-2": f"{_UNIT}::test_example_of_a_health_check_judges",
}


class Shell:
    """One bash that runs the commands of blocks, each with its own time limit, and stores what they print."""

    def __init__(self, where: Path, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="goldnode-documented-")
        self._number = 0
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=where,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *problem: object) -> None:
        self.end()
        self._folder.cleanup()

    def end(self) -> None:
        """End the shell and everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(
        self, command: str, limit: float = 120, answers: str = "", until: str = ""
    ) -> tuple[int, str]:
        """Run one command; return its status and what it printed. Raise TimeoutError after `limit` seconds.

        Send SIGINT to what it has started once it has printed `until`.
        """
        self._number += 1
        base = Path(self._folder.name, str(self._number))
        base.with_suffix(".sh").write_text(f"{command}\n", encoding="utf-8")
        base.with_suffix(".in").write_text(answers, encoding="utf-8")
        printed = base.with_suffix(".out")
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f". {base}.sh <{base}.in >{base}.out 2>&1; echo $?\n")
        end = time.monotonic() + limit
        while not select.select([self._process.stdout], [], [], min(1.0, limit))[0]:
            text = printed.read_text("utf-8", "replace") if printed.exists() else ""
            if until and until in text:
                until = ""
                for process in children(self._process.pid):
                    os.kill(process, signal.SIGINT)
            if time.monotonic() > end:
                self.end()
                raise TimeoutError(f"no end after {limit} s: {command}\n{text[-3000:]}")
        return int(self._process.stdout.readline()), printed.read_text("utf-8", "replace")


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [
        int(one)
        for one in Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()
    ]


# Commands that end with another status than 0, by design or as the machine is.
STATUSES: tuple[tuple[str, Sequence[int]], ...] = (
    (
        r"\S*goldnode-node check( +#|$)",
        (0, 1, 2, 3),
    ),  # the verdict on this machine: 3 without a GPU
    (
        r"python -m goldnode.testing.lab ssh \w+ \w+ goldnode-node check$",
        (1, 2, 3),
    ),  # 3: in a container
    (r"ssh -F \S+ node1( 'apt-mark.*)? ?'?(goldnode-node check)?'?$", (0, 1, 2, 3)),
    (
        r"goldnode images lock --check",
        (0, 1),
    ),  # 1: the archive has newer packages; the page goes on with that
    (
        r"goldnode rollout run (good|bad).yml -i inventory$",
        (0, 1, 130),
    ),  # interrupted, or rolled back
    (r"ansible-playbook PLAYBOOK$", (1, 2, 4)),  # refused: the class is denied
    (r"scripts/docs serve", (0, 130)),
)
# Commands that ask on a terminal -> the answers, here the defaults.
QUESTIONS = ((r"goldnode init \w+( +#|$)", "\n\n\n"),)
# Pages whose shown outputs do not depend on the archive of the day.
SHOWN = (_CHECK,)
# Files and commands that the text of a page asks for before a block, and results of a script that ran before.
BEFORE = {
    # In a virtual environment that was installed by hand: scripts/release need not install it again.
    f"{_INSTALL}#install-the-commands-console-1": (
        "[ -z $PIP_NO_INDEX ] || (here=$PWD; . scripts/lib/setup.sh; venv_wanted >.venv/goldnode.stamp)"
    ),
    f"{_INSTALL}#first-steps-console-1": 'cd "$(mktemp -d)"',
    f"{_KEYS}#rotate-a-key-console-1": (
        "echo 'images: {signing_key: keys/images.pem, public_key: keys/images.pub}' >goldnode-site.yml"
    ),
    f"{_NODE}#describe-a-machine-console-1": 'cd "$(mktemp -d)"',
    f"{_PACKAGES}#install-goldnode-as-a-package-console-1": 'cd "$(mktemp -d)"',
    f"{_INSTALL}#verify-a-release-console-1": 'cd "$CHECKOUT"',
    f"{_INSTALL}#install-the-commands-console-2": (
        'python3 -m venv "$HOME/pipx" && "$HOME/pipx/bin/pip" install -q pipx && mkdir -p "$HOME/.local/bin" && '
        'ln -s "$HOME/pipx/bin/pipx" "$HOME/.local/bin/pipx"'
    ),
    # The hosts of the reader: one node in a container.
    f"{_INSTALL}#the-collection-console-1": (
        f"{sys.executable} -m goldnode.testing.lab up documented --engine n1=cpu_only && "
        "sed 's/^  vars:$/&\\n    goldnode_accepted: [0, 3]/' .goldnode/lab/documented/inventory/hosts.yml >hosts.yml && "
        "grep -q accepted hosts.yml"
    ),
    f"{_ROLLOUT}#install-goldnode-and-start-six-nodes-console-1": (
        'mkdir "$CHECKOUT-rollout" && cp *.whl "$CHECKOUT-rollout" && cd "$CHECKOUT-rollout"'
    ),
}
# A person presses Ctrl-C when the command has printed this.
INTERRUPTED = {
    (f"{_ROLLOUT}#run-it-console-1", "goldnode rollout run"): "is out of service, and is changed",
    (f"{_DEVELOPMENT}#documentation-console-1", "scripts/docs serve"): "Serving on",
}
_SET_UP = re.compile(r"python3(\.\d+)? -m venv|\S*pip install")


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines of a page that an output lacks, in order; `…` stands in for any text."""
    lines, lost = printed.splitlines(), []
    for line in shown.splitlines():
        pattern = re.compile(re.escape(line).replace("…", ".*"))
        at = next((number for number, one in enumerate(lines) if pattern.fullmatch(one)), None)
        if at is None:
            lost.append(line)
        else:
            lines = lines[at + 1 :] if line != "…" else lines
    return lost


@dataclass
class Reader:
    """A person who follows pages in a checkout, with a home of their own."""

    checkout: Path
    environment: Mapping[str, str]
    limit: float = 300  # seconds for each command
    done: set[str] = field(default_factory=set)  # set-ups that several pages have
    playbook: str = "site.yml"  # as `goldnode init` prints it

    def follow(self, scenario: Scenario) -> None:
        """Run the blocks of a scenario in one shell. Raise AssertionError at the first that does not do as printed."""
        self.follow_blocks(scenario.blocks)

    def follow_blocks(self, some: Iterable[Block]) -> None:
        with Shell(self.checkout, self.environment) as shell:
            for block in some:
                if block.key in BEFORE:
                    status, printed = shell.run(BEFORE[block.key], self.limit)
                    assert status == 0, (
                        f"{block.key}: {BEFORE[block.key]}\nends with {status}:\n{printed}"
                    )
                printed = ""
                for command in commands(block):
                    if not (_SET_UP.match(command.text) and command.text in self.done):
                        printed = self._run(shell, block, command)
                        self.done.add(command.text)
                if block.page in SHOWN and ("no GPU" in printed or "no GPU" not in block.shown):
                    lost = missing(block.shown, printed)
                    assert not lost, f"{block.key} does not print {lost}:\n{printed}"

    def _run(self, shell: Shell, block: Block, command: Command) -> str:
        text, answers = command.text, command.answers
        for pattern, given in QUESTIONS:
            if re.match(pattern, text):
                words = text.partition(" #")[0]
                text, answers = (
                    f"script --quiet --return --command {shlex.quote(words)} /dev/null",
                    given,
                )
        if "PLAYBOOK" in text:
            text = text.replace("PLAYBOOK", self.playbook)
        stops = ((what, line) for (key, what), line in INTERRUPTED.items() if key == block.key)
        until = next((line for what, line in stops if text.startswith(what)), "")
        status, printed = shell.run(text, self.limit, answers, until)
        self.playbook = next(
            iter(re.findall(r"ansible-playbook (\S+/site\.yml)", printed)), self.playbook
        )
        allowed = next(
            (some for pattern, some in STATUSES if re.match(pattern, command.text)), (0,)
        )
        assert status in allowed, (
            f"{block.key}: {command.text}\nends with {status}:\n{printed[-3000:]}"
        )
        return printed


def clean(where: Path) -> dict[str, str]:
    """Return an environment without settings of goldnode, Ansible or Python, and with a home of its own."""
    home = where / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    own = str(Path(sys.prefix, "bin"))
    stored = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_", "PYTHON", "XDG_", "VIRTUAL_ENV", "PYTEST"))
    }
    path = ":".join(part for part in os.environ["PATH"].split(":") if part != own)
    return {**stored, "HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": path}


def clone(where: Path) -> Path:
    """Return a checkout of the working tree as one commit."""
    checkout = export(where / "goldnode")
    git = ["git", "-c", "user.name=reader", "-c", "user.email=reader@example.net"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "A checkout"]):
        subprocess.run([*git, *words], cwd=checkout, check=True, capture_output=True)
    return checkout


def offline(where: Path) -> Reader:
    """Return a reader without a network, for whom pip finds every requirement installed but goldnode."""
    site, programs, checkout = where / "site", where / "bin", clone(where)
    site.mkdir()
    programs.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"(goldnode|pip)\b|.*\.pth$|_(?!cffi_backend)", path.name):
            (site / path.name).symlink_to(path)
    base = f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("python3", "python3.11"):
        (programs / name).symlink_to(base)
    environment = clean(where)
    found = {
        "CHECKOUT": str(checkout),
        "PATH": f"{programs}:{checkout}/.venv/bin:{environment['PATH']}",
        "PYTHONPATH": str(site),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads 0 as: without isolation
    }
    return Reader(checkout, environment | found)


def online(where: Path) -> Reader:
    """Return a reader with a network, and time."""
    checkout, environment = clone(where), clean(where)
    found = {"CHECKOUT": str(checkout), "PATH": f"{where}/home/.local/bin:{environment['PATH']}"}
    return Reader(checkout, environment | found, limit=3600)


# The list in docs/proof.md

_BEGIN, _END = (
    "<!-- blocks: written by python -m tests.documented --write -->",
    "<!-- end of blocks -->",
)


def listed(text: str) -> str:
    """Return a text of docs/proof.md with the list of blocks as it is now."""
    long = {key for scenario in LONG for key in scenario.keys} | LONG_OTHERS
    kinds, rows = ("console", "python"), ("By default", "With `--all`", "Not run")
    counts = {title: Counter[str]() for title in rows}
    left_out: Counter[str] = Counter()
    for key, block in blocks().items():
        title = "Not run" if block.reason else "With `--all`" if key in long else "By default"
        counts[title][block.kind] += 1
        if block.reason:
            page = block.page.removeprefix("docs/")
            target = page if block.page.startswith("docs/") else f"../{page}"
            needs = f"{block.reason[0]} ({block.reason[1]})"
            left_out[f"[{page}, {block.heading}]({target}#{slug(block.heading)}): {needs}"] += 1
    lines = [
        f"| Blocks | {' | '.join(kinds)} |",
        f"|---|{'--:|' * len(kinds)}",
        *(
            f"| {title} | {' | '.join(str(counts[title][kind]) for kind in kinds)} |"
            for title in rows
        ),
        "",
        "Not run:",
        "",
        *(
            f"* {line}{f', {count} blocks' if count > 1 else ''}"
            for line, count in left_out.items()
        ),
    ]
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    body = "\n".join(lines)
    return f"{before}{_BEGIN}\n\n{body}\n\n{_END}{after}"


def main() -> None:
    """Write the list of docs/proof.md."""
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    page = ROOT / "docs/proof.md"
    page.write_text(listed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
