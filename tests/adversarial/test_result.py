"""Statistics, certificates, worst pairs, fields and files of a result."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from single_runs import half_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from assay.analyses.worst_case import PairSample, PromptSet, WorstCase, worst_case
from assay.analyses.worst_case.rows import pieces_of, rank_pairs
from assay.circuits import Circuit
from assay.core.errors import (
    DegenerateDataWarning,
    FileFormatError,
    GraphMismatchError,
    InconsistentRunError,
    InputError,
    UnknownNameError,
)
from assay.models import Model, load_model
from assay.stats import all_pairs_order_failure, percentile_confidence
from assay.tasks import PairTask


GOLDEN = Path(__file__).parent.parent / "golden" / "adversarial"


def inputs(n: int, *, first: int = 0, **fields: list[Any]) -> PromptSet:
    """N different one-token inputs, or repeated ones where `first` says so."""
    return PromptSet(
        tokens=(torch.arange(n) + first)[:, None],
        lengths=torch.ones(n, dtype=torch.long),
        positions=torch.zeros(n, dtype=torch.long),
        fields=fields,
    )


def made_of(
    values: np.ndarray,
    *,
    clean: PromptSet | None = None,
    corrupted: PromptSet | None = None,
    empty: np.ndarray | None = None,
    **facts: Any,
) -> WorstCase:
    """A result of given divergences, without a model behind it."""
    listed, n_clean, n_corrupted = values.ndim == 1, len(values), values.shape[-1]
    sample = PairSample(
        protocol="iid" if listed else "all",
        clean=inputs(n_clean) if clean is None else clean,
        corrupted=inputs(n_corrupted, first=1000) if corrupted is None else corrupted,
        pairs=np.stack([np.arange(n_clean)] * 2, axis=1) if listed else None,
        streams={},
        task={"name": "made"},
        **facts,
    )
    circuit = {"hash": "0", "name": "circuit", "n_edges": 5, "n_graph_edges": 9}
    described = {"model": {"id": "none"}, "task": {"name": "made"}, "circuit": circuit}
    described |= {"ablation": "resample", "divergence": "kl", "unit": "nats"}
    return WorstCase(
        divergence=values,
        empty=values * 2 if empty is None else empty,
        argmax_differs=values > 1,
        sample=sample,
        facts={**described, "provenance": {"sample": sample.describe()}},
    )


@pytest.fixture(scope="module")
def circuit(tiny: Model) -> Circuit:
    return half_of(tiny)


@pytest.fixture(scope="module")
def measured(tiny: Model, circuit: Circuit, ids_task: Callable[..., PairTask]) -> WorstCase:
    """12 x 9 draws of 8 rows, so inputs repeat."""
    return worst_case(circuit, tiny, ids_task(), n_clean=12, n_corrupted=9, thresholds=(0.5, 1.0))


def test_the_golden_statistics() -> None:
    with np.load(GOLDEN / "stats_input.npz") as stored:
        values = stored["kl"]
        fields = {name: stored[name].tolist() for name in ("field1", "field2")}
    expected = json.loads((GOLDEN / "stats_expected.json").read_text())
    worst = made_of(values, clean=inputs(len(values), **fields))
    summary = worst.summary()
    percentiles = ["p25", "p50", "p75", "p95", "p99", "p99.9", "p99.99"]
    assert list(summary["absolute"]) == ["count", "mean", "std", "min", *percentiles, "max"]
    assert list(summary["z"]) == ["min", *percentiles, "max"]
    for kind, stored in (("absolute", expected["summary_abs"]), ("z", expected["summary_z"])):
        ours = {f"{key[1:]}%" if key.startswith("p") else key: value for key, value in summary[kind].items()}
        assert ours == pytest.approx(stored, rel=1e-9)
    found = made_of(values, empty=values / 2).distribution()["histogram"]
    assert (found["counts"], len(found["edges"])) == (expected["histogram_counts"], 101)
    ends = [found["edges"][0], found["edges"][-1]]
    np.testing.assert_allclose(ends, expected["histogram_edges_first_last"])
    assert rank_pairs(values, worst.sample, 10, distinct=True).place.tolist() == expected["top10_indices"]
    table = worst.by_field("field1", "field2", percentile=0.999)
    largest = worst.by_field("field1", "field2")
    for cell, stored in expected["heatmap_field1_field2"].items():
        row, column = cell.split("|")
        at = table.rows.index(row), table.columns.index(column)
        assert table.n[at] == (0 if stored is None else stored["n"])
        cells = [table.quantiles[0][at], largest.quantiles[0][at], table.mean[at]]
        values = [math.nan] * 3 if stored is None else [stored["99.9%"], stored["max"], stored["mean"]]
        assert cells == pytest.approx(values, rel=1e-9, nan_ok=True)


def test_values_that_are_all_zero_have_one_bin() -> None:
    with pytest.warns(DegenerateDataWarning, match="one vector is constant"):
        found = made_of(np.zeros(6)).distribution()
    assert found["histogram"] == {"edges": [0.0, 0.0], "counts": [6], "anchor_counts": [6]}
    assert found["anchor"]["ratio_of_means"] is found["anchor"]["spearman"] is None


def test_shares_and_the_anchor_by_hand() -> None:
    worst = made_of(np.array([[0.5, 2.0], [3.0, 0.0]]), empty=np.array([[1.0, 1.0], [4.0, 0.0]]))
    assert worst.to_dict()["summary"]["argmax_differs"] == 0.5
    anchor = worst.anchor
    assert anchor["ratio_of_means"] == pytest.approx(5.5 / 6)
    assert (anchor["share_above"], anchor["absolute"]["max"]) == (0.25, 4)
    assert anchor["spearman"] == pytest.approx(spearmanr(worst.divergence.ravel(), worst.empty.ravel())[0])
    # Row means 1.25, 1.5 and column means 1.75, 1.0: both variances over two.
    assert worst.statistics.standard_error == pytest.approx(np.sqrt(0.03125 / 2 + 0.28125 / 2))


def test_percentiles_that_the_pairs_do_not_resolve_are_left_out_and_noted() -> None:
    few = made_of(np.arange(999.0))
    assert "p99.9 and p99.99, beyond which less than one of 999" in few.warnings["few_tail_points"]
    for part in (few.summary()["absolute"], few.summary()["z"], few.anchor["absolute"]):
        assert part["p99.9"] is part["p99.99"] is None
        assert part["p99"] is not None
    more = made_of(np.arange(1000.0))
    assert "left out: p99.99," in more.warnings["few_tail_points"]
    assert more.summary()["absolute"]["p99.9"] is not None
    assert "few_tail_points" not in made_of(np.arange(10_000.0)).warnings


def test_pairs_are_certified_by_an_order_statistic_and_crossed_inputs_by_the_smaller_side() -> None:
    worst = made_of(np.arange(1.0, 1001.0))
    assert worst.certificate(0.99).order == 996
    published = worst.certificate(0.95, epsilon=0.01)
    assert (published.order, published.bound) == (960, 960.0)
    assert published.confidence == pytest.approx(percentile_confidence(1000, 0.95, 0.01))
    assert worst.maximum_exceedance() == pytest.approx(1 - 0.05 ** (1 / 1000))
    values = np.random.default_rng(0).random((400, 300))
    crossed = made_of(values)
    found = crossed.certificate(0.95)
    assert (found.method, found.n, found.rigorous) == ("ustat", 300, True)
    assert not crossed.certificate(0.95, method="published").rigorous
    short = crossed.certificate(0.999)
    assert (short.bound, short.reason, short.n_needed) == (None, "too_few", 2995)
    methods = [each["method"] for each in crossed.to_dict()["certificates"]]
    assert methods == ["ustat", "published"] * 3
    reused = made_of(values[:, :100], reuse_clean=True, paired=True)
    for refused in (lambda: reused.certificate(0.95), reused.maximum_exceedance):
        with pytest.raises(InputError, match="reuse_clean.*sample again without"):
            refused()
    document = reused.to_dict()
    assert (document["certificates"], document["maximum_exceedance"]) == ([], None)
    assert "not_certified" in [warning["name"] for warning in document["warnings"]]


def test_rows_taken_in_order_count_half() -> None:
    values = np.random.default_rng(0).random((300, 300))
    worst = made_of(values, paired=True, own_rows=True)
    found = worst.certificate(0.95)
    assert (found.n, found.n_values, found.method) == (150, 300 * 299, "ustat")
    off = np.sort(values[~np.eye(300, dtype=bool)])
    assert found.bound == off[found.order - 1]
    # The rank lies on or above the one among m^2 whose failure is stated.
    lower = int(found.order / found.n_values * 150**2)
    assert found.failure <= 0.05
    assert all_pairs_order_failure(150, 150, 0.95, lower) == pytest.approx(found.failure, rel=0.02)
    fixed = worst.certificate(0.95, epsilon=0.03)
    assert fixed.order == int(np.ceil(0.98 * 300 * 299))
    assert worst.certificate(0.99).n_needed == 598
    # Both bounds are of one population: pairs of a row with its own counterpart are in neither.
    np.fill_diagonal(values, 99.0)
    published = made_of(values, paired=True, own_rows=True).certificate(0.5, method="published")
    assert (published.n_values, published.rigorous) == (300 * 299, False)
    assert published.bound == off[published.order - 1]
    with pytest.raises(UnknownNameError, match="certificate method"):
        worst.certificate(0.95, method="order-statistic")


def test_the_bound_from_rows_holds_as_often_as_it_says() -> None:
    """Corrupted inputs made from the clean ones; the divergence depends on both sides' shared cause."""
    rng = np.random.default_rng(5)
    p, trials, bounds = 0.8, 400, []
    # x = u, x~ = v, K = u + v with u, v uniform and independent: F(t) = 1 - (2 - t)^2 / 2 for t >= 1.
    true = 2 - np.sqrt(2 * (1 - p))
    for _ in range(trials):
        cause = rng.random(40)
        values = cause[:, None] + cause[None, :]  # both inputs of a row come from the same cause
        bound = made_of(values, paired=True, own_rows=True).certificate(p, delta=0.9).bound
        bounds.append(bound)
    assert np.mean(np.array(bounds) >= true) >= 0.9 - 3 * np.sqrt(0.09 / trials)
    assert np.mean(bounds) < 2 - np.sqrt(2 * 0.05)  # below percentile 95: no bound that simply is too large


