"""The facts inside the node program are those of `src/goldnode/facts`. `python -m tests.unit.node.ground.test_known` writes them."""

from __future__ import annotations

import json

from goldnode.classdoc import gpu_facts
from goldnode.classdoc import known as built
from goldnode.node.ground import known


def test_the_program_has_the_facts_of_today() -> None:
    assert built.MODULE.read_text(encoding="utf-8") == built.module(), (
        "run: python -m tests.unit.node.ground.test_known"
    )


def test_collected_facts_have_the_form_of_the_programs_facts() -> None:
    """`check-node` and `explain` judge by the one, the node by the other."""
    assert json.loads(json.dumps(built.collect())) == known.facts()


def test_every_model_of_the_facts_is_found_by_its_pci_id() -> None:
    from goldnode.facts import host

    facts = known.facts()
    for sku, gpu in host.gpus().items():
        for pci_id in gpu.pci_ids:
            assert sku in facts["models"][pci_id]["models"], (sku, pci_id)
            assert facts["models"][pci_id]["vendor"] == gpu.vendor


def test_of_models_that_share_an_id_only_common_facts_count() -> None:
    rows = [
        {
            "models": ["a"],
            "vendor": "nvidia",
            "architecture": "Hopper",
            "health": {"mig": True, "memory_mib": [1], "ecc": True},
        },
        {"models": ["b"], "vendor": "nvidia", "health": {"mig": False, "memory_mib": [2]}},
    ]
    assert gpu_facts.common(rows) == {
        "models": ["a", "b"],
        "vendor": "nvidia",
        "architecture": "Hopper",
        "health": {"memory_mib": [1, 2]},
    }


if __name__ == "__main__":
    built.MODULE.write_text(built.module(), encoding="utf-8")
