"""Two circuits and two runs: sets of edges, differences against a plain bootstrap, what changed."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from synthetic_store import Filled, fill, measurement, put_audit, put_measurement

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.graph import build_graph
from assay.report import compare_document
from assay.report.comparison import EDGES, PER_SET
from assay.report.comparison_page import caveats, verdict
from assay.report.save import render
from assay.store import Store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Filled]:
    store = Store(tmp_path_factory.mktemp("store"))
    return store, fill(store)


def test_every_edge_is_in_one_of_three_sets(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    found = compare_document(store, *ids.audits)["circuits"]
    masks = [store.get(key).arrays["mask"] for key in ids.audits]
    assert found["counts"] == {
        "both": int((masks[0] & masks[1]).sum()),
        "a": int((masks[0] & ~masks[1]).sum()),
        "b": int((masks[1] & ~masks[0]).sum()),
    }
    assert found["jaccard"] == found["counts"]["both"] / int((masks[0] | masks[1]).sum())
    for way in ("out", "into"):
        for name, count in found["counts"].items():
            assert sum(row[f"{way}_{name}"] for row in found["layers"]) == count
    listed = {name: sum(edge["in"] == name for edge in found["edges"]) for name in ("both", "a", "b")}
    assert listed == found["counts"]  # few enough to be listed all


def test_swapping_the_sides_swaps_the_sets_and_the_signs(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    one, other = compare_document(store, *ids.audits), compare_document(store, *reversed(ids.audits))
    assert one["circuits"]["counts"]["a"] == other["circuits"]["counts"]["b"]
    first = {row["name"]: row["difference"] for row in one["measurements"]}
    second = {row["name"]: row["difference"] for row in other["measurements"]}
    for name, difference in first.items():
        if difference is not None:
            assert second[name] == pytest.approx(-difference)


def test_the_same_examples_are_paired_and_agree_with_scipy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [measurement(seed=seed, shift=0.03 * seed) for seed in (0, 1)]
    document = compare_document(store, *(put_measurement(store, each) for each in made))
    (row,) = document["measurements"]
    assert (row["how"], row["n_pairs"], row["finding"]) == ("paired", 40, "higher")
    rows = made[1].components["row"] - made[0].components["row"]
    assert row["difference"] == pytest.approx(rows.mean())
    expected = scipy_stats.bootstrap((rows,), np.mean, n_resamples=20_000, rng=0).confidence_interval
    # Both are bootstraps of 2,000 and 20,000 resamples: their ends agree to a tenth of the width.
    assert (row["low"], row["high"]) == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))
    spread = math.hypot(*(each.standard_error for each in made))
    assert row["high"] - row["low"] < 1.96 * spread  # pairing takes the examples' own spread out


def test_other_examples_are_not_paired_and_agree_with_welch(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [measurement(task="ioi", n=30), measurement(task="sva", n=50, seed=1)]
    document = compare_document(store, *(put_measurement(store, each) for each in made))
    (row,) = document["measurements"]
    expected = scipy_stats.ttest_ind(
        made[1].components["row"], made[0].components["row"], equal_var=False
    ).confidence_interval()
    assert (row["how"], row["method"]) == ("unpaired", "welch")
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_a_missing_array_falls_back_to_welch(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ids = [put_measurement(store, measurement(seed=seed)) for seed in (0, 1)]
    for path in (tmp_path / "arrays").rglob("*.safetensors"):
        path.unlink()
    (row,) = compare_document(store, *ids)["measurements"]
    assert row["how"] == "unpaired"


def test_a_result_against_itself_is_equal(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    document = compare_document(store, ids.audits[0], ids.audits[0])
    assert document["changes"] == []
    assert document["circuits"]["counts"]["a"] == document["circuits"]["counts"]["b"] == 0
    assert {row["finding"] for row in document["measurements"] if row["how"] == "paired"} == {"equal"}
    assert "A and B are the same result." in caveats(document)


def test_changes_name_the_entries_of_the_records_that_differ(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    changes = compare_document(store, *ids.audits)["changes"]
    assert [(row["key"], row["a"], row["b"]) for row in changes] == [("seed", "0", "1")]


def test_circuits_of_files_and_of_the_store_meet(filled: tuple[Store, Filled], tmp_path: Path) -> None:
    store, ids = filled
    graph = build_graph(2, 3)
    (tmp_path / "first").mkdir()
    place = Circuit.full(graph).save(tmp_path / "first" / "full.safetensors")
    document = compare_document(store, ids.circuit, str(place))
    assert document["circuits"]["counts"] == {"both": graph.n_edges, "a": 0, "b": 0}
    assert document["circuits"]["scored"] == [False, False]
    assert "first/full.safetensors" in render(document)
    with pytest.raises(UnknownNameError):
        compare_document(store, ids.circuit, str(place), files=False)


def test_circuits_of_two_graphs_share_no_edges_and_the_page_says_so(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    document = compare_document(store, ids.scores, ids.audits[0])
    assert document["circuits"]["mismatch"]
    text = render(document)
    assert "belong to different graphs" in text
    assert "neither a graph nor a measurement" in verdict(document)


def test_two_sweeps_meet_by_the_names_of_their_jobs(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    document = compare_document(store, ids.sweep, ids.sweep)
    assert document["n_measurements"] == 4
    assert {row["finding"] for row in document["measurements"]} == {"equal"}


def test_what_cannot_be_compared_is_refused(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    with pytest.raises(InputError, match="is a worst_case; circuits and runs are compared from"):
        compare_document(store, ids.worst_case, ids.audits[0])
    with pytest.raises(InputError, match="no circuits and no measurement in common"):
        compare_document(store, ids.measurement, ids.scores)


def test_large_circuits_are_cut_and_each_set_is_seen(tmp_path: Path) -> None:
    """GPT-2's graph: 32,491 edges, of which a page draws 600."""
    store = Store(tmp_path / "store")
    graph = build_graph(12, 12)
    order = torch.randperm(int(graph.valid.sum()), generator=torch.Generator().manual_seed(0))
    rows, columns = graph.valid.nonzero().T
    places = []
    for name, (start, stop) in {"a": (0, 25_000), "b": (20_000, 32_000)}.items():
        mask = torch.zeros_like(graph.valid)
        mask[rows[order[start:stop]], columns[order[start:stop]]] = True
        places.append(str(Circuit(graph=graph, mask=mask).save(tmp_path / f"{name}.safetensors")))
    document = compare_document(store, *places)
    found = document["circuits"]
    assert found["counts"] == {"both": 5_000, "a": 20_000, "b": 7_000}
    assert len(found["edges"]) == EDGES
    assert all(sum(edge["in"] == name for edge in found["edges"]) >= PER_SET for name in ("both", "a", "b"))
    text = render(document)
    assert len(text.encode()) < 3_000_000
    assert "600 of the 32,000 edges of either" in text


def test_an_audit_on_other_prompts_is_cautioned_about(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pair = [
        put_audit(store, model=model, task=task, seed=0) for model, task in (("mini", "ioi"), ("gpt2", "sva"))
    ]
    notes = caveats(compare_document(store, *pair))
    assert any("different tasks" in each for each in notes)
    assert any("different models" in each for each in notes)
