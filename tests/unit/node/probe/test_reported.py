"""Outputs of nvidia-smi as they are attached to reports: masked, of laptops, of guests, of cards with two GPUs.

Each was judged wrongly once, with a file of a public repository. These XMLs are written here, and describe no real card.
"""

from __future__ import annotations

from typing import Any

from tests.unit.node.verdict.test_undeclared import judged, wrong

from goldnode.node.probe import smi
from goldnode.node.verdict.report import verdict_table

LINK = (
    "<pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>"
    "<link_widths><max_link_width>16x</max_link_width><current_link_width>{}x</current_link_width></link_widths>"
)


def card(
    place: str, /, *, width: int = 16, ids: str = "FFFE10DE", board: str = "000110DE", **values: str
) -> str:
    """Return one <gpu>: its values by the element that holds them, with "." in place of "/"."""
    pci = f"<pci_bus_id>00000000:{place}:00.0</pci_bus_id><pci_device_id>{ids}</pci_device_id>"
    pci += f"<pci_sub_system_id>{board}</pci_sub_system_id>"
    rows: dict[str, Any] = {
        "product_name": "NVIDIA Example",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        **values,
    }
    inner = ""
    for path, value in rows.items():
        parts = path.split("__")
        inner += (
            "".join(f"<{part}>" for part in parts)
            + value
            + "".join(f"</{part}>" for part in parts[::-1])
        )
    link = f"<pci_gpu_link_info>{LINK.format(width)}</pci_gpu_link_info>"
    return f'<gpu id="00000000:{place}:00.0">{inner}<pci>{pci}{link}</pci></gpu>'


def verdict_of(*cards: str) -> dict[str, Any]:
    count = f"<attached_gpus>{len(cards)}</attached_gpus>"
    text = f"<nvidia_smi_log><driver_version>580.178.04</driver_version>{count}{''.join(cards)}</nvidia_smi_log>"
    return judged(smi.parse(text.encode(), "x"))


def remedy(verdict: dict[str, Any], name: str) -> str:
    return next(
        str(row["remedy"]) for row in verdict["findings"] if row["id"] == name and row["remedy"]
    )


def test_masked_pci_ids_are_an_unknown_model() -> None:
    verdict = verdict_of(card("01", ids="", product_name="NVIDIA GeForce RTX 3090"))
    assert verdict["detected"]["gpus"] == ["1 x NVIDIA GeForce RTX 3090"]
    assert any("NVIDIA GeForce RTX 3090: not in the facts" in text for text in verdict["advice"])
    nameless = verdict_of(card("01", ids="", product_name=""))
    assert nameless["detected"]["gpus"] == ["1 x a GPU without model and PCI id"]


def test_a_display_takes_some_memory_of_a_gpu_without_ecc() -> None:
    sizes = ("8112 MiB", "8114 MiB")
    bare = [card(f"0{n}", fb_memory_usage__total=size) for n, size in enumerate(sizes, 1)]
    assert wrong(verdict_of(*bare)) == set()
    ecc: dict[str, Any] = {
        "ecc_errors__volatile__double_bit__total": "0",
        "ecc_mode__current_ecc": "Enabled",
    }
    strict = [card(f"0{n}", fb_memory_usage__total=size, **ecc) for n, size in enumerate(sizes, 1)]
    assert wrong(verdict_of(*strict)) == {"gpu.memory"}
    halved = [
        card(f"0{n}", fb_memory_usage__total=size)
        for n, size in enumerate(("4096 MiB", sizes[1]), 1)
    ]
    assert wrong(verdict_of(*halved)) == {"gpu.memory"}


def test_boards_of_one_model_have_clocks_of_their_own() -> None:
    clocks = ("1999 MHz", "1936 MHz")
    other = [
        card(f"0{n}", board=f"000{n}10DE", max_clocks__sm_clock=mhz)
        for n, mhz in enumerate(clocks, 1)
    ]
    assert wrong(verdict_of(*other)) == set()
    same = [card(f"0{n}", max_clocks__sm_clock=mhz) for n, mhz in enumerate(clocks, 1)]
    assert wrong(verdict_of(*same)) == {"gpu.max_clocks"}


def test_two_gpus_of_a_card_have_a_vbios_each() -> None:
    def cards(*versions: str) -> list[str]:
        return [
            card(f"0{n}", serial=str(n // 2), vbios_version=version)
            for n, version in enumerate(versions)
        ]

    assert wrong(verdict_of(*cards("80.05", "80.06", "80.05", "80.06"))) == set()
    assert wrong(verdict_of(*cards("80.05", "80.05", "80.05", "80.06"))) == {"gpu.vbios"}


def test_lanes_of_a_laptop_are_listed_and_not_judged() -> None:
    laptop = verdict_of(card("01", width=8, product_name="NVIDIA GeForce RTX 3060 Laptop GPU"))
    assert wrong(laptop) == set()
    assert {"item": "pcie.width", "found": "x8, and the GPU can have x16"} in laptop["undeclared"]
    desktop = verdict_of(card("01", width=8))
    assert wrong(desktop) == {"pcie.width"}
    assert "Reseat" in remedy(desktop, "pcie.width")


def test_the_lanes_of_a_guest_are_a_matter_of_its_host() -> None:
    mode: dict[str, Any] = {"gpu_virtualization_mode__virtualization_mode": "Pass-Through"}
    for ids in ("FFFE10DE", "1EB810DE"):  # an unknown model, and one with a link in the facts (T4)
        guest = verdict_of(card("01", width=8, ids=ids, **mode))
        assert guest["detected"]["platform"] == ["virtual machine (GPU passed through)"]
        # By design, as far as anybody in the guest can know: a note, and no fault.
        assert "pcie.width" not in wrong(guest)
        assert any(row["item"] == "pcie.width" for row in guest["undeclared"])
        odd = verdict_of(card("01", ids=ids, **mode), card("02", width=8, ids=ids, **mode))
        assert wrong(odd) >= {"pcie.width"}
        assert "the provider" in remedy(odd, "pcie.width")
    none: dict[str, Any] = dict.fromkeys(mode, "None")
    assert verdict_of(card("01", **none))["detected"]["platform"] == []


def test_mig_hides_the_errors_since_the_driver_was_loaded() -> None:
    rows: dict[str, Any] = {
        "mig_mode__current_mig": "Enabled",
        "ecc_mode__current_ecc": "Enabled",
        "ecc_errors__volatile__sram_uncorrectable": "N/A",
    }
    verdict = verdict_of(card("01", ids="20B010DE", **rows))
    found = next(row for row in verdict["findings"] if row["id"] == "gpu.ecc.uncorrected")
    assert (found["outcome"], found["got"]) == ("not_exposed", "hidden while MIG is on")
    assert "when MIG is off" in found["remedy"]


def test_a_setting_is_named_as_judged_or_as_not_judged() -> None:
    text = verdict_table(verdict_of(card("01")))
    assert "not declared, not judged: driver (580.178.04), gpu.count (1)\n" in text
    only = "policy.persistence_mode (on), policy.compute_mode (default)"
    assert f"not declared, judged by range and by equal GPUs only: {only}\n" in text