def test_worst_pairs_are_distinct_with_their_multiplicity(measured: WorstCase) -> None:
    found = measured.worst(10)
    clean, corrupted = measured.sample.clean.distinct, measured.sample.corrupted.distinct
    assert [pair.rank for pair in found] == list(range(1, 11))
    keys = [(clean.inverse[pair.clean_index], corrupted.inverse[pair.corrupted_index]) for pair in found]
    assert len(set(keys)) == 10
    assert found[0].divergence == measured.divergence.max()
    for pair, (row, column) in zip(found, keys, strict=True):
        assert pair.multiplicity == (clean.inverse == row).sum() * (corrupted.inverse == column).sum()
        assert pair.divergence == measured.divergence[pair.clean_index, pair.corrupted_index]
        assert pair.empty == measured.empty[pair.clean_index, pair.corrupted_index]
    repeated = measured.worst(10, distinct=False)
    assert {pair.multiplicity for pair in repeated} == {1}
    flat = np.sort(measured.divergence.ravel())[::-1][:10]
    assert [pair.divergence for pair in repeated] == flat.tolist()
    every = measured.worst(len(clean.first_index) * len(corrupted.first_index))
    assert sum(pair.multiplicity for pair in every) == measured.divergence.size


def test_ties_come_by_clean_then_corrupted_index() -> None:
    values = np.array([[1.0, 3.0, 3.0], [3.0, 0.0, 5.0]])
    found = rank_pairs(values, made_of(values).sample, 4, distinct=True)
    assert np.stack(found[:2], 1).tolist() == [[1, 2], [0, 1], [0, 2], [1, 0]]
    same = np.full(3, 2.0)
    shuffled = replace(made_of(same).sample, pairs=np.array([[2, 0], [0, 1], [0, 0]]))
    found = rank_pairs(same, shuffled, 3, distinct=True)
    assert np.stack(found[:2], 1).tolist() == [[0, 0], [0, 1], [2, 0]]


