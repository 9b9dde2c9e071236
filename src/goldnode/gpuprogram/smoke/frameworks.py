"""Frameworks of an image: import each, check its version, and run one batch of the known network."""

from __future__ import annotations

import importlib
import struct
import time
from typing import Any, List, Tuple

from goldnode.gpuprogram import linear
from goldnode.gpuprogram.libraries import numbers
from goldnode.gpuprogram.results import Failed, Json, passed

MODULES = {"torch": "torch", "onnxruntime": "onnxruntime", "jax": "jax"}
ALIASES = {"pytorch": "torch", "onnxruntime-gpu": "onnxruntime", "onnx-runtime": "onnxruntime"}


def framework(part: str) -> str:
    """Return the module of a part; empty if the part is not a framework."""
    name = part.lower()
    return MODULES.get(ALIASES.get(name, name), "")


def check(module: str, version: str, device: bool, cuda: str = "") -> Json:
    """Import the module, compare its version, and run the batch on the processor or the first device.

    `cuda`: the CUDA version of the image, for which torch must be built. `device`: there is a
    device.
    """
    try:
        imported = importlib.import_module(module)
    except ImportError as problem:
        raise Failed(
            f"{module} cannot be imported: {problem}", expected="it imports", got=str(problem)
        ) from None
    reported = str(getattr(imported, "__version__", ""))
    wanted = numbers(version)
    if numbers(reported)[: len(wanted)] != wanted:
        raise Failed(
            f"{module} is another version than the image states", expected=version, got=reported
        )
    started = time.perf_counter()
    out, where, built = {"torch": _torch, "onnxruntime": _onnxruntime, "jax": _jax}[module](
        imported, device
    )
    took = time.perf_counter() - started
    if cuda and built and numbers(built)[:2] != numbers(cuda)[:2]:
        raise Failed(
            f"{module} is built for another CUDA than the image's", expected=cuda, got=built
        )
    expected = linear.logits()
    if out != expected:
        raise Failed(
            f"{module}: the network's output is wrong on {where}",
            expected=expected[0],
            got=[str(value) for value in out[0]],
        )
    got = {"version": reported, "on": where, "classes": linear.classes(out)}
    return passed(
        {"version": version or reported, "classes": linear.classes(expected)},
        got,
        {"milliseconds": round(took * 1e3, 1)},
    )


Ran = Tuple[List[List[float]], str, str]


def _torch(torch: Any, device: bool) -> Ran:
    x, first, second = (torch.tensor(rows, dtype=torch.float32) for rows in linear.network())
    # PyTorch for ROCm uses the interface torch.cuda, too.
    seen = bool(torch.cuda.is_available())
    if seen != device and (torch.version.cuda or torch.version.hip):
        raise Failed("torch.cuda.is_available()", expected=device, got=seen)
    where = torch.device("cuda" if device and seen else "cpu")
    with torch.inference_mode():
        out = torch.relu(x.to(where) @ first.to(where)) @ second.to(where)
    name = torch.cuda.get_device_name(0) if where.type == "cuda" else "cpu"
    return out.cpu().tolist(), name, torch.version.cuda or ""


def _jax(jax: Any, device: bool) -> Ran:
    numpy = importlib.import_module("jax.numpy")
    platform = jax.default_backend()
    if (platform != "cpu") != device:
        raise Failed("jax.default_backend()", expected="a GPU" if device else "cpu", got=platform)
    x, first, second = (numpy.array(rows, dtype="float32") for rows in linear.network())

    def forward(batch: Any) -> Any:
        return numpy.maximum(batch @ first, 0) @ second

    return jax.jit(forward)(x).tolist(), platform, ""


def _onnxruntime(runtime: Any, device: bool) -> Ran:
    numpy = importlib.import_module("numpy")
    runtime.set_default_logger_severity(3)  # errors only
    offered = runtime.get_available_providers()
    wanted = [
        name
        for name in ("CUDAExecutionProvider", "ROCMExecutionProvider")
        if device and name in offered
    ]
    session = runtime.InferenceSession(onnx_model(), providers=[*wanted, "CPUExecutionProvider"])
    used = session.get_providers()
    if wanted and wanted[0] not in used:
        raise Failed("onnxruntime falls back to the processor", expected=wanted[0], got=used)
    x = numpy.array(linear.network()[0], dtype="float32")
    return session.run(None, {"x": x})[0].tolist(), used[0], ""


# -- an ONNX model without the package onnx: protobuf's wire format (tag, length, bytes), written by hand with
# -- the field numbers of onnx.proto


def field(number: int, value: Any) -> bytes:
    """Encode one field: an integer as varint, text or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Encode an integer with seven bits per byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def tensor(name: str, rows: List[List[int]]) -> bytes:
    """Encode a TensorProto of floats."""
    data = struct.pack(f"<{len(rows) * len(rows[0])}f", *(value for row in rows for value in row))
    return (
        field(1, len(rows)) + field(1, len(rows[0])) + field(2, 1) + field(8, name) + field(9, data)
    )


def value_info(name: str, *shape: int) -> bytes:
    """Encode the ValueInfoProto of a float tensor."""
    dimensions = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dimensions)))


def node(kind: str, inputs: Tuple[str, ...], output: str) -> bytes:
    """Encode a NodeProto."""
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind)


def onnx_model() -> bytes:
    """Encode the network as ModelProto, operator set 13."""
    _, first, second = linear.network()
    nodes = (
        node("MatMul", ("x", "first"), "a"),
        node("Relu", ("a",), "b"),
        node("MatMul", ("b", "second"), "y"),
    )
    graph = b"".join(field(1, part) for part in nodes) + field(2, "goldnode")
    graph += b"".join(
        field(5, tensor(name, rows)) for name, rows in (("first", first), ("second", second))
    )
    graph += field(11, value_info("x", linear.BATCH, linear.INPUT)) + field(
        12, value_info("y", linear.BATCH, linear.CLASSES)
    )
    return (
        field(1, 8) + field(2, "goldnode") + field(7, graph) + field(8, field(1, "") + field(2, 13))
    )
