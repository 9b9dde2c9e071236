"""Slots whose kernel image is signed for Secure Boot: what is written, what is left alone, and what is reported."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.node.effective.test_loader import header
from tests.unit.node.slots.programs_of_uefi import program
from tests.unit.node.slots.test_slots import (
    ENTRIES,
    IMAGE,
    NEW,
    OLD,
    Node,
    counted,
    listing,
    node,
    reported,
    stream,
    writing,
)

from goldnode.node.effective import boot_choice, loader
from goldnode.node.effective import uki as reader
from goldnode.node.ground.boot import ARMED
from goldnode.node.ground.errors import NodeError
from goldnode.node.slots import recovery
from goldnode.node.slots import trial as slot_trial
from goldnode.node.slots import unified as uki
from goldnode.node.slots import write as slotwrite
from goldnode.node.state import slots
from goldnode.node.state.domains import slots as slot_domain
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH
from goldnode.node.state.model import Action, Observed

__all__ = ["node", "writing"]

OS_RELEASE = b"ID=debian\n"


def quiet(text: str) -> None:
    """Progress is not looked at."""


def made_of(release: str, initrd: bytes, options: str) -> bytes:
    return uki.image(
        uki.UnifiedParts(program(), OS_RELEASE, release, header(release), initrd), options
    )


@pytest.fixture
def signed(node: Node) -> Node:
    """A node whose running slot has a signed kernel image."""
    made = made_of(OLD, b"initramfs of a", "root=PARTLABEL=root-a ro panic=5")
    (Path(node.root) / "efi/goldnode/a/unified.efi").write_bytes(uki.signed(made, b"by the site"))
    for path in (Path(node.root) / ENTRIES).glob("*-a*.conf"):
        path.unlink()
    about = json.loads((Path(node.root) / "efi/goldnode/a/slot.json").read_text())
    text = slots.entry_text(about, "a", "/goldnode/a/unified.efi", "", "ro panic=5")
    (Path(node.root) / ENTRIES / "goldnode-aaa-a.conf").write_text(text)
    for name in ("vmlinuz", "initrd.img"):
        (Path(node.root) / f"efi/goldnode/a/{name}").unlink()
    return node


def signatures(options: str = str(IMAGE["options"])) -> dict[str, Any]:
    """Signatures by `goldnode disks sign` for the image that the fixture `writing` sends."""
    rest = slots.without_root(options)
    digests = {
        slot: uki.digest(made_of(NEW, b"of the image", slots.slot_options(slot, rest)))
        for slot in slots.SLOTS
    }
    envelope = base64.b64encode(b"signature of the site").decode()
    return {slot: {"digest": digest, "signature": envelope} for slot, digest in digests.items()}


@pytest.fixture
def sending(writing: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node to which an image with systemd's stub is sent."""
    with slotwrite.mounted(writing, "") as root:
        for name, content in ((uki.STUB, program()), ("usr/lib/os-release", OS_RELEASE)):
            (Path(root) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(root) / name).write_bytes(content)
    return writing


def test_written_slot_starts_the_unified_image_that_was_signed(sending: Node) -> None:
    found = slotwrite.write(sending, stream({**IMAGE, "secure_boot": signatures()}), quiet)
    (entry,) = slots.of_slot(loader.entries(sending, "/efi"), "b")
    assert (found["next"], entry.unified, entry.left) == ("b", True, 3)
    file = loader.kernel_file(sending, "/efi", entry)
    assert uki.signature(Path(file).read_bytes()) == b"signature of the site"
    assert reader.section(file, ".cmdline") == b"root=PARTLABEL=root-b ro panic=5"
    assert loader.release(sending, "/efi", entry) == NEW
    assert found["slots"]["b"]["unified"] is True


def test_signature_of_other_content_gives_the_slot_no_entry(sending: Node) -> None:
    other = signatures("root=PARTLABEL=root-a ro panic=5 init=/bin/sh")
    with pytest.raises(NodeError, match="the signature for slot b is of another kernel"):
        slotwrite.write(sending, stream({**IMAGE, "secure_boot": other}), quiet)
    assert listing(sending) == {"goldnode-aaa-a.conf"}


