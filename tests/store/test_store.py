"""The contract on both backends, and what holds of identities whatever keeps them."""

from store_contract import PROVENANCE, StoreContract

from assay.measurement import record_id


class TestStore(StoreContract):
    """On SQLite and on PostgreSQL."""


def test_machine_facts_are_no_part_of_the_identity() -> None:
    elsewhere = {**PROVENANCE, "machine": {"host": "b", "seconds": 3.5}}
    assert record_id("measurement", PROVENANCE) == record_id("measurement", elsewhere)


def test_kind_and_every_other_fact_are_part_of_the_identity() -> None:
    variants = [
        record_id("measurement", PROVENANCE),
        record_id("scores", PROVENANCE),
        record_id("measurement", {**PROVENANCE, "seed": 1}),
        record_id("measurement", {**PROVENANCE, "task": {"name": "ioi", "n": 21}}),
        record_id("measurement", {}),
    ]
    assert len(set(variants)) == len(variants)


def test_the_identity_worked_by_hand() -> None:
    # printf '{"kind":"measurement","provenance":{"seed":0}}' | sha256sum
    assert record_id("measurement", {"seed": 0, "machine": {}}) == "68a3417c3d9f6222"
