"""Methods against planted truth: AUROC and its relatives by hand, every row filled or explained."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.benchmark import choose_entries, detect, measure_truth, planted_task
from assay.circuits import EdgeScores
from assay.core.errors import InputError, UnknownNameError
from assay.graph import Graph, build_graph
from assay.models.planted import planted_model


BARE, OTHER = "induction/gpt2/bare", "greater-than/gpt2/bare"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(1, 1)


def scores_of(graph: Graph, values: list[float] | list[int]) -> EdgeScores:
    table = torch.zeros(graph.n_sources, graph.n_targets)
    table[graph.valid] = torch.tensor(values, dtype=table.dtype)
    return EdgeScores(graph, table)


def names_of(graph: Graph) -> list[str]:
    return [graph.edge_name(row, column) for row, column in graph.valid.nonzero().tolist()]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return measure_truth([BARE, OTHER], ["random", "eap", "eap-ig-inputs"], n=8)


def test_a_true_edge_between_two_others_is_scored_as_by_hand(graph: Graph) -> None:
    assert graph.n_edges == 8
    # |score|: 4 is true, 3 is not, then the tie of a true and another edge at 2; the rest is 0.
    found = detect(scores_of(graph, [-4, 3, 2, -2, 0, 0, 0, 0]), [names_of(graph)[0], names_of(graph)[2]])
    # 12 pairs: the first true edge wins 6; the second loses to 3, ties with -2, wins 4.
    assert found.auroc == pytest.approx((6 + 4 + 0.5) / 12)
    assert found.average_precision == pytest.approx((1 + 2 / 4) / 2)  # a tie shares its threshold
    assert found.recall == 0.5  # among the two best
    # Signed: -4 is below everything (0 of 6), 2 loses to 3 alone.
    assert found.auroc_signed == pytest.approx((0 + 5) / 12)
    assert found.recall_signed == 0.5


@given(values=st.lists(st.integers(-3, 3), min_size=8, max_size=8), members=st.integers(1, 254))
def test_auroc_is_the_share_of_pairs_that_are_in_order(values: list[int], members: int) -> None:
    graph = build_graph(1, 1)
    true = [bool(members >> place & 1) for place in range(8)]
    found = detect(
        scores_of(graph, values),
        [name for name, kept in zip(names_of(graph), true, strict=True) if kept],
    )
    for value, ranking in ((found.auroc, [abs(each) for each in values]), (found.auroc_signed, values)):
        inside = [each for each, kept in zip(ranking, true, strict=True) if kept]
        outside = [each for each, kept in zip(ranking, true, strict=True) if not kept]
        pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(inside, outside)]
        assert value == pytest.approx(np.mean(pairs))


def test_where_every_edge_is_true_nothing_can_be_told_apart(graph: Graph) -> None:
    found = detect(scores_of(graph, list(range(8))), names_of(graph))
    assert math.isnan(found.auroc)
    assert found.recall == 1


def test_an_edge_that_the_graph_does_not_have_is_named(graph: Graph) -> None:
    with pytest.raises(UnknownNameError, match="a3"):
        detect(scores_of(graph, [0.0] * 8), ["input->a3.h0.q"])


def test_every_combination_has_a_row_and_refusals_say_why(table: pd.DataFrame) -> None:
    assert len(table) == 2 * 3 * 2
    rows = table.set_index(["model", "method", "objective"])
    refused, served = rows.loc[BARE, "eap", "kl"], rows.loc[BARE, "eap-ig-inputs", "logit_diff"]
    assert "zero gradient" in refused.reason
    assert np.isnan([refused.auroc, refused.recall_signed, refused.seconds]).all()
    assert pd.isna(served.reason)
    assert served.seconds > 0
    assert (served.n_true, served.n_edges) == (5, 46)


def test_gradients_find_the_bare_circuits_and_chance_does_not(table: pd.DataFrame) -> None:
    found = table[table.objective == "logit_diff"].pivot(index="model", columns="method", values="auroc")
    assert (found["eap-ig-inputs"] > 0.95).all()
    assert (found["random"] < 0.9).all()


def test_results_are_the_same_in_small_batches() -> None:
    whole = measure_truth([BARE], ["eap-ig-inputs"], ["logit_diff"], n=8)
    parts = measure_truth([BARE], ["eap-ig-inputs"], ["logit_diff"], n=8, batch_size=3)
    assert whole.auroc[0] == pytest.approx(parts.auroc[0])


def test_progress_counts_every_cell() -> None:
    seen: list[tuple[str, int, int]] = []
    measure_truth([BARE], ["random"], n=2, progress=lambda *each: seen.append(each))
    assert seen == [(BARE, 0, 2), (BARE, 1, 2), ("done", 2, 2)]


def test_planted_tasks_hold_their_own_examples_under_resample_ablation() -> None:
    task = planted_task(planted_model(BARE), n=6)
    assert (task.n, task.objective, task.ablation) == (6, "logit_diff", "resample")
    assert task.data_hash != planted_task(planted_model(BARE), n=6, seed=1).data_hash


# ------------------------------------------------------------------------------------------- bad input


def test_an_unknown_planted_model_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="planted"):
        measure_truth(["inductoin/gpt2/bare"], ["random"])


def test_an_unknown_method_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownNameError, match="eap"):
        measure_truth([BARE], ["eapp"])


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="objective"):
        measure_truth([BARE], ["random"], ["logit_dif"])


@pytest.mark.parametrize("what", ["models", "objectives"])
def test_empty_lists_are_refused(what: str) -> None:
    with pytest.raises(InputError, match=f"{what} is empty"):
        measure_truth(**{"models": [BARE], "methods": ["random"], what: []})  # type: ignore[arg-type]


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(InputError, match="n is 0"):
        measure_truth([BARE], ["random"], n=0)
    with pytest.raises(InputError, match="n is 0"):
        planted_task(planted_model(BARE), n=0)


def test_competitors_are_checked_by_name_and_option() -> None:
    entries = choose_entries(["eap-ig-inputs", "eap-ig-inputs@ten"], {"eap-ig-inputs@ten": {"steps": 10}})
    assert [(entry.name, entry.key, dict(entry.options)) for entry in entries] == [
        ("eap-ig-inputs", "eap-ig-inputs", {}),
        ("eap-ig-inputs@ten", "eap-ig-inputs", {"steps": 10}),
    ]
    everyone = [entry.name for entry in choose_entries(None, {"random@two": {}})]
    assert everyone[-1] == "random@two"
    with pytest.raises(InputError, match="methods is empty"):
        choose_entries([])
    with pytest.raises(InputError, match="named twice"):
        choose_entries(["eap", "eap"])
    with pytest.raises(InputError, match="ends in @"):
        choose_entries(["eap@"])
    with pytest.raises(UnknownNameError, match="among those judged 'exact'"):
        choose_entries(["eap"], {"exact": {"steps": 3}})
    with pytest.raises(UnknownNameError, match="unknown ugs option 'temperature'"):
        choose_entries(["ugs"], {"ugs": {"temperature": 3}})
    with pytest.raises(UnknownNameError, match="unknown eap option 'temperature'"):
        choose_entries(["eap"], {"eap": {"temperature": 3}})
