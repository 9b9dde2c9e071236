"""Recording of a model: a Python file with `inputs(seed)` and `model()`.

Optional functions of the file: `sample(model, seed)` returns one draw of a sampled output;
`steps(model, *inputs)` yields (name, value) pairs of a model without forward hooks.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from goldnode.dual.recorder import environment
from goldnode.dual.recorder.values import RecorderError, Value, flattened, of
from goldnode.dual.recorder.writer import RecordWriter

Json = Dict[str, Any]
Step = Tuple[str, Optional[str], Value]  # name, class, value
PRECISIONS = ("native", "float64", "float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelOptions:
    """How to run a model. `inputs` are those of another record; None: the file makes them."""

    file: str
    seed: int = 0
    device: str = "cpu"
    precision: str = "native"
    threads: Optional[int] = None
    layers: bool = True
    warmup: int = 5
    runs: int = 100
    draws: int = 0
    inputs: Optional[Sequence[Tuple[str, Value]]] = None


class Recording:
    """One model that was built from its file, with its inputs, on its device."""

    def __init__(self, options: ModelOptions) -> None:
        self.options = options
        self.file = loaded(options.file)
        self.torch = _torch()
        self._settings()
        self._seed(options.seed)
        made = self.file.inputs(options.seed)
        given = made if isinstance(made, tuple) else (made,)  # a tuple: several arguments
        self.named = [
            row for index, one in enumerate(given) for row in flattened(f"input.{index}", one)
        ]
        if options.inputs is not None:
            given = self._replaced(given)
            self.named = list(options.inputs)
        self._seed(options.seed)
        self.model = self.file.model()
        if not callable(self.model):
            raise RecorderError(f"model() of {options.file} returned no model that can be called")
        self.module = self.torch is not None and isinstance(self.model, self.torch.nn.Module)
        self.weights = list(self._weights())
        self.given = given
        self._place()

    # Set-up

    def _settings(self) -> None:
        torch, options = self.torch, self.options
        if torch is None:
            if options.device != "cpu" or options.precision != "native":
                raise RecorderError(
                    "PyTorch is not installed, so that --device and --precision have no meaning"
                )
            return
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        if options.precision in ("float32", "tf32"):
            torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = options.precision == "tf32"

    def _seed(self, seed: int) -> None:
        random.seed(seed)
        if self.torch is not None:
            self.torch.manual_seed(seed)

    def _weights(self) -> Iterator[Tuple[str, str]]:
        if self.module:
            for name, tensor in self.model.state_dict().items():
                if hasattr(tensor, "data_ptr"):
                    yield name, of(tensor).digest

    def _replaced(self, given: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """Return the inputs with the values of another record in the places of their own."""
        left = dict(self.options.inputs or ())
        if self.torch is None or set(left) != {name for name, _ in self.named}:
            raise RecorderError(
                "the inputs of the other record do not fit this model: their names differ"
            )

        def put(name: str, one: Any) -> Any:
            if isinstance(one, dict):
                return {key: put(f"{name}.{key}", below) for key, below in one.items()}
            if isinstance(one, (tuple, list)):
                return type(one)(put(f"{name}.{index}", below) for index, below in enumerate(one))
            value = left[name]
            kind = getattr(self.torch, value.dtype)
            return self.torch.frombuffer(bytearray(value.data), dtype=kind).reshape(value.shape)

        return tuple(put(f"input.{index}", one) for index, one in enumerate(given))

    def _place(self) -> None:
        """Move model and inputs to the device, and floating numbers to the precision."""
        if self.torch is None:
            return
        names = {"tf32": "float32", "native": None}
        name = names.get(self.options.precision, self.options.precision)
        kind = None if name is None else getattr(self.torch, name)
        if self.module:
            self.model = self.model.eval().to(device=self.options.device, dtype=kind)
        self.given = self._moved(self.given, kind)

    def _moved(self, inputs: Any, kind: Any) -> Any:
        if isinstance(inputs, dict):
            return {key: self._moved(one, kind) for key, one in inputs.items()}
        if isinstance(inputs, (tuple, list)):
            return type(inputs)(self._moved(one, kind) for one in inputs)
        if self.torch is not None and isinstance(inputs, self.torch.Tensor):
            return inputs.to(
                device=self.options.device, dtype=kind if inputs.is_floating_point() else None
            )
        return inputs

    # Runs

    def call(self) -> Any:
        """Run the model once, to the end of its work on the device."""
        if self.torch is None:
            output = self.model(*self.given)
        else:
            with self.torch.no_grad():
                output = self.model(*self.given)
        self._wait(output)
        return output

    def _wait(self, output: Any) -> None:
        kind = "cpu" if self.torch is None else self.torch.device(self.options.device).type
        if kind != "cpu":
            getattr(self.torch, kind).synchronize()
        elif hasattr(output, "block_until_ready"):  # JAX
            output.block_until_ready()

    def timed(self) -> float:
        """Run the model once and return the seconds."""
        begin = time.perf_counter()
        self.call()
        return time.perf_counter() - begin

    def steps(self) -> Tuple[List[Step], Optional[List[Value]]]:
        """Return (name, class, value) of each step in the order of execution, and the outputs of that run."""
        if hasattr(self.file, "steps"):
            steps: List[Step] = [
                (full, None, one)
                for name, step in self.file.steps(self.model, *self.given)
                for full, one in flattened(str(name), step)
            ]
            return steps, None
        return self._hooked() if self.module else ([], None)

    def _hooked(self) -> Tuple[List[Step], Optional[List[Value]]]:
        rows: List[Step] = []
        calls: Counter[str] = Counter()

        def hook(name: str, module: Any) -> Any:
            def saw(_: Any, __: Any, output: Any) -> None:
                calls[name] += 1
                label = name if calls[name] == 1 else f"{name}@{calls[name]}"
                try:
                    values = list(flattened(label, output))
                except RecorderError:
                    return  # a module between modules may return any object
                rows.extend((full, type(module).__name__, one) for full, one in values)

            return saw

        handles = [
            module.register_forward_hook(hook(name, module))
            for name, module in self.model.named_modules()
            if name
        ]
        try:
            outputs = [one for _, one in flattened("output", self.call())]
        finally:
            for handle in handles:
                handle.remove()
        return rows, outputs

    def samples(self, draws: int) -> Optional[List[Tuple[str, Value]]]:
        """Return draws of a sampled output, each with a seed of its own; None if the file has none."""
        if not hasattr(self.file, "sample"):
            return None
        outputs: List[Any] = []
        for draw in range(draws):
            seed = self.options.seed + draw
            self._seed(seed)
            with contextlib.nullcontext() if self.torch is None else self.torch.no_grad():
                one = self.file.sample(self.model, seed)
            outputs.append(one.item() if hasattr(one, "item") else one)
        return list(flattened("sample", outputs))


def _torch() -> Any:
    try:
        return importlib.import_module("torch")  # the framework of the image, if it has one
    except ImportError:
        return None


def loaded(path: str) -> Any:
    """Import the model's file. Raises RecorderError if it lacks a function."""
    spec = importlib.util.spec_from_file_location("goldnode_dual_model", path)
    if spec is None or spec.loader is None:
        raise RecorderError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    for name in ("inputs", "model"):
        if not callable(getattr(module, name, None)):
            raise RecorderError(f"{path} has no function {name}: it needs inputs(seed) and model()")
    return module


