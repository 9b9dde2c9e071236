"""What a check uses in place of slower parts of the standard library, held against those."""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.sanity import __main__ as bench
from tests.simulators.hardware import build, machine

from goldnode.node import process, quickjson
from goldnode.node.device import child, stream
from goldnode.node.host import Host, like
from goldnode.node.state import grub, observe
from goldnode.node.state.domains import kernel, units

VALUES: list[Any] = [
    None, True, 0, -7, 2**70, 1.5, 1e300, float("inf"), float("nan"), "", "a\"\\\n\x00\x7f", "Ünï\u2028\U0001f600", "\ud800",
    [], {}, [1, [2, {}], "x"], {"b": 1, "a": {"ü": [None]}, "": ""}, {"1": 1.0, "x": [True, False]},
]  # fmt: skip


def texts(letters: str, most: int) -> Iterator[str]:
    """All texts of these letters, up to a length."""
    for size in range(most + 1):
        yield from map("".join, itertools.product(letters, repeat=size))


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_json_is_written_and_read_as_the_standard_module_does(
    value: Any, ordered: bool, ascii_only: bool
) -> None:
    text = json.dumps(value, sort_keys=ordered, ensure_ascii=ascii_only)
    assert quickjson.dumps(value, sort_keys=ordered, ensure_ascii=ascii_only) == text
    assert repr(quickjson.loads(f" \n{text}\t")) == repr(json.loads(text))
    narrow = json.dumps(value, separators=(",", ":"))
    assert quickjson.dumps(value, separators=(",", ":")) == narrow
    assert quickjson.dumps(value, indent=1) == json.dumps(value, indent=1)
    assert repr(quickjson.loads(narrow.encode())) == repr(json.loads(narrow))


@pytest.mark.parametrize("text", ["", "{", "[1] x", "\ufeff[1]", b"\xff", '{"a" 1}', "nul", b'"\xe9"'])
def test_what_is_no_json_is_the_standard_module_s_error(text: Any) -> None:
    with pytest.raises(ValueError) as theirs:  # noqa: PT011 - compared below
        json.loads(text)
    with pytest.raises(type(theirs.value)) as ours:
        quickjson.loads(text)
    assert str(ours.value) == str(theirs.value)


def test_what_is_not_json_serialisable_is_told() -> None:
    with pytest.raises(TypeError, match="type set is not JSON serializable"):
        quickjson.dumps({"a": {1}})


PATTERNS = (
    "",
    "a",
    "a*",
    "*b",
    "a*b",
    "?",
    "a?",
    "?*9",
    "9?-a*.b",
    "cpu[0-9]*",
    "[0-9]*",
    "[0-9]",
    "a[0-9]b",
    "[ab]x",
    "**",
    "*a*",
    "[!a]*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_name_matches_as_fnmatch_says(pattern: str) -> None:
    for name in [*texts("ab9-", 5), "9x-ab.b", "cpu12", "cpu", "[0-9]"]:
        assert like(name, pattern) == fnmatch.fnmatchcase(name, pattern), name


# The patterns that these functions stand for.
_NUMBER = re.compile(r"\s*(?:(0x[0-9a-fA-F]+)|0([0-7]+)|(?!0x)([0-9]+))")
_PATH = re.compile(r"((?:>>|[^>])*)(>?)(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([^}\n]+)\}|([A-Za-z_][A-Za-z0-9_]*|[0-9?@*#]))")
_UNIT = re.compile(r"/etc/systemd/system/([^/]+\.(?:service|timer|socket))(?:\.d/[^/]+)?$")


def test_a_number_of_grub_is_read_as_strtoul_does() -> None:
    for text in texts("0x178ag ", 5):
        found = _NUMBER.match(text)
        parts = found.groups() if found else (None, None, None)
        expected = (
            int(parts[0], 16)
            if parts[0]
            else int(parts[1], 8)
            if parts[1]
            else int(parts[2])
            if parts[2]
            else None
        )
        assert grub._number(text) == expected


def test_a_path_of_grub_is_cut_at_the_first_single_sign() -> None:
    for text in texts(">a\n", 8):
        found = _PATH.match(text)
        assert found is not None
        assert grub._cut(text) == (found[1].replace(">>", ">"), found[2], found[3])


def test_a_variable_of_grub_ends_where_its_name_does() -> None:
    for text in texts("${}a9?\n-", 5):
        if not text:
            continue
        found = _VARIABLE.match(text)
        name, end = grub._variable(text, 0)
        assert (name, end if name else 0) == ((found[1] or found[2], found.end()) if found else ("", 0))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/a.service", "/etc/systemd/system/a.timer.d/x.conf", "/etc/systemd/system/a.service.d/b/c.conf",
        "/etc/systemd/system/a.target", "/etc/systemd/system/x.wants/a.service", "/etc/udev/rules.d/a.service", "/etc/systemd/system/a.d/b",
    ],
)  # fmt: skip
def test_the_unit_of_a_file(path: str) -> None:
    found = _UNIT.match(path)
    assert units._unit(path) == (found[1] if found else None)


@pytest.mark.parametrize(
    ("text", "word"),
    [("nvidia-current", "nvidia-current"), ("a b", "'a b'"), ("", "''"), ("$x", "'$x'"), ("é", "'é'")],
)
def test_a_word_of_a_shell(text: str, word: str) -> None:
    assert kernel._word(text) == word


