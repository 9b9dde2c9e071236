"""Inference and training of a small transformer with PyTorch: on each CUDA device, or on the CPUs."""

from __future__ import annotations

import importlib
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .records import Fact, JobResult, Metric, failed, metric, not_run, passed
from .sampling import Watch


class Size(NamedTuple):
    """Size of the network and its input."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int


SIZES = {"gpu": Size(6, 512, 8, 128, 1), "cpu": Size(2, 128, 4, 32, 1)}
TRAINING = {"gpu": 32, "cpu": 4}  # batch
EVERY = 50  # runs between two readings of the device's state


def inference(on: str, samples: int = 1000) -> JobResult:
    """Run one batch many times. The first run, with the import of PyTorch before it, is the cold start."""
    torch, took = _torch()
    metrics = [metric("torch_import", "ms", [took * 1e3], cold=True)]
    watch, facts = Watch(), _versions(torch)
    for device, address in _devices(torch, on):
        begun = time.perf_counter()
        model, batch = _model(torch, SIZES[on], device, half=on == "gpu")
        with torch.inference_mode():
            first = model(batch)
            _wait(torch, device)
            metrics.append(
                metric("inference", "ms", [(time.perf_counter() - begun) * 1e3], address, cold=True)
            )
            times, last = _timed(
                torch,
                model=model,
                batch=batch,
                device=device,
                address=address,
                samples=samples,
                watch=watch,
            )
        _same(first, last)
        metrics.append(metric("inference", "ms", times, address))
        metrics[-1]["conditions"] = watch.take(address)
    return passed(metrics, {**facts, **watch.facts()} if on == "gpu" else facts)


def _timed(
    torch: Any,
    model: Any,
    batch: Any,
    device: Any,
    address: Optional[str],
    *,
    samples: int,
    watch: Watch,
) -> Tuple[List[float], Any]:
    out = None
    for _ in range(20):
        out = model(batch)
    _wait(torch, device)
    times = []
    for run in range(samples):
        begun = time.perf_counter()
        out = model(batch)
        _wait(torch, device)
        times.append((time.perf_counter() - begun) * 1e3)
        if run % EVERY == 0:
            watch.read(address)
    return times, out


def _same(first: Any, last: Any) -> None:
    """Compare the outputs of the first and the last run of the same input."""
    if not bool(first.isfinite().all()):
        raise failed("the output has numbers that are not finite")
    # Kernels may differ between runs, results only within the rounding of the precision.
    difference = float((first.float() - last.float()).abs().max())
    if not difference <= 0.02:
        raise failed(f"the output of the same input changed by {difference:g} between two runs")


def training(on: str, samples: int = 200) -> JobResult:
    """Train for a few steps on one batch. The loss must be finite and fall."""
    torch, _ = _torch()
    watch, facts = Watch(), _versions(torch)
    metrics: List[Metric] = []
    for device, address in _devices(torch, on):
        size = SIZES[on]._replace(batch=TRAINING[on])
        model, batch = _model(torch, size, device, half=False)
        target = torch.randn(batch.shape, generator=torch.Generator().manual_seed(2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        times, losses = [], []
        for run in range(samples + 1):
            begun = time.perf_counter()
            losses.append(_step(torch, model, optimizer, batch, target))
            _wait(torch, device)
            times.append((time.perf_counter() - begun) * 1e3)
            if run % EVERY == 1:
                watch.read(address)
        first, last = float(losses[0]), float(losses[-1])
        facts[f"loss_{address or 'cpu'}"] = f"{first:.5g} -> {last:.5g}"
        metrics.append(metric("training_step", "ms", times[:1], address, cold=True))
        metrics.append(metric("training_step", "ms", times[1:], address))
        metrics[-1]["conditions"] = watch.take(address)
        if not last < first:  # also true if it is NaN
            raise failed(
                f"the loss did not fall within {samples} steps: {first:.5g}, {last:.5g}", metrics
            )
    return passed(metrics, {**facts, **watch.facts()} if on == "gpu" else facts)


def _step(torch: Any, model: Any, optimizer: Any, batch: Any, target: Any) -> Any:
    optimizer.zero_grad(set_to_none=True)
    if batch.device.type == "cuda":
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(batch)
        loss = torch.nn.functional.mse_loss(out.float(), target)
    else:
        loss = torch.nn.functional.mse_loss(model(batch), target)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _torch() -> Tuple[Any, float]:
    """Import PyTorch. Return it with the seconds that this took."""
    begun = time.perf_counter()
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise not_run("PyTorch is not here") from None
    return torch, time.perf_counter() - begun


def _versions(torch: Any) -> Dict[str, Fact]:
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
    }


def _devices(torch: Any, on: str) -> List[Tuple[Any, Optional[str]]]:
    """Return the devices of PyTorch with their PCI addresses; the CPU has none."""
    if on == "cpu":
        return [(torch.device("cpu"), None)]
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            raise not_run(f"PyTorch {torch.__version__} is built without CUDA")
        raise failed("torch.cuda.is_available() is False, although there are device files")
    return [
        (torch.device("cuda", index), _address(torch, index))
        for index in range(torch.cuda.device_count())
    ]


def _address(torch: Any, index: int) -> Optional[str]:
    properties = torch.cuda.get_device_properties(index)
    bus, domain, device = (
        getattr(properties, f"pci_{part}_id", None) for part in ("bus", "domain", "device")
    )
    if bus is None or domain is None or device is None:  # PyTorch before 2.6
        return f"cuda:{index}"
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _model(torch: Any, size: Size, device: Any, half: bool) -> Tuple[Any, Any]:
    """Return a network with fixed weights and a batch for it."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(
        size.width,
        size.heads,
        4 * size.width,
        dropout=0.0,
        batch_first=True,
        norm_first=True,
    )
    options = {"enable_nested_tensor": False}
    model = torch.nn.TransformerEncoder(layer, size.layers, **options)
    batch = torch.randn(
        size.batch, size.tokens, size.width, generator=torch.Generator().manual_seed(3)
    )
    kind = torch.float16 if half else torch.float32
    model = model.to(device=device, dtype=kind)
    return (model.eval() if half or device.type == "cpu" else model), batch.to(
        device=device, dtype=kind
    )


def _wait(torch: Any, device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
