"""The caches that a rollout turns cold, by the locks of its two states, and what `goldnode rollout check` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cache.rollout import cold
from goldnode.catalog.load import builtin_catalog
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.errors import LockError
from goldnode.core.site import Site
from goldnode.fleet.control.document_files import load
from goldnode.fleet.rollout.document import RolloutFile
from goldnode.lock.model import dump_lock, load_lock
from goldnode.node.cachekey.caches import CACHES

STACKS = builtin_catalog() / "stacks"


def digest(stack: str) -> str:
    return load_lock(STACKS / f"{stack}.lock.yml").digest


def written(
    place: Path, before: tuple[str, str], after: tuple[str, str], more: str = ""
) -> RolloutFile:
    file = place / "rollout.yml"
    file.write_text(
        "schema: goldnode.rollout/1\nrollout: r1\nclass: a100_sxm4_40gb\n"
        f'from: {{stack: {before[0]}, lock: "{before[1]}"}}\nto: {{stack: {after[0]}, lock: "{after[1]}"}}\n'
        "waves:\n- {name: canary, nodes: 2, soak: 4h}\n- {name: all, percent: 100%}\n"
        f"require:\n- boot: {{base_rate: 0.2%}}\n{more}"
    )
    return load(file)


def state(stack: str) -> tuple[str, str]:
    return stack, digest(stack)


ALL = dict.fromkeys(CACHES, "all")


@pytest.mark.parametrize(
    ("before", "after", "expected", "components"),
    [
        ("debian12_r470", "debian12_r535", ALL, {"driver.version"}),
        ("debian12_r535", "debian13_r550", ALL, {"driver.version"}),
        ("debian12_cpu", "debian13_cpu", {"triton": "host", "inductor": "host"}, {"host.os"}),
        ("debian12_r535", "debian12_r535", {}, set()),
    ],
)
def test_the_change_of_a_driver_turns_all_caches_cold_and_of_a_release_those_of_the_host(
    before: str, after: str, expected: dict[str, str], components: set[str], tmp_path: Path
) -> None:
    file = written(tmp_path, state(before), state(after))
    found = cold(file.document, load_catalog(), Site())
    assert found.unknown is None
    assert {row.cache: row.where for row in found.caches} == expected
    changed = {change.component for row in found.caches for change in row.changes}
    assert components <= changed <= components | {"driver.flavour"}


def test_a_replaced_lock_is_unknown_until_it_is_given(tmp_path: Path) -> None:
    lock = load_lock(STACKS / "debian12_r535.lock.yml")
    old = lock.model_copy(update={"driver_version": "535.247.01"})
    file = written(tmp_path, ("debian12_r535", old.digest), state("debian12_r535"))
    found = cold(file.document, load_catalog(), Site())
    assert (found.caches, "give the other one with --lock" in (found.unknown or "")) == ((), True)
    (tmp_path / "old.lock.yml").write_text(dump_lock(old))
    found = cold(file.document, load_catalog(), Site(), [tmp_path / "old.lock.yml"])
    assert {row.cache for row in found.caches} == set(CACHES)
    assert str(found.caches[0].changes[0]).startswith("driver.version 535.247.01 -> ")


def test_a_lock_that_is_no_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("lock: 1\n")
    file = written(tmp_path, state("debian12_r470"), state("debian12_r535"))
    with pytest.raises(LockError):
        cold(file.document, load_catalog(), Site(), [tmp_path / "x.yml"])


@pytest.mark.parametrize("stack", ["debian12_r580", "nothing"])
def test_a_state_without_a_lock_is_unknown(stack: str, tmp_path: Path) -> None:
    file = written(tmp_path, (stack, "sha256:" + "0" * 64), state("debian12_r535"))
    found = cold(file.document, load_catalog(), Site())
    assert found.caches == ()
    assert found.unknown is not None


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["rollout", "check", *words])
    return done.exit_code, done.stdout


def test_the_check_names_the_caches_and_what_warms_them(tmp_path: Path) -> None:
    file = written(tmp_path, state("debian12_r470"), state("debian12_r535"))
    code, text = run(str(file.source.file))
    assert code == 0, text
    assert "triton                 exact               all programs  driver.version 470." in text
    assert "warm-caches" in text
    assert text.endswith("it can work\n")
    content = json.loads(run(str(file.source.file), "--format", "json")[1])["caches"]
    assert content["unknown"] is None
    assert [row["cache"] for row in content["caches"]] == list(CACHES)
    file = written(
        tmp_path,
        state("debian12_r470"),
        state("debian12_r535"),
        '- command: {run: [/usr/local/sbin/warm-caches, "{wave}"]}\n',
    )
    assert "warm-caches" not in run(str(file.source.file))[1]


def test_check_reports_no_cold_cache_or_that_it_is_unknown(tmp_path: Path) -> None:
    file = written(tmp_path, state("debian12_cpu"), state("debian12_cpu"))
    assert "No cache of compiled GPU code turns cold." in run(str(file.source.file))[1]
    file = written(tmp_path, ("debian12_r535", "sha256:" + "0" * 64), state("debian12_r535"))
    assert (
        "caches that turn cold: unknown: `from`: the lock of stack debian12_r535"
        in run(str(file.source.file))[1]
    )
