"""Edges against planted truth: AUROC and its relatives by hand; who competes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.benchmark import choose_entries, detect
from assay.app.options import parse_options
from assay.circuits import EdgeScores
from assay.core.errors import InputError, UnknownNameError
from assay.graph import Graph, build_graph


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


def test_an_edge_that_the_graph_does_not_have_is_named(graph: Graph) -> None:
    with pytest.raises(UnknownNameError, match="a3"):
        detect(scores_of(graph, [0.0] * 8), ["input->a3.h0.q"])


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
    with pytest.raises(UnknownNameError, match="among those judged 'exact'"):
        choose_entries(["eap"], {"exact": {"steps": 3}})
    with pytest.raises(UnknownNameError, match="unknown ugs option 'temperature'"):
        choose_entries(["ugs"], {"ugs": {"temperature": 3}})
    with pytest.raises(UnknownNameError, match="unknown eap option 'temperature'"):
        choose_entries(["eap"], {"eap": {"temperature": 3}})


def test_options_are_read_as_json_or_text() -> None:
    found = parse_options(["ugs.updates=300", "ugs@warm.warm-start=eap", "x.y=true", "x.z=null"])
    assert found == {
        "ugs": {"updates": 300},
        "ugs@warm": {"warm_start": "eap"},
        "x": {"y": True, "z": None},
    }
    for text in ("ugs", "ugs=3", ".updates=3", "ugs.=3"):
        with pytest.raises(InputError, match="not of the form"):
            parse_options([text])