def test_a_grubenv_with_and_without_backslashes() -> None:
    assert grub.environment(grub.SIGNATURE + b"saved_entry=a>b\n#c=d\nx=\n####") == {
        "saved_entry": "a>b",
        "x": "",
    }
    assert grub.environment(grub.SIGNATURE + b"a=b\\\nc\\\\d\n") == {"a": "b\nc\\d"}


# -- programs


def test_a_program_s_output_status_and_input_come_back(tmp_path: Path) -> None:
    host = Host("/")
    done = host.run("sh", "-c", "cat; printf 'a\\r\\nb' >&2; exit 3", stdin="x" * 200_000)
    assert (done.rc, len(done.out), done.err) == (3, 200_000, "a\nb")
    assert host.run("sh", "-c", "read line || echo none").out == "none\n"
    assert host.run("sh", "-c", "kill -9 $$").rc == -9
    assert host.run("goldnode-no-such-program").rc == 127
    (tmp_path / "text").write_text("no program")
    assert host.run(str(tmp_path / "text")).rc == 126
    assert host.run("sh", "-c", "echo $LC_ALL").out == "C\n"


def test_a_program_that_is_late_is_killed_and_what_it_said_is_kept() -> None:
    began = time.monotonic()
    done = Host("/").run("sh", "-c", "echo early; exec sleep 60", timeout=0.5)
    assert time.monotonic() - began < 30
    assert (done.rc, done.out, done.err) == (124, "early\n", "sh: no answer within 0.5 s")


def test_one_that_closes_its_output_and_stays_is_late_too() -> None:
    assert Host("/").run("sh", "-c", "exec >&- 2>&-; exec sleep 60", timeout=0.3).rc == 124


def test_a_session_is_killed_as_one() -> None:
    started = process.Process(["sh", "-c", "sleep 60 & echo $!; wait"], os.environ, session=True)
    assert not started.listen(1.0)
    child = int(started.text(started.out))
    assert started.kill()
    started.close()
    assert started.status == -signal.SIGKILL
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.05)
    raise AssertionError("what it had started is still there")


def test_a_program_of_which_nobody_learns_the_end_has_failed() -> None:
    host = Host("/")
    host.program = "/bin/false"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done = host.run("sh", "-c", "echo x; exit 3")
        asked = child.ask(host, {"do": "read", "vendor": "nvidia"})
        streamed = stream.start(host, settings=False).finish()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (done.rc, done.out) == (process.LOST, "x\n")
    for said in (done.err, asked["error"], streamed["error"]["text"]):
        assert "SIGCHLD is ignored" in said


def test_what_python_ignores_ends_a_program_that_is_started() -> None:
    assert Host("/").run("sh", "-c", "kill -PIPE $$").rc == -signal.SIGPIPE


# -- dpkg's database

STATUS = """Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.21
Description: x
 Status: no field

Package: held
Status: hold ok installed
Architecture: all
Version: 2:3

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: half
Status: install reinstreq half-installed
Architecture: i386
Version: 4
"""


def database(root: Path, text: str = STATUS) -> Host:
    place = root / "var/lib/dpkg"
    (place / "updates").mkdir(parents=True)
    (place / "info").mkdir()
    (place / "status").write_text(text)
    return Host(str(root))


def test_the_database_is_read_as_dpkg_query_reads_it(tmp_path: Path) -> None:
    host = database(tmp_path)
    own = observe.status(host)
    assert own is not None
    assert sorted(own) == sorted(observe.queried(host))
    assert observe.packages(host)["half:i386"]["state"] == "reinst-required"
    assert observe.packages(host)["held"]["hold"]
    assert "gone" not in observe.packages(host)


def test_a_database_with_updates_or_of_another_form_is_dpkg_s_to_read(tmp_path: Path) -> None:
    assert observe.status(database(tmp_path / "a", STATUS.replace("hold ok installed", "hold"))) is None
    assert observe.status(database(tmp_path / "b", "")) is None
    host = database(tmp_path / "c")
    assert observe.status(host) is not None
    (tmp_path / "c/var/lib/dpkg/updates/0001").write_text(
        STATUS.split("\n\n")[1].replace("2:3", "2:4") + "\n"
    )
    assert observe.status(host) is None
    assert observe.packages(host)["held"]["version"] == "2:4"


def test_a_check_of_a_node_asks_for_none_of_what_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check that the benchmark measures, after one that has made this boot's caches."""
    library = build(tmp_path / "library").parent
    root = bench.node(tmp_path, library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("GOLDNODE_SIMULATOR", str(root / machine.PLACE))
    python, *rest = bench.contenders(tmp_path, root, None, None)["beyond"][1]
    subprocess.run([python, *rest], stdout=subprocess.DEVNULL, check=False)
    said = subprocess.run(
        [python, "-X", "importtime", *rest],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    imported = {
        line.rpartition("|")[2].strip()
        for line in said.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "goldnode.node.verdict.events" in imported, said.stderr[-2000:]
    slow = "re enum json subprocess functools contextlib signal threading hashlib shlex base64 fnmatch types typing dataclasses"
    assert sorted(set(slow.split()) & imported) == []