def test_the_rows_show_what_each_run_says(measured: WorstCase) -> None:
    pair, centred = measured.worst(1)[0], measured.worst(1, logits="centered")[0]
    logits = measured.rerun.logits(np.array([pair.clean_index]), np.array([pair.corrupted_index]))
    for tokens, run in zip((pair.model, pair.circuit, pair.corrupted_model), logits, strict=True):
        top = run[0].topk(3)
        assert [token.id for token in tokens] == top.indices.tolist()
        assert [token.logit for token in tokens] == pytest.approx(top.values.tolist())
    mean = float(logits.circuit.double().mean())
    assert centred.circuit[0].logit == pytest.approx(pair.circuit[0].logit - mean)
    assert centred.divergence == pair.divergence
    sides = pair.clean_tokens, pair.corrupted_tokens
    assert "".join(pair.clean_tokens) == pair.clean
    assert pair.clean == " ".join(map(str, measured.sample.clean.tokens[pair.clean_index].tolist()))
    assert pair.differs == tuple(a != b for a, b in zip(*sides, strict=True))
    answer = int(measured.sample.clean.answers[pair.clean_index, 0])
    assert pair.answer.id == answer
    assert pair.answer.rank["model"] == 1 + int((logits.model[0] > logits.model[0, answer]).sum())
    assert pair.answer.logit["circuit"] == pytest.approx(float(logits.circuit[0, answer]))


