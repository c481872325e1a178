"""The truth table: AUROC and its relatives by hand, every cell filled or explained, a round trip."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import assay
from assay.analyses.benchmark import TruthTable, choose_entries, detect, measure_truth, planted_task
from assay.analyses.benchmark.truth import TruthCell
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.graph import Graph, build_graph
from assay.models.planted import planted_model


BARE, VIT = "induction/gpt2/bare", "patch-marker/vit/bare"


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
def table() -> TruthTable:
    return measure_truth([BARE, VIT], ["random", "eap", "eap-ig-inputs"], n=8)


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


def test_every_combination_has_a_cell_and_refusals_say_why(table: TruthTable) -> None:
    assert len(table.cells) == 2 * 3 * 2
    refused = table.cell(BARE, "eap", "kl")
    assert refused.found is None
    assert refused.reason is not None
    assert "zero gradient" in refused.reason
    assert math.isnan(refused.auroc)
    served = table.cell(BARE, "eap-ig-inputs", "logit_diff")
    assert served.reason is None
    assert served.seconds > 0
    assert (served.n_true, served.n_edges) == (5, 46)


def test_gradients_find_the_bare_circuits_and_chance_does_not(table: TruthTable) -> None:
    for name in (BARE, VIT):
        assert table.cell(name, "eap-ig-inputs", "logit_diff").auroc > 0.95
        assert table.cell(name, "random", "logit_diff").auroc < 0.9


def test_the_summary_counts_models_that_are_not_served_as_missed(table: TruthTable) -> None:
    rows = {(row.method, row.objective): row for row in table.summary().methods}
    assert rows["eap", "kl"].served == 0
    assert rows["eap", "kl"].good == 0
    assert math.isnan(rows["eap", "kl"].median)
    gradients = rows["eap-ig-inputs", "logit_diff"]
    assert (gradients.served, gradients.of, gradients.good) == (2, 2, 1.0)
    best = {each.model: each for each in table.summary().models}
    assert best[BARE].auroc == max(cell.auroc for cell in table.cells if cell.model == BARE and cell.found)
    assert table.summary().lowest_best == min(each.auroc for each in best.values())


def test_the_best_methods_of_a_model_are_all_named() -> None:
    perfect = detect(scores_of(build_graph(1, 1), [1, 0, 0, 0, 0, 0, 0, 0]), [names_of(build_graph(1, 1))[0]])
    facts = {"model": "m", "objective": "kl", "n_edges": 8, "n_true": 1, "found": perfect}
    both = TruthTable(cells=tuple(TruthCell(method=name, **facts) for name in ("a", "b")))
    assert both.summary().models[0].best == ("a (kl)", "b (kl)")


def test_a_table_survives_its_file(table: TruthTable, tmp_path: Path) -> None:
    loaded = TruthTable.load(table.save(tmp_path / "truth.json"))
    assert loaded.to_dict() == table.to_dict()
    assert loaded.cell(BARE, "eap", "kl").reason == table.cell(BARE, "eap", "kl").reason
    frame = loaded.to_frame()
    assert len(frame) == len(table.cells)
    assert frame["auroc"].isna().sum() == 2  # eap under kl, on both models


def test_merged_tables_take_the_newer_cell_and_keep_the_order(table: TruthTable) -> None:
    first = TruthTable(cells=tuple(cell for cell in table.cells if cell.method == "eap-ig-inputs"))
    second = TruthTable(cells=tuple(cell for cell in table.cells if cell.method != "eap-ig-inputs"))
    merged = first.merged(second)
    assert {(each.model, each.method, each.objective) for each in merged.cells} == {
        (each.model, each.method, each.objective) for each in table.cells
    }
    assert merged.models == table.models
    newer = TruthTable(cells=(TruthCell(**{**vars(first.cells[0]), "seconds": 7.0}),))
    cell = first.merged(newer).cell(BARE, "eap-ig-inputs", "logit_diff")
    assert cell.seconds == 7.0


@pytest.mark.parametrize(("name", "value"), [("n", 16), ("seed", 1), ("ablation", "mean")])
def test_tables_of_other_settings_are_not_merged(table: TruthTable, name: str, value: int | str) -> None:
    other = TruthTable(cells=table.cells, settings={**table.settings, name: value})
    message = f"tables of {name} {table.settings[name]} and of {name} {value} cannot be merged"
    with pytest.raises(InputError, match=message):
        table.merged(other)
    with pytest.raises(InputError, match="n 8, seed 0, ablation resample and of n None"):
        table.merged(TruthTable(cells=table.cells))


def test_merged_tables_keep_the_options_of_the_methods_that_have_cells_left(table: TruthTable) -> None:
    def with_options(method: str, options: dict[str, dict[str, int]]) -> TruthTable:
        cells = tuple(cell for cell in table.cells if cell.method == method)
        return TruthTable(cells=cells, settings={**table.settings, "options": options})

    ten, two = {"steps": 10}, {"steps": 2}
    gradients, usual = (
        with_options("eap-ig-inputs", {"eap-ig-inputs": ten}),
        with_options("eap-ig-inputs", {}),
    )
    other = with_options("random", {"random": two})
    assert gradients.merged(other).settings["options"] == {"eap-ig-inputs": ten, "random": two}
    assert gradients.merged(usual).settings["options"] == {}
    assert usual.merged(gradients).settings["options"] == {"eap-ig-inputs": ten}


def test_shares_are_of_the_models_that_a_method_was_measured_on(table: TruthTable) -> None:
    kept = [cell for cell in table.cells if (cell.method, cell.model) != ("eap-ig-inputs", VIT)]
    rows = {(row.method, row.objective): row for row in TruthTable(cells=tuple(kept)).summary().methods}
    gradients = rows["eap-ig-inputs", "logit_diff"]
    assert (gradients.served, gradients.of, gradients.good) == (1, 1, 1.0)
    assert rows["eap", "kl"].of == 2  # refused, which is a measurement


def test_results_are_the_same_in_small_batches() -> None:
    whole = measure_truth([BARE], ["eap-ig-inputs"], ["logit_diff"], n=8)
    parts = measure_truth([BARE], ["eap-ig-inputs"], ["logit_diff"], n=8, batch_size=3)
    assert whole.cells[0].found is not None
    assert parts.cells[0].found is not None
    assert whole.cells[0].found.auroc == pytest.approx(parts.cells[0].found.auroc)


def test_progress_counts_every_cell() -> None:
    seen: list[tuple[str, int, int]] = []
    measure_truth([BARE], ["random"], n=2, progress=lambda *each: seen.append(each))
    assert seen == [(BARE, 0, 2), (BARE, 1, 2), ("done", 2, 2)]


def test_planted_tasks_hold_their_own_examples_under_resample_ablation() -> None:
    text, images = planted_task(planted_model(BARE), n=6), planted_task(planted_model(VIT), n=6)
    for task in (text, images):
        assert (task.n, task.objective, task.ablation) == (6, "logit_diff", "resample")
    assert isinstance(images, assay.ImageTask)
    assert images.foils is not None
    assert bool((images.foils != images.labels[:, None]).all())  # type: ignore[index]  # labelled
    again = planted_task(planted_model(BARE), n=6, seed=1)
    assert isinstance(text, assay.PairTask)
    assert isinstance(again, assay.PairTask)
    assert text.data_hash != again.data_hash


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


def test_a_cell_that_is_not_there_is_named(table: TruthTable) -> None:
    with pytest.raises(InputError, match="no cell of 'x'"):
        table.cell("x", "eap", "kl")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(FileFormatError, match="cannot read"):
        TruthTable.load(path)
    for content in ("{", "[]", '{"format": "other"}'):
        path.write_text(content)
        with pytest.raises(FileFormatError, match="not a table of truth"):
            TruthTable.load(path)


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
    with pytest.raises(UnknownNameError, match="'eap' has no options, but 'temperature' was given"):
        choose_entries(["eap"], {"eap": {"temperature": 3}})
