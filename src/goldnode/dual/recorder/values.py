"""Arrays of any framework as bytes, and .npy files, without numpy.

The file format is NEP 1 of NumPy (numpy.org/neps/nep-0001-npy-format.html), version 1.0.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib
import math
import os
import struct
import sys
from array import array
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Tuple

MAGIC = b"\x93NUMPY\x01\x00"
HEADER = 4096  # bytes of a header that are read
# Type -> how a .npy file names it, and the bytes of an item. Formats that NumPy lacks are stored as
# their bits.
TYPES: Dict[str, Tuple[str, int]] = {
    "float64": ("<f8", 8),
    "float32": ("<f4", 4),
    "float16": ("<f2", 2),
    "bfloat16": ("<u2", 2),
    "float8_e4m3fn": ("|u1", 1),
    "float8_e5m2": ("|u1", 1),
    "int64": ("<i8", 8),
    "int32": ("<i4", 4),
    "int16": ("<i2", 2),
    "int8": ("|i1", 1),
    "uint64": ("<u8", 8),
    "uint32": ("<u4", 4),
    "uint16": ("<u2", 2),
    "uint8": ("|u1", 1),
    "bool": ("|b1", 1),
}
_BITS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_BY_DESCR = {descr: name for name, (descr, _) in TYPES.items() if name not in _BITS}


class RecorderError(Exception):
    """The record cannot be made, with the reason for a person."""


@dataclass(frozen=True)
class Value:
    """One array: its type, its shape, and its bytes in C order, little-endian.

    `of` is the whole shape if only every `stride`-th element is here. `digest` is that of the whole
    array.
    """

    dtype: str
    shape: Tuple[int, ...]
    data: bytes
    digest: str
    of: Optional[Tuple[int, ...]] = None
    stride: int = 1


def value(dtype: str, shape: Tuple[int, ...], data: bytes) -> Value:
    """Return an array. Raises RecorderError for a type that a record cannot have."""
    if dtype not in TYPES:
        raise RecorderError(
            f"an array has the type {dtype}, and a record can have {', '.join(TYPES)}"
        )
    if sys.byteorder != "little":
        raise RecorderError("this machine is not little-endian")
    head = f"{dtype} {','.join(map(str, shape))}\n".encode()
    return Value(dtype, shape, data, "sha256:" + hashlib.sha256(head + data).hexdigest())


def thinned(given: Value, limit: int) -> Value:
    """Return an array of at most `limit` elements: every n-th of a larger one, which has the digest of all."""
    count = math.prod(given.shape)
    if count <= limit:
        return given
    stride = -(-count // limit)
    items: Any = memoryview(given.data)
    part = items.cast({1: "B", 2: "H", 4: "I", 8: "Q"}[TYPES[given.dtype][1]])[::stride].tobytes()
    return Value(
        given.dtype,
        shape=(-(-count // stride),),
        data=part,
        digest=given.digest,
        of=given.shape,
        stride=stride,
    )


# From objects of a framework


def flattened(name: str, nested: Any) -> Iterator[Tuple[str, Value]]:
    """Yield the arrays of a result with their names. Raises RecorderError if it has something else."""
    if isinstance(nested, dict):
        for key in nested:
            yield from flattened(f"{name}.{key}", nested[key])
    elif isinstance(nested, (tuple, list)) and not _numbers(nested):
        for index, one in enumerate(nested):
            yield from flattened(f"{name}.{index}", one)
    elif nested is not None:
        yield name, of(nested)


def _numbers(nested: Any) -> bool:
    while isinstance(nested, (tuple, list)) and nested:
        nested = nested[0]
    return isinstance(nested, (int, float))


def of(given: Any) -> Value:
    """Return a tensor of PyTorch, an array of another framework, or nested lists of numbers as an array."""
    if hasattr(given, "data_ptr") and hasattr(given, "element_size"):
        return _of_torch(given)
    if isinstance(given, (bool, int, float, list, tuple)):
        return _of_lists(given)
    if hasattr(given, "__array__"):
        numpy = importlib.import_module("numpy")  # where a framework has such arrays, it is there
        whole = numpy.asarray(given)
        name = str(whole.dtype)
        data = whole.astype(whole.dtype.newbyteorder("<"), copy=False).tobytes()
        return value(name, tuple(int(size) for size in whole.shape), data)
    raise RecorderError(f"a result is a {type(given).__name__}, and no array")


def _of_torch(tensor: Any) -> Value:
    there = tensor.detach()
    if getattr(there, "is_sparse", False) or getattr(there, "is_quantized", False):
        raise RecorderError(
            "a tensor is sparse or quantized: return to_dense() or dequantize() of it"
        )
    there = there.to("cpu").contiguous()
    size = there.numel() * there.element_size()
    data = ctypes.string_at(there.data_ptr(), size) if size else b""
    return value(str(there.dtype).rpartition(".")[2], tuple(there.shape), data)


def _of_lists(nested: Any) -> Value:
    shape = []
    one = nested
    while isinstance(one, (list, tuple)):
        shape.append(len(one))
        one = one[0] if one else 0.0
    numbers = list(_leaves(nested, shape))
    if all(isinstance(number, bool) for number in numbers) and numbers:
        return value("bool", tuple(shape), bytes(numbers))
    if all(isinstance(number, int) for number in numbers) and numbers:
        try:
            return value("int64", tuple(shape), array("q", numbers).tobytes())
        except OverflowError:
            raise RecorderError("a list has an integer of more than 64 bits") from None
    return value("float64", tuple(shape), array("d", numbers).tobytes())


def _leaves(nested: Any, shape: Any) -> Iterator[Any]:
    if not shape:
        if not isinstance(nested, (int, float)):
            raise RecorderError(f"a list has {str(nested)[:40]!r}, and only numbers are expected")
        yield nested
        return
    if not isinstance(nested, (list, tuple)) or len(nested) != shape[0]:
        raise RecorderError("the parts of a nested list differ in length")
    for one in nested:
        yield from _leaves(one, shape[1:])


# Files


def npy(given: Value) -> bytes:
    """Return the content of a .npy file."""
    descr = TYPES[given.dtype][0]
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {given.shape!r}, }}"
    padding = -(len(MAGIC) + 2 + len(text) + 1) % 64
    head = (text + " " * padding + "\n").encode("ascii")
    return MAGIC + struct.pack("<H", len(head)) + head + given.data


def read_npy(path: str, dtype: Optional[str] = None) -> Value:
    """Read a .npy file; `dtype` names a type that is stored as its bits. Raises RecorderError.

    A file with objects is refused: they would be pickled code.
    """
    name = os.path.basename(path)
    with open(path, "rb") as file:
        start = file.read(10)
        if start[:6] != MAGIC[:6] or len(start) < 10:
            raise RecorderError(f"{name} is no .npy file")
        if start[6] not in (1, 2, 3):
            raise RecorderError(f"{name} has version {start[6]} of .npy, and 1 to 3 are known")
        wide = start[6] > 1
        if wide:
            start += file.read(2)
        length = struct.unpack("<I" if wide else "<H", start[8:])[0]
        if length > HEADER:
            raise RecorderError(f"the header of {name} has {length} bytes, more than {HEADER}")
        descr, shape = _header(name, file.read(length))
        size = TYPES[_BY_DESCR[descr]][1] * math.prod(shape)
        there = os.fstat(file.fileno()).st_size - file.tell()
        if size != there:  # before anything is allocated for a shape that is a lie
            raise RecorderError(f"{name} has {there} bytes of data, and its shape needs {size}")
        data = file.read(size)
    if len(data) != size:
        raise RecorderError(f"{name} changed while it was read")
    return value(dtype or _BY_DESCR[descr], shape, data)


def _header(name: str, text: bytes) -> Tuple[str, Tuple[int, ...]]:
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
        descr, order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise RecorderError(f"the header of {name} cannot be read") from None
    if not isinstance(descr, str) or descr not in _BY_DESCR:
        raise RecorderError(
            f"{name} has the type {descr!r}, and numbers are expected: one of {', '.join(sorted(_BY_DESCR))}"
        )
    if order is not False:
        raise RecorderError(f"{name} is in Fortran order: write numpy.ascontiguousarray of it")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise RecorderError(f"{name} has the shape {shape!r}")
    return descr, shape