def record(options: ModelOptions, writer: RecordWriter) -> Json:
    """Run a model, write its arrays, and return the other parts of the record."""
    run = Recording(options)
    for name, one in run.named:
        writer.add("input", name, one)
    begin = time.perf_counter()
    output = run.call()
    cold = time.perf_counter() - begin
    outputs = list(flattened("output", output))
    again = list(flattened("output", run.call()))
    for _ in range(options.warmup):
        run.call()
    warm = [run.timed() for _ in range(options.runs)]
    steps, hooked = run.steps() if options.layers else ([], None)
    for name, module, one in steps:
        writer.add("layer", name, one, module)
    for name, one in outputs:
        writer.add("output", name, one)
    for name, one in run.samples(options.draws) or () if options.draws else ():
        writer.add("sample", name, one)
    same = [one.digest for _, one in outputs]
    return {
        **_described(run),
        "repeatable": same == [one.digest for _, one in again],
        "hooks_change_output": None if hooked is None else same != [one.digest for one in hooked],
        "latency": {"cold": [cold], "warm": warm},
    }


def _described(run: Recording) -> Json:
    torch, options = run.torch, run.options
    weights = hashlib.sha256()
    for name, digest in run.weights:
        weights.update(f"{name} {digest}\n".encode())
    with open(options.file, "rb") as file:
        source = "sha256:" + hashlib.sha256(file.read()).hexdigest()
    return {
        "source": {
            "kind": "model",
            "name": options.file.replace("\\", "/").rpartition("/")[2],
            "digest": source,
        },
        "seed": options.seed,
        "weights": [{"name": name, "digest": digest} for name, digest in run.weights],
        "weights_digest": "sha256:" + weights.hexdigest() if run.weights else None,
        "settings": {
            "device": options.device,
            "precision": options.precision,
            "threads": None if torch is None else torch.get_num_threads(),
        },
        "framework": None if torch is None else environment.torch_framework(torch),
        "device": None if torch is None else environment.torch_device(torch, options.device),
    }


def cold(options: ModelOptions) -> float:
    """Return the seconds of the first run of a new process."""
    return Recording(options).timed()
