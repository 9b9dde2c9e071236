"""Command `goldnode dual record`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.dual import KEY, signing_key
from goldnode.commands.options import (
    AS_DOCKER,
    DEVICES,
    EXISTING,
    FILE,
    engine_option,
    gpus_option,
    grouped,
    timeout_option,
)
from goldnode.commands.output import emit, reports
from goldnode.dual.recorder.model import PRECISIONS
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.dual.store import DualRecord


@dataclass(frozen=True)
class RecordPlace:
    """Options: where to record."""

    host: str | None
    image: str | None
    engine: str
    python: str
    gpus: str | None
    devices: tuple[str, ...]


@dataclass(frozen=True)
class RecordSettings:
    """Options: how the model runs."""

    inputs: Path | None
    seed: int
    torch_device: str
    precision: str
    threads: int | None
    runs: int | None
    warmup: int
    cold: int
    draws: int


@dataclass(frozen=True)
class RecordContent:
    """Options: what the record has."""

    name: str | None
    state: str | None
    no_layers: bool
    elements: int
    max_bytes: int
    limit: float
    key: Path | None


@click.command()
@click.argument("out", type=click.Path(path_type=Path), metavar="RECORD")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]...")
@click.option(
    "--model",
    type=FILE,
    metavar="FILE",
    help="Python file with inputs(seed) and model().",
)
@grouped(
    "place",
    RecordPlace,
    click.option("--host", metavar="HOST", help="Record on this host, over ssh."),
    click.option("--image", metavar="IMAGE", help="Record in a container of this image."),
    engine_option("Container engine for --image."),
    click.option(
        "--python",
        default="python3",
        show_default=True,
        metavar="PROGRAM",
        help="Python that has the framework.",
    ),
    gpus_option(AS_DOCKER),
    DEVICES,
)
@grouped(
    "how",
    RecordSettings,
    click.option(
        "--inputs",
        type=EXISTING,
        metavar="RECORD",
        help="Use the inputs of another record.",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of inputs and weights.",
    ),
    click.option(
        "--torch-device",
        default="cpu",
        show_default=True,
        metavar="NAME",
        help="Device of PyTorch: cpu, cuda, cuda:1.",
    ),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="native",
        show_default=True,
        help="Precision that model and inputs are moved to; native leaves them.",
    ),
    click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Threads of PyTorch on the CPU."
    ),
    click.option(
        "--runs",
        type=click.IntRange(0),
        metavar="N",
        show_default="100, of a command 1",
        help="Timed runs of a model, or processes of a command.",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(0),
        default=5,
        show_default=True,
        metavar="N",
        help="Runs before the timed ones.",
    ),
    click.option(
        "--cold",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="Processes whose first run is timed.",
    ),
    click.option(
        "--draws",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="Draws of a sampled output: calls of sample(model, seed).",
    ),
)
@grouped(
    "content",
    RecordContent,
    click.option("--name", metavar="NAME", help="Name of this side in reports, such as before."),
    click.option(
        "--state",
        metavar="DIGEST",
        show_default="of the node's class document",
        help="State of a rollout that this side is in: its lock or disk build.",
    ),
    KEY,
    click.option("--no-layers", is_flag=True, help="Record outputs only."),
    click.option(
        "--elements",
        type=click.IntRange(1),
        default=65536,
        show_default=True,
        metavar="N",
        help="Elements of a layer that are stored; the digest is of all.",
    ),
    click.option(
        "--max-bytes",
        type=click.IntRange(1),
        default=1 << 30,
        show_default=True,
        metavar="N",
        help="Greatest size of all arrays.",
    ),
    timeout_option(1800, "Time limit of the recording."),
)
@reports("dual-record")
def record(
    out: Path,
    words: tuple[str, ...],
    model: Path | None,
    place: RecordPlace,
    how: RecordSettings,
    *,
    content: RecordContent,
    form: str,
) -> None:
    """Run a model or a command on one stack, and write what it computes as a record.

    RECORD is a new directory. The recorder needs Python 3.9 there, and the framework of the model; nothing is installed.
    In the words of a COMMAND, {out} and {seed} are replaced; it writes .npy or JSON files into {out}.
    """
    from goldnode.dual import launch, store  # start-up time: it loads pydantic

    if (model is None) == (not words):
        raise click.UsageError("give either --model FILE or a command after --")
    if place.host is not None and place.image is not None:
        raise click.UsageError("--host and --image exclude each other")
    if words and how.inputs is not None:
        raise click.UsageError("--inputs needs --model: a command reads its own inputs")
    target = launch.DualTarget(
        place.host,
        image=place.image,
        engine=place.engine,
        python=place.python,
        gpus=place.gpus,
        devices=place.devices,
    )
    given = optional(store.read, how.inputs)
    job = launch.DualJob(_arguments(how, content, bool(words)), model, words, given, content.limit)
    key = signing_key(content.key)
    recorded = launch.record(target, job, out)
    store.sign(recorded, key)
    emit(
        form, recorded.document.model_dump(mode="json", by_alias=True), lambda: _text(out, recorded)
    )


def _arguments(how: RecordSettings, content: RecordContent, command: bool) -> tuple[str, ...]:
    """Return the arguments of the recorder."""
    # A command may be a whole program: it runs once unless more runs are asked for.
    usual = 1 if command else 100
    runs = usual if how.runs is None else how.runs
    words = ["--seed", str(how.seed), "--runs", str(runs), "--max-bytes", str(content.max_bytes)]
    words += ["--timeout", str(content.limit), "--elements", str(content.elements)]
    for name, value in (("--name", content.name), ("--state", content.state)):
        if value is not None:
            # As one word: a name may begin with a dash.
            words.append(f"{name}={value}")
    # The remaining options are about a model in PyTorch.
    if command:
        return tuple(words)
    words += [
        "--device",
        how.torch_device,
        "--precision",
        how.precision,
        "--warmup",
        str(how.warmup),
    ]
    words += ["--cold", str(how.cold), "--draws", str(how.draws)]
    if how.threads is not None:
        words += ["--threads", str(how.threads)]
    if content.no_layers:
        words.append("--no-layers")
    return tuple(words)


def _text(out: Path, written: DualRecord) -> str:
    from goldnode.dual.compare import stack  # numpy: only the extra `floors` installs it

    document = written.document
    roles = [row.role for row in document.arrays]
    counts = ", ".join(
        f"{roles.count(role)} {role}{'s' * (roles.count(role) != 1)}"
        for role in dict.fromkeys(roles)
    )
    lines = [f"{out}: {document.name}, {stack(document)}", f"arrays: {counts}"]
    if document.repeatable is False:
        lines.append("two runs on this stack gave different bits")
    if document.hooks_change_output:
        lines.append(
            "with hooks the model computes other bits: layers are those of another path through the framework"
        )
    return "\n".join(lines)
