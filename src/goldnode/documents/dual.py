"""Dual runs: the record of one side, and the comparison of two records."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Digest, Moment, NodePart, Part
from goldnode.documents.canary import Launcher

DualRole = Literal["input", "layer", "output", "sample"]
DualAnswer = Literal["pass", "fail", "unknown"]
DualState = Literal["equal", "within", "outside", "not_compared"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0, le=1 << 40)]
_Text = Annotated[str, Field(max_length=4000)]
_Short = Annotated[str, Field(max_length=300)]


class DualRecordArray(Part):
    """One array of a record. Its content is in a .npy file."""

    role: DualRole
    name: _Short = Field(
        min_length=1, description="of a layer: its path in the model; @2 is its second call"
    )
    module: _Short | None = Field(description="class of the layer")
    file: str = Field(pattern=r"^arrays/[0-9]{5}\.npy$")
    dtype: _Short = Field(description="bfloat16 and 8-bit floats are stored as their bits")
    shape: list[Size] = Field(max_length=32)
    of: list[Size] | None = Field(
        max_length=32, description="whole shape, if only every n-th element is stored"
    )
    stride: Annotated[int, Field(ge=1)]
    digest: Digest = Field(description="of type, shape and all elements")
    file_digest: Digest


class DualRecordWeight(Part):
    """Digest of one weight, before it was moved to a device or a precision."""

    name: _Short
    digest: Digest


class DualRecordSource(Part):
    """The file or the command that was recorded."""

    kind: Literal["model", "command"]
    name: _Short
    digest: Digest


class DualRecordSettings(Part):
    """Settings of the recording."""

    device: _Short | None
    precision: Literal["native", "float64", "float32", "tf32", "bfloat16", "float16"]
    threads: int | None


class DualRecordFramework(Part):
    """Framework of the image."""

    name: _Short
    version: _Short
    cuda: _Short | None
    hip: _Short | None
    cudnn: _Short | None
    build: _Text


class DualRecordDevice(Part):
    """Device that the model ran on."""

    kind: _Short
    name: _Short | None
    capability: _Short | None
    memory: int | None = Field(description="bytes")


class DualRecordNode(Part):
    """Class document of the node."""

    class_: _Short = Field(alias="class")
    digest: _Short | None
    lock: _Short | None
    simulated: bool


class DualRecordMachine(Part):
    """Machine and interpreter, as they describe themselves."""

    architecture: _Short
    cpu: _Short | None
    kernel: _Short
    os: _Short | None
    libc: _Short | None
    python: _Short
    boot_id: _Short | None
    drivers: dict[_Short, _Text]
    variables: dict[_Short, _Text]


class DualRecordLatency(Part):
    """Seconds of single runs. Cold: the first run of a process."""

    cold: list[Seconds] = Field(max_length=100_000)
    warm: list[Seconds] = Field(max_length=1_000_000)


class DualRecordDocument(NodePart):
    """Arrays and times of a model or a command on one stack."""

    schema_: Literal["goldnode.dual-record/1"] = Field(alias="schema")
    name: _Short
    simulated: bool
    recorder: Digest = Field(description="digest of the program that recorded")
    started: Moment
    how: Launcher
    host: _Short | None
    image: _Short | None = Field(description="digest of the container image; null: no container")
    state: _Short | None = Field(
        description="lock or disk build of the node, as a rollout names it"
    )
    node: DualRecordNode | None = Field(
        description="null: no class document was seen, as in a container"
    )
    machine: DualRecordMachine
    source: DualRecordSource
    seed: int
    settings: DualRecordSettings
    framework: DualRecordFramework | None
    device: DualRecordDevice | None
    weights: list[DualRecordWeight] = Field(max_length=100_000)
    weights_digest: Digest | None
    arrays: list[DualRecordArray] = Field(max_length=4096)
    repeatable: bool | None = Field(
        description="whether two runs gave the same bits; null: one run"
    )
    hooks_change_output: bool | None = Field(
        description="null: no layer was recorded through hooks"
    )
    latency: DualRecordLatency


# The comparison


class DualSide(Part):
    """One of the two records."""

    name: str
    record: Digest = Field(
        description="digest of its record.json, which has the digests of all arrays"
    )
    started: Moment
    simulated: bool
    how: str
    host: str | None
    image: str | None
    state: str | None
    stack: str = Field(description="framework, device and driver in one line")
    precision: str
    repeatable: bool | None
    hooks_change_output: bool | None
    recorder: Digest | None = Field(
        None,
        description="digest of the program that recorded; null: compared by an earlier version",
    )


class DualDifference(Part):
    """A setting or version that differs between the sides."""

    what: str
    a: str | None
    b: str | None


class DualTolerance(Part):
    """Bounds for one element. It is within tolerance if it is within the ULPs, or within absolute + relative * |a|."""

    precision: str
    relative: float
    absolute: float
    ulp: int | None
    outside: float = Field(description="share of elements that may be outside")
    source: str


class DualArray(Part):
    """Comparison of one array. Figures are over elements that are finite on both sides; null: without any."""

    role: DualRole
    name: str
    module: str | None
    state: DualState
    why: str | None
    shape: list[int] | None
    compared: int = Field(description="elements compared; of a large layer only some are stored")
    outside: int
    tolerance: DualTolerance | None
    max_absolute: float | None
    max_relative: float | None
    max_ulp: int | None
    l2: float | None = Field(description="norm of the difference by the norm of a")
    non_finite: int = Field(
        description="elements that are NaN or infinite on one side alone, or in different ways"
    )
    nan_both: int
    worst: int | None = Field(
        description="index of the element farthest outside, in C order of what is stored"
    )
    worst_a: float | None
    worst_b: float | None


class DualSamples(Part):
    """Comparison of two distributions. The true distance is between low and high with this confidence."""

    name: str
    kind: Literal["values", "categories"]
    draws_a: int
    draws_b: int
    distance: float | None = Field(
        description="values: Kolmogorov distance; categories: total variation"
    )
    low: float | None
    high: float | None
    margin: float
    confidence: float
    answer: DualAnswer
    why: str


class DualQuantile(Part):
    """One quantile of both sides with its bounds, in seconds, and the ratio b to a."""

    quantile: float
    a: float
    a_low: float | None = Field(description="null: too few runs for a bound")
    a_high: float | None
    b: float
    b_low: float | None
    b_high: float | None
    ratio_low: float | None
    ratio_high: float | None
    margin: float | None = Field(description="null: not judged")
    answer: DualAnswer | None
    why: str | None


class DualLatency(Part):
    """Times of one phase on both sides."""

    phase: Literal["cold", "warm"]
    runs_a: int
    runs_b: int
    confidence: float
    quantiles: list[DualQuantile]
    histogram_edges: list[float] = Field(description="seconds; of both sides together")
    histogram_a: list[int]
    histogram_b: list[int]


class DualPlace(Part):
    """A place in the order of execution."""

    step: int = Field(description="1 is the first array after the inputs")
    role: DualRole
    name: str
    module: str | None


class DualDocument(Part):
    """Comparison of two records. Unknown: something could not be compared, or is inconclusive."""

    schema_: Literal["goldnode.dual/1"] = Field(alias="schema")
    answer: DualAnswer
    reasons: list[str]
    compared: Moment
    simulated: bool
    a: DualSide
    b: DualSide
    differences: list[DualDifference]
    first_difference: DualPlace | None = Field(description="first array whose bits differ")
    first_divergence: DualPlace | None = Field(description="first array outside its tolerance")
    arrays: list[DualArray]
    samples: list[DualSamples]
    latency: list[DualLatency]
