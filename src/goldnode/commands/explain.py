"""Command `goldnode explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from goldnode.explain.answer import Explanation
    from goldnode.explain.here import LocalReport
    from goldnode.explain.model import TextAnswer

_MOST = 64 << 20  # bytes: enough for an nvidia-bug-report, a bound against an endless stream
_EFFECT = {
    "none": "no fault of the node",
    "degraded": "needs inspection",
    "drain": "a reason to drain the node",
}
_UNREAD = 5  # lines that were not recognized and are shown


@click.command("explain")
@click.argument("what", nargs=-1, metavar="[FILE|TEXT]...")
@click.option("--here", is_flag=True, help="Ask this node what decides between the causes.")
@reports("explain")
def explain(what: tuple[str, ...], here: bool, form: str) -> None:
    """Explain an error, a log, a tool's table or a description.

    Give the TEXT, a FILE, or standard input (-): a kernel log, the tables and errors of nvidia-smi, `nvidia-smi
    topo -m`, `nvidia-smi -q`, `dcgmi diag` and `health`, `lspci -vv`, an nvidia-bug-report (unpacked), `sinfo -R`,
    `scontrol show node`, `kubectl describe node`, `ras-mc-ctl --errors`, events of node-problem-detector, `efibootmgr -v`,
    `bootctl`, `lsblk` and `blkid`, a job's traceback, a log of NCCL, or a sentence of your own. The answer names causes in the order of their likelihood,
    what decides between them, and the remedy. Nothing is sent anywhere.

    Exit status: 0 explained, 1 nothing was recognized, 2 an error.
    """
    from goldnode.explain import answer
    from goldnode.explain import here as node

    text = _text(what)
    explanation = answer.explain(text)
    report = None
    if here:
        asked = [*explanation.answers, *(row for row, _ in explanation.similar)]
        report = node.ask(asked)
        if report.driver:
            explanation = answer.explain(text, report.driver)
    content = explanation.document()
    if report is not None:
        content["here"] = {
            row.id: node.about(row, report)
            for row in (*explanation.answers, *(row for row, _ in explanation.similar))
        }
    emit(form, content, lambda: _shown(explanation, report))
    if not explanation.answers and not explanation.similar:
        sys.exit(0 if explanation.forms else 1)


def _text(what: tuple[str, ...]) -> str:
    if not what or what == ("-",):
        if sys.stdin.isatty():
            raise GoldnodeError(
                "nothing to explain",
                remedy='give a file or a text (`goldnode explain "…"`), or a log on standard input',
            )
        return _decoded(sys.stdin.buffer.read(_MOST), "standard input")
    parts = []
    for word in what:
        # A message can be longer than any path may be.
        path = Path(word) if len(word) < 1024 and "\n" not in word else None
        if path is not None and path.is_file():
            with path.open("rb") as opened:
                parts.append(_decoded(opened.read(_MOST), word))
        elif (
            path is not None
            and len(what) == 1
            and " " not in word
            and ("/" in word or path.suffix in (".log", ".txt"))
        ):
            raise GoldnodeError(
                f"{word}: there is no such file", remedy="correct its name, or give the text itself"
            )
        else:
            parts.append(word)
    return "\n".join(parts) if any("\n" in part for part in parts) else " ".join(parts)


def _decoded(data: bytes, name: str) -> str:
    if data[:2] == b"\x1f\x8b":
        raise GoldnodeError(
            f"{name} is compressed", remedy=f"decompress it: `zcat {name} | goldnode explain`"
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as PowerShell redirects
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def _shown(explanation: Explanation, report: LocalReport | None) -> str:
    blocks = []
    if explanation.forms:
        read = [f"{form} ({notes})" if notes else form for form, notes in explanation.forms]
        blocks.append("Recognized: " + "; ".join(read) + ".")
    blocks.extend(_block(row, report) for row in explanation.answers)
    if explanation.similar:
        blocks.append("No message of it is known. By its words it may be:")
        blocks.extend(_block(row, report) for row, _ in explanation.similar)
    if explanation.forms and not explanation.answers:
        unjudged = any("could not judge" in notes for _, notes in explanation.forms)
        known = "No fault shows in what could be judged."
        blocks.append(known if unjudged else "Nothing in it is a fault that goldnode knows.")
    if explanation.unread:
        count = len(explanation.unread)
        rows = [f"  line {number}: {text}" for number, text in explanation.unread[:_UNREAD]]
        more = [f"  and {count - _UNREAD} more"] if count > _UNREAD else []
        blocks.append(
            "\n".join(
                [
                    f"Not recognized, {count} lines:" if count > 1 else "Not recognized:",
                    *rows,
                    *more,
                ]
            )
        )
    if not explanation.forms and not explanation.answers and not explanation.similar:
        blocks.append(
            "`goldnode explain --help` lists what it reads. `goldnode-node diagnose` looks at the node itself."
        )
    return "\n\n".join(blocks)


def _block(row: TextAnswer, report: LocalReport | None) -> str:
    from goldnode.explain.here import about

    head = f"{row.title}: {row.subject}" if row.subject else row.title
    times = f", {row.count} times" if row.count > 1 else ""
    causes = [f"{number}. {cause}" for number, cause in enumerate(row.causes, 1)]
    pairs = [
        ("line", f"{row.line}{times}: {row.text[:160]}" if row.text else None),
        *(("and", text[:160]) for text in row.more),
        ("layer", row.layer),
        ("node", _EFFECT.get(row.effect or "")),
        *(("cause", cause) for cause in causes),
        ("check", row.check),
        *(("here", line) for line in (about(row, report) if report else ())),
        *(("versions", note) for note in row.versions),
        ("remedy", row.fix),
        *(("source", source) for source in row.sources[:3]),
    ]
    return "\n".join([head, *(f"  {name + ':':10}{text}" for name, text in pairs if text)])
