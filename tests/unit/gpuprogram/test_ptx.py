"""The kernels in PTX, interpreted here: a driver is the only other place where they run. Each instruction that they use is below."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pytest

from goldnode.gpuprogram import linear, ptx

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
Value = int | float


def single(value: float) -> float:
    """Rounded to a float of 32 bits."""
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


# Operations on registers by their name; `u64` and `u32` wrap.
OPERATIONS: dict[str, Callable[..., Value]] = {
    "mul.wide.u32": lambda a, b: a * b & M64,
    "mul.lo.u32": lambda a, b: a * b & M32,
    "add.u64": lambda a, b: a + b & M64,
    "add.u32": lambda a, b: a + b & M32,
    "shl.b64": lambda a, b: a << b & M64,
    "shr.u64": lambda a, b: a >> b,
    "xor.b32": lambda a, b: a ^ b,
    "rem.u64": lambda a, b: a % b,
    "div.u64": lambda a, b: a // b,
    "cvt.u64.u32": lambda a: a & M32,
    "cvt.u32.u64": lambda a: a & M32,
    "cvta.to.global.u64": lambda a: a,
    "mov.u32": lambda a: a,
    "mov.f32": lambda a: a,
    "max.f32": max,
    "fma.rn.f32": lambda a, b, c: single(a * b + c),
    "setp.ge.u64": lambda a, b: a >= b,
    "setp.ge.u32": lambda a, b: a >= b,
    "setp.eq.u32": lambda a, b: a == b,
}


class Machine:
    """Memory, and the threads of a launch, one after the other."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: int) -> None:
        """Run a kernel of the source."""
        head, body = re.search(
            rf"\.entry {kernel}\((.*?)\)\n{{\n(.*?)\n}}", ptx.SOURCE, re.DOTALL
        ).groups()  # type: ignore[union-attr]
        names = re.findall(r"\.param \.u(?:32|64) (\w+)", head)
        assert len(names) == len(arguments)
        lines = [
            line.strip()
            for line in body.split("\n")
            if line.strip() and not line.strip().startswith(".reg")
        ]
        labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
        for block in range(blocks):
            for thread in range(threads):
                special = {
                    "%ctaid.x": block,
                    "%ntid.x": threads,
                    "%tid.x": thread,
                    "%nctaid.x": blocks,
                }
                self._run(lines, labels, {**special, **dict(zip(names, arguments, strict=True))})

    def _run(self, lines: list[str], labels: dict[str, int], values: dict[str, Value]) -> None:
        at = 0
        while True:
            line = lines[at].rstrip(";")
            at += 1
            if line.endswith(":"):
                continue
            if line.startswith("@"):
                guard, _, line = line.partition(" ")
                if not values[guard[1:]]:
                    continue
            name, _, rest = line.partition(" ")
            operands = [word.strip() for word in rest.split(",")] if rest else []
            if name == "ret":
                return
            if name == "bra":
                at = labels[operands[0]]
            elif name.startswith("ld.param"):
                values[operands[0]] = values[operands[1].strip("[]")]
            elif name.startswith("ld.global"):
                values[operands[0]] = struct.unpack_from(
                    "<f" if name.endswith("f32") else "<I",
                    self.memory,
                    self._at(operands[1], values),
                )[0]
            elif name.startswith("st.global"):
                struct.pack_into(
                    "<f" if name.endswith("f32") else "<I",
                    self.memory,
                    self._at(operands[0], values),
                    values[operands[1]],
                )
            elif name == "atom.global.add.u32":
                place = self._at(operands[1], values)
                old = struct.unpack_from("<I", self.memory, place)[0]
                values[operands[0]] = old
                struct.pack_into("<I", self.memory, place, old + int(operands[2]) & M32)
            else:
                values[operands[0]] = OPERATIONS[name](
                    *(self._value(word, values) for word in operands[1:])
                )

    @staticmethod
    def _at(word: str, values: dict[str, Value]) -> int:
        return int(values[word.strip("[]")])

    @staticmethod
    def _value(word: str, values: dict[str, Value]) -> Value:
        if word.startswith("0f"):
            found: float = struct.unpack(">f", bytes.fromhex(word[2:]))[0]
            return found
        return values[word] if word.startswith("%") else int(word)


def word(index: int, seed: int) -> int:
    """What the kernels' pattern is, said once more."""
    return (index * 2654435761 & M32) ^ (index >> 32) ^ seed


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (2, 3), (4, 64)])
def test_a_pattern_is_written_and_found_again(blocks: int, threads: int) -> None:
    machine, words, count = Machine(1024), 100, 960
    machine.launch("goldnode_fill", blocks, threads, 64, words, 0xFFFFFFF5)
    assert machine.memory[64 : 64 + 4 * words] == b"".join(
        word(i, 0xFFFFFFF5).to_bytes(4, "little") for i in range(words)
    )
    assert not any(machine.memory[:64]) and not any(machine.memory[64 + 4 * words :])  # noqa: PT018
    machine.launch("goldnode_verify", blocks, threads, 64, words, 0xFFFFFFF5, count)
    assert struct.unpack_from("<I", machine.memory, count) == (0,)
    machine.memory[64 + 4 * 99] ^= 1
    machine.memory[64] ^= 128
    machine.launch("goldnode_verify", blocks, threads, 64, words, 0xFFFFFFF5, count)
    assert struct.unpack_from("<I", machine.memory, count) == (2,)


def test_the_network_comes_out_as_in_whole_numbers() -> None:
    x, first, second = ([row[:12] for row in rows[:12]] for rows in linear.network())
    rows, inner, columns = len(x), len(first), len(second[0])
    machine = Machine(8192)
    places = {}
    at = 64
    for name, data in (
        ("x", linear.flat(x)),
        ("first", linear.flat(first)),
        ("second", linear.flat(second)),
    ):
        machine.memory[at : at + len(data)] = data
        places[name], at = at, at + len(data)
    hidden, out = at, at + 4 * rows * len(first[0])
    machine.launch(
        "goldnode_gemm", 2, 5, places["x"], places["first"], hidden, rows, len(first[0]), inner
    )
    machine.launch("goldnode_relu", 2, 5, hidden, rows * len(first[0]))
    machine.launch("goldnode_gemm", 3, 7, hidden, places["second"], out, rows, columns, len(second))
    got = linear.rows_of(bytes(machine.memory[out : out + 4 * rows * columns]), rows, columns)
    assert got == linear.multiply(linear.relu(linear.multiply(x, first)), second)
    assert any(value < 0 for row in linear.multiply(x, first) for value in row)