def test_a_second_run_that_differs_is_an_error(measured: WorstCase) -> None:
    wrong = measured.divergence.copy()
    wrong[3, 4] = wrong.max() + 1
    with pytest.raises(InconsistentRunError, match=r"inconsistent_rerun: pair .clean 3, corrupted 4. has"):
        replace(measured, divergence=wrong).worst(1, distinct=False)
    silent = replace(measured.rerun, divergence=lambda model, circuit: torch.full((len(model),), math.nan))
    with pytest.raises(InconsistentRunError, match="when run again"):
        replace(measured, rerun=silent).worst(1)


def test_worst_inputs_by_hand() -> None:
    clean = replace(inputs(3), tokens=torch.tensor([[5], [6], [5]]))
    found = made_of(np.array([[1.0, 9.0], [4.0, 4.0], [1.0, 9.0]]), clean=clean).worst_inputs(5)
    rows = [(each.index, each.text, each.mean, each.max) for each in found.clean]
    assert rows == [(0, "5", 5.0, 9.0), (1, "6", 4.0, 4.0)]
    assert [(each.index, each.mean) for each in found.corrupted] == [(1, 22 / 3), (0, 2.0)]
    listed = made_of(np.array([1.0, 5.0, 3.0]), clean=clean).worst_inputs(1)
    assert (listed.clean[0].index, listed.clean[0].mean, listed.corrupted[0].index) == (1, 5.0, 1)


def crossed() -> WorstCase:
    """40 x 60 divergences in which the clean value "bad" is worse."""
    rng = np.random.default_rng(2)
    values = rng.random((40, 60))
    labels = ["bad" if i % 4 == 0 else "good" for i in range(40)]
    values[::4] += rng.random((10, 60)) < 0.1
    return made_of(
        values,
        clean=inputs(40, thing=labels, alias=[label.upper() for label in labels], one=["same"] * 40),
        corrupted=inputs(60, first=1000, thing=[i % 3 for i in range(60)], mixed=[None, "x", 3] * 20),
        heatmap_fields=(("thing", "corrupted.thing"), ("thing", "absent"), ("one", "thing")),
    )


def test_grouping_by_a_field_of_either_side() -> None:
    worst = crossed()
    table = worst.by_field("thing")
    assert table.rows == ("bad", "good")
    assert table.n.ravel().tolist() == [600, 1800]
    rows = np.arange(40) % 4 == 0
    assert table.mean[0, 0] == pytest.approx(worst.divergence[rows].mean())
    assert table.quantiles_at[-1] == 1.0
    assert table.quantiles[-1, 0, 0] == worst.divergence[rows].max()
    other = worst.by_field("thing", "corrupted.thing", percentile=0.5)
    cell = worst.divergence[np.ix_(rows, np.arange(60) % 3 == 2)]
    assert other.columns == (0, 1, 2)
    assert other.quantiles[0, 0, 2] == pytest.approx(np.median(cell))
    assert set(worst.by_field("corrupted.mixed").rows) == {None, "x", 3}
    with pytest.raises(UnknownNameError, match=r"unknown field 'thingg'; did you mean 'thing'"):
        worst.by_field("thingg")
    with pytest.raises(InputError, match="percentile is"):
        worst.by_field("thing", percentile=1.5)


