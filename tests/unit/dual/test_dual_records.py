"""Records: the recorder without a framework, and hostile files."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import documents
from tests.unit.dual.dual_records import ZERO, numbers, written

from goldnode.dual import launch, pack, store
from goldnode.dual.errors import DualError
from goldnode.dual.recorder import values
from goldnode.dual.recorder.values import RecorderError

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
# A pickle that is harmful if it is loaded.
BOMB = pickle.dumps(subprocess.run)


def model(directory: Path, text: str) -> Path:
    path = directory / "own.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


MODEL = """
def inputs(seed):
    return [[1.0, 2.0], [3.0, float(seed)]]

def model():
    return lambda x: {"sum": [sum(row) for row in x], "count": len(x)}

def steps(model, x):
    yield "double", [[2 * one for one in row] for row in x]
    yield "triple", [[3 * one for one in row] for row in x]

def sample(model, seed):
    return seed % 3
"""


def recorded(tmp_path: Path, *arguments: str, text: str = MODEL, **job: Any) -> store.DualRecord:
    target = launch.DualTarget(python=sys.executable)
    given = launch.DualJob(("--runs", "5", *arguments), model(tmp_path, text), **job)
    return launch.record(target, given, tmp_path / "record")


# Files of NumPy


@given(shape=SHAPES, data=st.data())
def test_a_written_array_is_what_numpy_reads(shape: tuple[int, ...], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float64", "float32", "int64", "int8", "bool", "uint16"]))
    whole = np.zeros(shape, dtype)
    whole.flat[:] = [data.draw(st.integers(0, 1)) for _ in range(whole.size)]
    content = values.npy(values.value(dtype, shape, whole.tobytes()))
    found = np.load(io.BytesIO(content), allow_pickle=False)
    assert found.dtype == whole.dtype
    assert np.array_equal(found, whole)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_an_array_or_an_error(data: bytes) -> None:
    path = Path("/dev/shm") / f"goldnode-dual-{os.getpid()}.npy"
    for content in (
        data,
        values.MAGIC + data,
        values.MAGIC + len(data).to_bytes(2, "little") + data,
    ):
        path.write_bytes(content)
        try:
            values.read_npy(str(path))
        except RecorderError:
            pass
        finally:
            path.unlink()


def header(text: str, content: bytes = b"") -> bytes:
    return values.MAGIC + len(text).to_bytes(2, "little") + text.encode() + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no .npy file"),
        (b"PK\x03\x04", "is no .npy file"),
        (
            header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", BOMB),
            "numbers are expected",
        ),
        (
            header("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }\n"),
            "numbers are expected",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (9**99,), }\n"),
            "cannot be read",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (1" + "0" * 30 + ",), }\n"),
            "its shape needs",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n", b"\0" * 8),
            "has the shape",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': True, 'shape': (1,), }\n", b"\0" * 8),
            "Fortran order",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n", b"\0" * 8),
            "its shape needs 16",
        ),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n", b"\0" * 9),
            "its shape needs 8",
        ),
        (header("__import__('os').system('true')\n"), "cannot be read"),
        (header("(" * 3000), "cannot be read"),
        (values.MAGIC[:6] + b"\x02\x00" + (1 << 31).to_bytes(4, "little"), "more than 4096"),
        (values.MAGIC[:6] + b"\x09\x00" + b"\0" * 8, "version 9"),
    ],
)
def test_a_hostile_array_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(RecorderError, match=words):
        values.read_npy(str(path))


def test_thinning_stores_every_nth_element_and_the_digest_of_all() -> None:
    whole = numbers(*range(10), dtype="float32")
    thin = values.thinned(whole, 4)
    assert (thin.stride, thin.of, thin.shape, thin.digest) == (3, (10,), (4,), whole.digest)
    assert np.frombuffer(thin.data, "<f4").tolist() == [0, 3, 6, 9]
    assert values.thinned(whole, 10) is whole


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[1.0], [1.0, 2.0]], "differ in length"),
        ([1, "a"], "only numbers"),
        ([2**70], "more than 64 bits"),
        (object(), "no array"),
    ],
)
def test_flattened_refuses_values_that_are_no_array(given: Any, words: str) -> None:
    with pytest.raises(RecorderError, match=words):
        list(values.flattened("x", given))


# The recorder


def test_a_model_without_a_framework_is_recorded(tmp_path: Path) -> None:
    found = recorded(tmp_path, "--draws", "6", "--cold", "2", "--seed", "4")
    documents.valid((found.directory / "record.json").read_text())
    rows = {row.name: row for row in found.document.arrays}
    assert list(rows) == ["input.0", "double", "triple", "output.sum", "output.count", "sample"]
    assert np.frombuffer(found.value(rows["output.sum"]).data).tolist() == [3.0, 7.0]
    assert np.frombuffer(found.value(rows["sample"]).data, "<i8").tolist() == [1, 2, 0, 1, 2, 0]
    assert (len(found.document.latency.cold), len(found.document.latency.warm)) == (2, 5)
    assert found.document.repeatable is True


def test_two_records_of_one_model_have_the_same_arrays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    assert [row.digest for row in first.document.arrays] == [
        row.digest for row in second.document.arrays
    ]
    assert first.document.recorder == second.document.recorder


def test_a_command_is_recorded(tmp_path: Path) -> None:
    script = (
        "import json, sys; out = sys.argv[1]; "
        "json.dump([[1.5, 2], [3, 4]], open(out + '/logits.json', 'w')); "
        "json.dump([int(sys.argv[2])], open(out + '/input-seed.json', 'w')); "
        "json.dump([1], open(out + '/layer-02-b.json', 'w')); json.dump([1], open(out + '/layer-01-a.json', 'w'))"
    )
    job = launch.DualJob(
        ("--runs", "2", "--seed", "9"), command=(sys.executable, "-c", script, "{out}", "{seed}")
    )
    found = launch.record(launch.DualTarget(python=sys.executable), job, tmp_path / "record")
    rows = [(row.role, row.name) for row in found.document.arrays]
    assert rows == [("input", "seed"), ("layer", "01-a"), ("layer", "02-b"), ("output", "logits")]
    assert found.document.repeatable is True
    assert len(found.document.latency.cold) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def inputs(seed): return 1\n", "no function model"),
        ("import nonsense_of_a_site\n", "status 2"),
        ("def inputs(seed): return object()\ndef model(): return len\n", "no array"),
        ("def inputs(seed): return 1\ndef model(): return 2\n", "no model that can be called"),
        (
            "def inputs(seed): return 1\ndef model(): return print\nprint('x' * 5000, flush=True)\n",
            "fails",
        ),
    ],
)
def test_a_model_that_fails_is_one_error(text: str, words: str, tmp_path: Path) -> None:
    if (
        words == "fails"
    ):  # output of the model does not get into the archive: it has no array, and that is all
        found = recorded(tmp_path, text=text)
        assert [row.role for row in found.document.arrays] == ["input"]
        return
    with pytest.raises(DualError, match=words):
        recorded(tmp_path, text=text)
    assert not (tmp_path / "record").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "own.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), "exited with status 3"),
        (("/nonexistent/program",), "cannot be run"),
        ((sys.executable, "-c", "pass"), "wrote no .npy"),
        ((sys.executable, "-c", "open('{out}/x.json', 'w').write('no')"), "is no JSON"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not end within"),
    ],
)
def test_a_command_that_fails_is_one_error(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    job = launch.DualJob(("--runs", "1", "--timeout", "1"), command=words)
    with pytest.raises(DualError, match=message):
        launch.record(launch.DualTarget(python=sys.executable), job, tmp_path / "record")


def test_a_recorder_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    text = MODEL + "\nimport time\ntime.sleep(60)\n"
    with pytest.raises(DualError, match="did not end within"):
        recorded(tmp_path, text=text, limit=2.0)


def test_a_host_is_reached_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh: it hands the words to a shell, as sshd does."""
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        '#!/bin/sh\n[ "$3" = -- ] && [ "$4" = n1 ] || exit 255\nshift 4\nexec sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    job = launch.DualJob(("--runs", "1", "--name=a name; exit 1 'x'"), model(tmp_path, MODEL))
    found = launch.record(
        launch.DualTarget(host="n1", python=sys.executable), job, tmp_path / "record"
    )
    assert (found.document.how, found.document.host) == ("ssh", "n1")
    assert found.document.name == "a name; exit 1 'x'"
    with pytest.raises(DualError, match="on n2 ended with status 255"):
        launch.record(launch.DualTarget(host="n2", python=sys.executable), job, tmp_path / "other")


