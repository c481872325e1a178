"""The contract on both backends, and what holds of identities whatever keeps them."""

import contextlib

import pytest
from store_contract import PROVENANCE, StoreContract

from assay.core.errors import InputError
from assay.core.record import record_id
from assay.store.where import parse_where


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


def test_a_long_condition_is_read_or_refused_at_once() -> None:
    long = 100_000
    for text in (
        "value = " + "1" * long + "x",
        "task = ioi" + " " * long + "x",
        "task = " + "," * long,
        "task = " + ",a" * long,
        "task = " + ",a.b" * long,
        "task = " + ';"a' * long,
        "task = and " + "a." * long,
        "a" * long,
        "a." * long,
        "payload." + '"a".' * long,
        " " * long + "task" + " " * long,
    ):
        with contextlib.suppress(InputError):
            parse_where(text)
    assert parse_where("payload.x = " + "0" * long + "7")[0].value == 7
    assert parse_where("payload.x = -0012")[0].value == -12
    with pytest.raises(InputError, match="looks like several"):
        parse_where("task = ioi" + "," * 1000 + "metric = kl")