@pytest.mark.parametrize(
    "rows", [{}, {"a": {}}, [], {slot: {"digest": "0", "signature": ""} for slot in "ab"}]
)
def test_incomplete_signatures_are_refused_before_anything_is_written(
    writing: Node, rows: object
) -> None:
    with pytest.raises(NodeError, match="secure_boot"):
        slotwrite.write(writing, stream({**IMAGE, "secure_boot": rows}), quiet)
    assert "goldnode-bbb-b+0-3.conf" in listing(writing)


def test_image_without_signatures_does_not_replace_a_signed_one(signed: Node) -> None:
    why = slotwrite.refusal(reported(signed), IMAGE, "cpu", 1 << 30)
    assert why is not None
    assert "Sign it with `goldnode disks sign`" in why
    assert slotwrite.refusal(reported(signed), {**IMAGE, "secure_boot": {}}, "cpu", 1 << 30)
    fine = {**IMAGE, "secure_boot": signatures()}
    assert slotwrite.refusal(reported(signed), fine, "cpu", 1 << 30) is None


def test_signed_image_follows_no_kernel_of_its_root(signed: Node) -> None:
    slots.proved(signed, "/efi", "a")
    assert slots.sync(signed) is None
    (Path(signed.root) / f"boot/initrd.img-{OLD}").write_text("a newer initramfs")
    assert slots.stale(signed, "/efi", "a") == f"not as in this root: /boot/initrd.img-{OLD}"
    before = listing(signed)
    with pytest.raises(NodeError, match="slot a boots a signed kernel image"):
        slots.sync(signed)
    with pytest.raises(NodeError, match="slot a boots a signed kernel image"):
        slots.sync(signed, NEW)
    with pytest.raises(NodeError, match="slot a boots a signed kernel image"):
        slots.edit_cmdline(signed, ["quiet"], [])
    assert (listing(signed), slots.name_disk(signed), recovery.write(signed)) == (
        before,
        None,
        None,
    )


def test_status_promises_no_recovery_of_a_signed_slot(signed: Node) -> None:
    assert "no key on the node signs another" in recovery.shown(signed, "/efi")


def test_next_boot_has_kernel_and_command_line_of_the_unified_image(signed: Node) -> None:
    name = Path(signed.root) / ENTRIES / "goldnode-aaa-a.conf"
    name.write_text(name.read_text().replace("panic=5", "panic=5 init=/bin/sh"))
    choice = boot_choice.boot_choice(signed, OLD)
    assert (choice["release"], choice["cmdline"]) == (OLD, "root=PARTLABEL=root-a ro panic=5")


def test_good_image_with_retries_is_no_trial_although_its_command_line_lacks_the_word(
    signed: Node,
) -> None:
    assert slots.arm(signed) is not None
    counted(signed, "goldnode-aaa-a+3.conf")
    assert ARMED not in (signed.text("/proc/cmdline") or "")
    assert slots.retried(signed)
    assert slots.tried(signed, "/efi") is None
    assert slot_trial.good(signed)[0]


def seen(unified_image: bool, secure: bool | None) -> Observed:
    found = Observed()
    found.secure_boot = secure
    row = {"unified": unified_image}
    survey = {"running": "a", "fallback": None, "slots": {"a": row, "b": row}}
    found.slots = {"marker": True, "survey": survey, "stale": None, "disk": None}
    return found


@pytest.mark.parametrize(
    ("unified_image", "secure", "outcome"),
    [
        (True, True, [MATCH]),
        (True, False, [MISMATCH]),
        (True, None, [ELSEWHERE]),
        (False, False, []),
    ],
)
def test_signed_image_expects_secure_boot(
    unified_image: bool, secure: bool | None, outcome: list[str]
) -> None:
    found = slot_domain.findings(cast("Any", {}), seen(unified_image, secure))
    assert [row.outcome for row in found if row.id == "boot.secure"] == outcome


def test_plan_refuses_what_a_signed_image_cannot_have() -> None:
    action = Action("tuning", "cmdline.slot", "kernel command line", "the next boot lacks quiet")
    (refusal,) = slot_domain.refusals(cast("Any", {}), seen(True, True), [action])
    assert refusal.message.startswith("the next boot lacks quiet, and slot a boots a signed")
    assert slot_domain.refusals(cast("Any", {}), seen(False, True), [action]) == []