def test_the_worse_value_is_found_by_the_tool() -> None:
    worst = crossed()
    tests = worst.field_tests
    significant = [each for each in tests if each["significant"]]
    assert [(each["field"], each["value"]) for each in significant] == [("thing", "bad")]
    assert (significant[0] is tests[0], tests[0]["aliases"]) == (True, ["alias"])
    # `corrupted.mixed` groups the inputs as `corrupted.thing` does, and `one` does not group them.
    assert {each["field"] for each in tests} == {"thing", "corrupted.thing"}
    assert [each["p_value"] for each in tests] == sorted(each["p_value"] for each in tests)
    assert tests[0]["exceed"] > tests[0]["pooled"]
    (table,) = worst.heatmaps  # of the fields that the task names and the sample has
    assert (table["rows_field"], table["columns_field"]) == ("thing", "corrupted.thing")
    assert (np.shape(table["p99.9"]), table["n"].sum()) == ((2, 3), 2400)
    assert (table["max"] >= table["p99.99"]).all()


def test_a_saved_result_comes_back_whole_for_its_model_and_circuit(
    measured: WorstCase, tiny: Model, circuit: Circuit, tiny_module: Callable[..., nn.Module], tmp_path: Path
) -> None:
    path = measured.save(tmp_path / "worst.safetensors")
    loaded = WorstCase.load(path)
    assert (loaded.divergence == measured.divergence).all()
    assert (loaded.argmax_differs == measured.argmax_differs).all()
    assert (loaded.id, loaded.to_dict()) == (measured.id, measured.to_dict())
    assert loaded.by_field("kind").to_dict() == measured.by_field("kind").to_dict()
    with pytest.raises(InputError, match="loaded without its model; use WorstCase.load"):
        loaded.worst(1)
    whole = WorstCase.load(path, model=tiny, circuit=circuit)
    assert whole.worst(2) == measured.worst(2)
    again = WorstCase.load(whole.save(tmp_path / "again.safetensors"))
    assert again.to_dict() == measured.to_dict()
    with pytest.raises(GraphMismatchError, match="the result belongs to the circuit"):
        WorstCase.load(path, model=tiny, circuit=Circuit.full(tiny.graph))
    with pytest.raises(GraphMismatchError, match="the result belongs to the model"):
        WorstCase.load(path, model=load_model(tiny_module("gpt2", seed=5)), circuit=circuit)
    with pytest.raises(InputError, match="both model and circuit"):
        WorstCase.load(path, model=tiny)


def test_tampered_files_are_refused(measured: WorstCase, tmp_path: Path) -> None:
    path = measured.save(tmp_path / "worst.safetensors")
    content = path.read_bytes()
    for changed, match in (
        (content[:-1] + bytes([content[-1] ^ 1]), "hash mismatch"),
        (content[:-30], "not a readable safetensors file"),
    ):
        path.write_bytes(changed)
        with pytest.raises(FileFormatError, match=match):
            WorstCase.load(path)
    with pytest.raises(FileFormatError, match="does not exist; give a worst_case file"):
        WorstCase.load(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match=r"NAME.safetensors; got 'worst.pt'"):
        measured.save(tmp_path / "worst.pt")


def word_level() -> PreTrainedTokenizerFast:
    """Words alone; the decoder joins them with spaces."""
    words = ["[UNK]", "When", "Mary", "met", "John"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="[UNK]")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Words that begin with the mark of a space, as in Llama and Mistral; bytes where no word fits."""
    pieces = ["<unk>", "\u2581When", "\u2581Mary", "\u2581met", "\u2581John", "\u2581", "<0xC3>", "<0xA9>"]
    made = Tokenizer(
        models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0, byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<unk>")


def test_the_pieces_of_a_prompt_are_its_text() -> None:
    for tokenizer in (word_level(), sentence_piece()):
        ids = tokenizer("When Mary met John")["input_ids"]
        assert pieces_of(ids, tokenizer) == ("When", " Mary", " met", " John")
    # A character of several tokens comes with its last.
    assert pieces_of([1, 5, 6, 7], sentence_piece()) == ("When", " ", "", "\u00e9")
    assert pieces_of([7, 8], None) == ("7", " 8")
    assert pieces_of([], sentence_piece()) == ()