def test_a_container_has_no_network_and_no_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for docker, which notes its arguments and runs Python itself."""
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(
        f"""#!/bin/sh
echo "$1" >> {tmp_path}/calls
case "$1" in
image) echo {ZERO}; exit 0;;
run) while [ "$1" != {ZERO} ]; do echo "$1" >> {tmp_path}/words; shift; done; shift; exec {sys.executable} "$@";;
esac
"""
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    job = launch.DualJob(("--runs", "1"), model(tmp_path, MODEL))
    target = launch.DualTarget(image="x:1", gpus="all", devices=("/dev/null",))
    found = launch.record(target, job, tmp_path / "record")
    assert (found.document.how, found.document.image) == ("engine", ZERO)
    words = " ".join((tmp_path / "words").read_text().split())
    for wanted in (
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "no-new-privileges",
        "--gpus all",
        "--device /dev/null",
    ):
        assert wanted in words
    assert (tmp_path / "calls").read_text().split()[-1] == "rm"


def test_the_limit_of_bytes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DualError, match="raise --max-bytes"):
        recorded(tmp_path, "--max-bytes", "200")


def test_inputs_of_another_record_need_a_framework_or_fail(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = recorded(tmp_path / "a")
    with pytest.raises(DualError, match="do not fit this model"):
        recorded(tmp_path, inputs=first)


def test_the_packed_recorder_is_standard_library_alone(tmp_path: Path) -> None:
    program = tmp_path / pack.NAME
    program.write_bytes(pack.program())
    with zipfile.ZipFile(program) as archive:
        names = {name.rpartition("/")[0] for name in archive.namelist()}
    assert names == {"", "goldnode", "goldnode/dual", "goldnode/dual/recorder"}
    # -S: no package of this environment is there.
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, "--help"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# Hostile records


def changed(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "record.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def array_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["arrays"][0]
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(schema="goldnode.dual-record/2"), "schema"),
        (lambda found: found.update(surprise=1), "surprise"),
        (lambda found: found.pop("latency"), "latency"),
        (lambda found: found["latency"].update(warm=[-1.0]), "warm"),
        (lambda found: array_of(found).update(file="../../etc/passwd"), "file"),
        (lambda found: array_of(found).update(file="/etc/passwd"), "file"),
        (lambda found: array_of(found).update(shape=[-1]), "shape"),
        (lambda found: array_of(found).update(shape=[1 << 39, 1 << 39]), "too many"),
        (lambda found: array_of(found).update(shape=[4]), "shape"),
        (lambda found: array_of(found).update(dtype="object"), "the type object"),
        (lambda found: array_of(found).update(dtype="int64"), "does not match its digest"),
        (
            lambda found: array_of(found).update(digest=f"sha256:{'1' * 64}"),
            "does not match its digest",
        ),
        (lambda found: array_of(found).update(of=[99], stride=2), "every 2th"),
        (lambda found: array_of(found).update(stride=3), "every 3th"),
        (lambda found: found["arrays"].append(array_of(found)), "two arrays are named"),
    ],
)
def test_a_hostile_document_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    directory = written(tmp_path / "r", [("output", "x", numbers(1.0, 2.0))])
    changed(directory, change)
    with pytest.raises(DualError, match=words):
        whole(directory)


def whole(directory: Path) -> None:
    """Read a record with all of its arrays."""
    found = store.read(directory)
    for row in found.document.arrays:
        found.value(row)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[" * 100_000, b'{"schema": "goldnode.dual-record/1"}', b"\xff"]
)
def test_unreadable_record_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(DualError, match="no record that this goldnode reads"):
        store.read(tmp_path)


def test_links_and_special_files_are_not_followed(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", [("output", "x", numbers(1.0))])
    array = directory / "arrays/00000.npy"
    target = array.rename(tmp_path / "elsewhere.npy")
    array.symlink_to(target)
    found = store.read(directory)
    with pytest.raises(DualError, match="a link or a special file"):
        found.value(found.document.arrays[0])
    array.unlink()
    os.mkfifo(array)
    with pytest.raises(DualError, match="a link or a special file"):
        found.value(found.document.arrays[0])
    array.unlink()
    with pytest.raises(DualError, match="cannot be read"):
        found.value(found.document.arrays[0])


def archive(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            out.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../record.json", tarfile.REGTYPE),
        ("/record.json", tarfile.REGTYPE),
        ("arrays/../../x.npy", tarfile.REGTYPE),
        ("arrays/00000.npy", tarfile.SYMTYPE),
        ("arrays/00000.npy", tarfile.LNKTYPE),
        ("arrays/00000.npy", tarfile.FIFOTYPE),
        ("program", tarfile.REGTYPE),
    ],
)
def test_a_hostile_archive_writes_nothing_outside(name: str, kind: bytes, tmp_path: Path) -> None:
    path = archive(tmp_path / "r.tar", (name, kind, b""))
    with pytest.raises(DualError, match="which no record has"), store.opened(path):
        pass


def test_an_archive_with_a_file_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "r.tar", *[("record.json", tarfile.REGTYPE, b"{}")] * 2)
    with pytest.raises(DualError, match="which no record has"), store.opened(path):
        pass


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08broken"])
def test_a_file_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.tar"
    path.write_bytes(content)
    with pytest.raises(DualError), store.opened(path):
        pass


def test_a_record_is_read_from_an_archive(tmp_path: Path) -> None:
    directory = written(tmp_path / "r", [("output", "x", numbers(1.0))])
    with tarfile.open(tmp_path / "r.tar", "w") as out:
        out.add(directory, ".")
    with store.opened(tmp_path / "r.tar") as found:
        assert found.value(found.document.arrays[0]).shape == (1,)
        assert found.digest == store.read(directory).digest


def test_a_signed_record_is_verified(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    secret, public = keys
    found = recorded(tmp_path)
    with pytest.raises(DualError, match="the record is not signed"):
        store.read(found.directory, [public])
    store.sign(found, secret)
    assert store.read(found.directory, [public]).digest == found.digest
    archive = tmp_path / "record.tar"
    with tarfile.open(archive, "w") as out:
        out.add(found.directory, ".")
    with store.opened(archive, [public]) as unpacked:
        assert unpacked.digest == found.digest
    path = found.directory / store.RECORD
    path.write_bytes(path.read_bytes() + b" ")
    assert store.read(found.directory).document == found.document
    with pytest.raises(DualError, match="the record differs from what was signed"):
        store.read(found.directory, [public])
