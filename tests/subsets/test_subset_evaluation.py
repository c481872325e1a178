"""Other models on a subset: predictions of a line, readings, gates, the card and exports, worked by hand."""

import dataclasses
import json
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import assay
from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.card import card_text, one_line
from assay.analyses.subsets.evaluation import evaluation_document
from assay.analyses.subsets.evaluation_page import evaluation_page
from assay.analyses.subsets.export import croissant, export_subset
from assay.analyses.subsets.line import EPS, fitted_line, probit
from assay.core.errors import InputError
from assay.pipeline.subset_evaluation import evaluate_models, read_gates
from assay.report.save import render
from assay.stats import bounded_mean


PHI = NormalDist().cdf
NAMES = [f"photo-{place}" for place in range(12)]


def share(*quantiles: float) -> np.ndarray:
    return np.array([PHI(each) for each in quantiles])


@pytest.fixture(scope="module")
def subset() -> assay.Subset:
    """Six of twelve examples, chosen by 40 models: the better a model, the fewer of them it gets right."""
    rng = np.random.default_rng(3)
    skill = rng.uniform(0.55, 0.95, 40)
    chance = np.where(np.arange(12) < 6, 1.45 - skill[:, None], skill[:, None])
    data = CorrectnessData.of(
        rng.uniform(size=(40, 12)) < chance, skill, groups=range(40), example_ids=NAMES,
        labels=np.arange(12) % 2, label_names=["cat", "dog"],
    )  # fmt: skip
    found = assay.oodselect(data, size=4)
    found.judge(n_permutations=1, folds=3)
    return found


def others(subset: assay.Subset, right: int, elsewhere: int = 8) -> CorrectnessData:
    """One model that gets the first `right` of the subset right and the first `elsewhere` of the others."""
    chosen = list(subset.example_ids)
    rest = [name for name in NAMES if name not in chosen]
    answers = dict(zip(chosen, np.arange(4) < right, strict=True))
    answers |= dict(zip(rest, np.arange(8) < elsewhere, strict=True))
    row = np.array([[answers[name] for name in NAMES]])
    return CorrectnessData.of(row, [0.9], example_ids=NAMES, model_ids=["new"], at_least=1)


# ---------------------------------------------------------------------------------------------- the line


def test_a_prediction_worked_by_hand() -> None:
    """The points x = -1, 0, 0, 1 and y = -1, 1, -1, 1: slope 1, residuals 0, 1, -1, 0."""
    line = fitted_line(share(-1, 0, 0, 1), share(-1, 1, -1, 1), np.arange(4), eps=EPS, id_eps=EPS)
    assert (line.slope, line.intercept, line.centre, line.variance) == pytest.approx(
        (1, 0, 0, 0.5), abs=1e-12
    )
    value, low, high = line.predict(share(2), level=0.95)
    # s^2 = 2 / (4 - 2) = 1; leverage 1/4 + 2^2 / 2 = 2.25; t with 2 degrees of freedom: 4.3027.
    assert value[0] == pytest.approx(2)
    assert high[0] - value[0] == pytest.approx(4.302653 * np.sqrt(1 + 2.25), rel=1e-6)
    assert low[0] == pytest.approx(2 * value[0] - high[0])


def test_with_a_unit_per_model_it_is_the_interval_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=15), rng.normal(size=15)
    line = fitted_line(share(*x), share(*y), np.arange(15), eps=EPS, id_eps=EPS)
    fit = stats.linregress(x, y)
    sse = np.sum((y - fit.intercept - fit.slope * x) ** 2)
    at = 0.7
    se = np.sqrt(sse / 13 * (1 + 1 / 15 + (at - x.mean()) ** 2 / np.sum((x - x.mean()) ** 2)))
    value, low, high = line.predict(share(at), level=0.9)[:, 0]
    assert value == pytest.approx(fit.intercept + fit.slope * at)
    assert (low, high) == pytest.approx(
        (value - stats.t.ppf(0.95, 13) * se, value + stats.t.ppf(0.95, 13) * se)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("within", "least", "most"), [(0.0, 0.93, 0.97), (1.0, 0.94, 1.0)])
def test_new_models_lie_in_the_interval_as_often_as_it_says(within: float, least: float, most: float) -> None:
    """Eight training runs of four checkpoints; `within` is the share of the variance inside a run."""
    rng, hits, n = np.random.default_rng(1), 0, 2000
    units = np.repeat(np.arange(8), 4)
    for _ in range(n):
        x = rng.normal(size=9)[:, None] + np.zeros((9, 4))
        noise = np.sqrt(1 - within) * rng.normal(size=(9, 1)) + np.sqrt(within) * rng.normal(size=(9, 4))
        y = 0.5 * x + 0.2 * noise
        line = fitted_line(share(*x[:8].ravel()), share(*y[:8].ravel()), units, eps=EPS, id_eps=EPS)
        _, low, high = line.predict(share(x[8, 0]))[:, 0]
        hits += low <= y[8, 0] <= high
    assert least < hits / n < most


def test_below_three_units_and_without_spread_nothing_is_expected() -> None:
    two = fitted_line(share(-1, 0, 1), share(0, 1, 0), np.array([0, 0, 1]), eps=EPS, id_eps=EPS)
    value, low, high = two.predict(share(0))
    assert np.isfinite(value).all()
    assert np.isnan([low, high]).all()
    same = fitted_line(share(0, 0, 0), share(0, 1, 0), np.arange(3), eps=EPS, id_eps=EPS)
    assert np.isnan(same.predict(share(0))).all()


# -------------------------------------------------------------------------------------------- the readings


def test_readings_of_one_model_worked_by_hand(subset: assay.Subset) -> None:
    document = evaluation_document([subset], others(subset, right=1, elsewhere=5))
    (model,) = document["models"]
    assert model["accuracy"]["value"] == 1 / 4
    assert model["accuracy_all"]["value"] == 6 / 12
    # Clopper and Pearson of 1 of 4: quantiles of beta distributions.
    assert model["accuracy"]["low"] == pytest.approx(stats.beta.ppf(0.025, 1, 4))
    assert model["accuracy"]["high"] == pytest.approx(stats.beta.ppf(0.975, 2, 3))
    line = subset.lines["selected"]
    expected = line.intercept + line.slope * probit(0.9)
    assert model["expected"]["value"] == pytest.approx(PHI(expected))
    assert model["residual"]["value"] == pytest.approx(NormalDist().inv_cdf(0.25) - expected)
    band = line.predict(np.array([0.9]))[:, 0]
    inside = bool(band[1] <= NormalDist().inv_cdf(0.25) <= band[2])
    assert (model["residual"]["low"] <= 0 <= model["residual"]["high"]) is inside
    assert line.r == pytest.approx(subset.correlation["test"].r)
    assert json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("right", [0, 4])
def test_none_and_all_right_have_an_interval(subset: assay.Subset, right: int) -> None:
    (model,) = evaluation_document([subset], others(subset, right=right))["models"]
    ends = model["accuracy"]
    assert ends["value"] == right / 4
    other = 0.025 ** (1 / 4)  # all four right with probability 2.5 %
    assert (ends["low"], ends["high"]) == pytest.approx((0, 1 - other) if right == 0 else (other, 1))


def test_means_of_scores_have_an_interval_for_scores(subset: assay.Subset) -> None:
    scores = np.linspace(0.5, 0.9, 12, dtype=np.float32)[None]
    data = CorrectnessData.of(scores, [0.8], example_ids=NAMES, scores=True, at_least=1)
    for cells in ({"kind": "scores", "ends": [0, 1]}, None):  # None: an older file; arrays: no ends are known
        of_scores = dataclasses.replace(subset, cells=cells)
        (model,) = evaluation_document([of_scores], data)["models"]
    for name, values in (
        ("accuracy_all", scores[0]),
        ("accuracy", scores[0, [NAMES.index(each) for each in subset.example_ids]]),
    ):
        interval = bounded_mean(values.astype(np.float64), level=0.95)
        assert model[name]["value"] == pytest.approx(values.mean())
        assert (model[name]["low"], model[name]["high"]) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("kind", "ends", "given", "message"),
    [
        ("scores", [5, 0], None, r"scores of 5 \(worse\) to 0 \(better\), but .*0 and 1.*--scores 5,0"),
        ("scores", [5, 0], (6, 0), r"scores of 6 .*--scores 5,0"),
        ("bits", None, (0, 1), r"right and wrong answers \(0 and 1\), but .* scores.*--cells correct"),
    ],
)
def test_answers_on_another_scale_are_refused(
    subset: assay.Subset, tmp_path: Path, kind: str, ends: list[int] | None,
    given: tuple[int, int] | None, message: str,
) -> None:  # fmt: skip
    own = dataclasses.replace(subset, cells={"kind": kind, "ends": ends})
    own.save(tmp_path / "subset.json")
    frame = pd.DataFrame([[0, 1] * 6], columns=NAMES, index=["new"])
    options = {} if given is None else {"scores": given}
    data = CorrectnessData.from_frame(frame, id_accuracy=[1.0], at_least=1, **options)
    with pytest.raises(InputError, match=message):
        evaluation_document([assay.load_subset(tmp_path / "subset.json")], data)
    if ends:
        same = CorrectnessData.from_frame(frame, id_accuracy=[1.0], at_least=1, scores=tuple(ends))
        assert evaluation_document([own], same)["n_matched"] == 4


def test_the_zero_shot_check_is_the_correlation_of_both_accuracies(subset: assay.Subset) -> None:
    rng = np.random.default_rng(5)
    answers = rng.uniform(size=(9, 12)) < 0.6
    data = CorrectnessData.of(answers, rng.uniform(0.6, 0.9, 9), example_ids=NAMES)
    (row,) = evaluation_document([subset], data)["sizes"]
    chosen = [NAMES.index(name) for name in subset.example_ids]
    r = np.corrcoef(probit(answers.mean(axis=1)), probit(answers[:, chosen].mean(axis=1)))[0, 1]
    assert row["with_full"]["r"] == pytest.approx(r)
    assert row["n_matched"] == 4
    few = evaluate_models([subset, subset], data.take_models(np.arange(5)))
    shown = " ".join(evaluation_page(few).caveats)
    assert "5 independent units: with fewer than 8 the interval is unreliable" in shown
    assert "The weakest R with accuracy on all examples, of 2 sizes: " in shown


def test_part_of_a_subset_is_told_and_less_than_half_is_refused(subset: assay.Subset) -> None:
    data = others(subset, right=2)
    kept = [place for place, name in enumerate(NAMES) if name != subset.example_ids[3]]
    document = evaluation_document([subset], data.take_examples(np.array(kept)))
    assert document["n_matched"] == 3
    assert document["models"][0]["accuracy"]["value"] == 2 / 3
    assert document["models"][0]["expected_all"] is None
    assert "Only 3 of the 4 examples of the subset are among the 11 given" in document["caveats"][0]
    renamed = [f"new {name}" if name == subset.example_ids[3] else name for name in NAMES]
    document = evaluation_document([subset], dataclasses.replace(data, example_ids=np.array(renamed)))
    assert document["models"][0]["expected_all"] is None
    assert "12 examples, as many as the subset was selected from, but not the same" in document["caveats"][1]
    kept = [place for place, name in enumerate(NAMES) if name not in subset.example_ids[1:]]
    with pytest.raises(InputError, match="3 of the 4 examples .* missing from the 9 given examples: 1 match"):
        evaluation_document([subset], data.take_examples(np.array(kept)))


def test_models_that_the_selection_has_seen_are_named(subset: assay.Subset, tmp_path: Path) -> None:
    """From the file alone, by name: in another table, in another order, beside new models."""
    data, split = subset.require_data("the test"), subset.split
    named = dataclasses.replace(data, model_ids=tuple(f"net-{place}" for place in range(40)))
    found = assay.load_subset(assay.oodselect(named, size=4).save(tmp_path / "named.json"))
    places = np.array([split.test[0], split.train[0], split.validation[0], split.train[1]])
    some = named.take_models(places)
    names = list(some.model_ids)
    some = dataclasses.replace(some, model_ids=(*names[:3], "another"))
    document = evaluate_models([found], some)
    assert [each["part"] for each in document["models"]] == ["test", "train", "validation", "new"]
    selecting, testing = document["caveats"][-2:]
    assert selecting.startswith(f"2 of the 4 models selected the subset ({names[1]} and {names[2]}).")
    assert testing.startswith(f"1 of the 4 models tested the selection ({names[0]}).")
    (table, *_) = evaluation_page(document).sections[0].blocks[1:]
    assert [row[1] for row in table.rows] == ["test", "train", "validation", "new"]
    assert "The 12 examples given include all 4 examples of the subset." in evaluation_page(document).lede
    alone = evaluation_document([found], named.take_models(split.train[:1]))["caveats"]
    assert f"The model selected the subset (net-{split.train[0]})." in " ".join(alone)
    everyone = evaluation_document([found], named)["caveats"]
    assert any(
        each.startswith(f"{len(split.train) + len(split.validation)} of the 40 models selected")
        and "and 27 more" in each
        for each in everyone
    )
    strangers = dataclasses.replace(some, model_ids=("a", "b", "c", "d"))
    document = evaluation_document([found], strangers)
    assert {each["part"] for each in document["models"]} == {"new"}
    assert not any("select" in each for each in document["caveats"])


def test_models_without_names_are_recognised_in_the_same_table_alone(subset: assay.Subset) -> None:
    """Rows that are called model_0, model_1, ... are other models in every table."""
    data = subset.require_data("the test")
    assert subset.model_ids is None
    assert "model_ids" not in subset.to_dict()
    document = evaluation_document([subset], data)
    assert [each["part"] for each in document["models"]].count("test") == len(subset.split.test)
    assert any("selected the subset (model_" in each for each in document["caveats"])
    some = dataclasses.replace(data.take_models(np.arange(3)), model_ids=("a", "b", "c"))
    document = evaluation_document([subset], some)
    assert {each["part"] for each in document["models"]} == {None}
    unnamed = "The subset does not name the models that it was selected with."
    assert any(each.startswith(f"{unnamed} Should some of those") for each in document["caveats"])
    numbered = dataclasses.replace(data, model_ids=tuple(map(str, range(40))))  # the index of a frame
    assert numbered.own_model_ids is None


@pytest.mark.parametrize("names", [[f"net-{place}" for place in range(40)], [str(k) for k in range(5, 45)]])
def test_rows_without_names_are_not_matched_with_models_that_have_names(
    subset: assay.Subset, names: list[str]
) -> None:
    """`model_0` is no name, and `5` is not the run of that name; whether they are new is not known."""
    data = subset.require_data("the test")
    found = assay.oodselect(dataclasses.replace(data, model_ids=tuple(names)), size=4)
    few = data.take_models(np.arange(10))
    for numbers in ([f"model_{k}" for k in range(10)], [str(k) for k in range(10)]):
        document = evaluation_document([found], dataclasses.replace(few, model_ids=tuple(numbers)))
        assert {each["part"] for each in document["models"]} == {None}
        assert any(
            each.startswith("The data given do not name their models. Should some of those selected with")
            for each in document["caveats"]
        )
    numbered = dataclasses.replace(few, model_ids=tuple(map(str, range(10))))
    neither = " ".join(evaluation_document([subset], numbered)["caveats"])
    assert "selected with. The data given do not name their models. Should" in neither


def test_names_of_models_are_not_part_of_the_identity(subset: assay.Subset) -> None:
    data = subset.require_data("the test")
    named = dataclasses.replace(data, model_ids=tuple(f"net-{place}" for place in range(40)))
    found = assay.oodselect(named, size=4)
    assert found.to_dict()["model_ids"] == list(named.model_ids)
    assert found.id == subset.id


def test_a_file_keeps_the_lines_and_an_older_one_expects_nothing(
    subset: assay.Subset, tmp_path: Path
) -> None:
    again = assay.load_subset(subset.save(tmp_path / "subset.json"))
    data = others(subset, right=1)
    assert evaluation_document([again], data) == evaluation_document([subset], data)
    held = json.loads((tmp_path / "subset.json").read_text())
    (tmp_path / "subset.json").write_text(json.dumps({k: v for k, v in held.items() if k != "lines"}))
    older = evaluation_document([assay.load_subset(tmp_path / "subset.json")], data)
    assert older["models"][0]["expected"] is None
    assert any("holds no lines" in each for each in older["caveats"])


# ------------------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize(
    ("gate", "status"),
    [
        ("accuracy >= 0.6", "inconclusive"),  # 1 of 4: [0.006, 0.806]
        ("accuracy >= 0.9", "fail"),
        ("accuracy > 0.001", "pass"),
        ("accuracy <= 0.9", "pass"),
        ("accuracy.value >= 0.25", "pass"),
        ("accuracy.value > 0.25", "fail"),
        ("accuracy.low>=0.25", "fail"),
        ("accuracy.high < 0.9", "pass"),
        ("accuracy_all < 0.05", "fail"),
    ],
)
def test_gates_worked_by_hand(subset: assay.Subset, gate: str, status: str) -> None:
    document = evaluate_models([subset], others(subset, right=1, elsewhere=5), read_gates([gate]))
    assert document["status"] == status
    assert document["models"][0]["gates"] == {gate: status}


def test_the_worst_of_several_gates_counts(subset: assay.Subset) -> None:
    gates = read_gates(["accuracy <= 0.9", "accuracy >= 0.6", "accuracy >= 0.9"])
    document = evaluate_models([subset], others(subset, right=1), gates)
    assert list(document["models"][0]["gates"].values()) == ["pass", "inconclusive", "fail"]
    assert document["status"] == "fail"
    assert evaluate_models([subset], others(subset, right=1))["status"] == ""


def test_a_gate_on_what_no_model_has_is_refused(subset: assay.Subset) -> None:
    gates = read_gates(["residual_all >= -0.5"])
    some = others(subset, right=2)
    evaluate_models([subset], some, gates)
    chosen = [place for place, name in enumerate(NAMES) if name in subset.example_ids]
    with pytest.raises(InputError, match="'residual_all >= -0.5' cannot .* not the 12 that the subset was"):
        evaluate_models([subset], some.take_examples(np.array(chosen)), gates)
    with pytest.raises(InputError, match="the file of the subset holds no lines; select again"):
        evaluate_models([dataclasses.replace(subset, lines=None)], some, read_gates(["residual < 1"]))
    short = {"selected": dataclasses.replace(subset.lines["selected"], n_units=2)}
    with pytest.raises(InputError, match="fewer than three units"):
        evaluate_models([dataclasses.replace(subset, lines=short)], some, read_gates(["residual < 1"]))
    evaluate_models([dataclasses.replace(subset, lines=short)], some, read_gates(["residual.value < 1"]))


def test_models_without_accuracies_in_distribution_have_the_rest(subset: assay.Subset) -> None:
    """Zero-shot models: the same accuracies, intervals and R with accuracy on all examples as with them."""
    answers = np.random.default_rng(6).uniform(size=(9, 12)) < 0.6
    frame = pd.DataFrame(answers.astype(int), index=[f"clip-{n}" for n in range(9)], columns=NAMES)
    rated = CorrectnessData.from_frame(frame, id_accuracy=np.linspace(0.5, 0.9, 9), at_least=1)
    unrated = CorrectnessData.from_frame(frame, at_least=1, unrated=True)
    gates = read_gates(["accuracy.value >= 0", "accuracy_all >= 0.9"])
    known, found = (evaluate_models([subset], each, gates) for each in (rated, unrated))
    absent = dict.fromkeys(("id_accuracy", "expected", "residual", "expected_all", "residual_all"))
    assert found["models"] == [model | absent for model in known["models"]]
    assert (found["status"], known["status"]) == ("fail", "fail")
    (row,), (other,) = found["sizes"], known["sizes"]
    assert row["with_full"] == other["with_full"]
    assert row["r"] is row["line"]["slope"] is None
    assert "no accuracies in distribution: no accuracy is expected of them" in " ".join(found["caveats"])
    page = render(found)
    assert "n/a" in page
    assert "accuracy on all examples" in page
    with pytest.raises(InputError, match="the models have no accuracies in distribution; give them"):
        evaluate_models([subset], unrated, read_gates(["residual.value >= 0"]))
    assert subset.evaluate(frame).with_full.r == pytest.approx(row["with_full"]["r"])
    with pytest.raises(InputError, match="no accuracies in distribution, which a selection needs"):
        assay.oodselect(unrated, size=4)
    with pytest.raises(InputError, match="id_accuracy of model 'clip-0' is nan"):
        CorrectnessData.from_frame(frame, id_accuracy=[np.nan, *[0.5] * 8], unrated=True)


@pytest.mark.parametrize(
    "text",
    ["accuracy >= 60", "acuracy >= 0.6", "accuracy = 0.6", "accuracy >= high", "accuracy => 0.6", "1", "",
     "accuracy.mean >= 0.5", "accuracy >= true", "accuracy >= null", "accuracy >= 0.5 and accuracy < 0.9"],
)  # fmt: skip
def test_a_gate_that_cannot_be_read_is_answered_with_how_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match="write NAME OP NUMBER, e.g. 'accuracy >= 0.6'"):
        read_gates([text])


# ---------------------------------------------------------------------------------------- card and exports


def test_the_card_says_what_it_is_and_whether_it_is_real(subset: assay.Subset, tmp_path: Path) -> None:
    document = subset.to_document(n_halves=0)
    text = export_subset(tmp_path / "card.md", document, "CC-BY-4.0").read_text()
    for line in (
        "| examples | 4 of the 12 examples |",
        "| licence of the data | CC-BY-4.0 |",
        "| selected with | 40 models |",
        "| training runs | 40 |",
        "| verdict | inconclusive |",
    ):
        assert line in text
    assert "| label | cat |" in text
    card = json.loads(export_subset(tmp_path / "card.json", document).read_text())
    assert card["licence"] is None
    source = {"kind": "table", "columns": {"model": "m"}, "orientation": "long", "domain": "night"}
    told = card | {"data": card["data"] | {"source": source}}
    assert f"| data | table, night, hash {card['data']['hash']} |" in card_text(told)
    assert card["verdict"]["status"] == "inconclusive"
    assert card["prevalence"]["n_pool"] == 12
    judged = subset.verdict
    assert len(card["reasons"]) == len(judged.reasons) > 0
    assert len(card["notes"]) == len(judged.notes)
    why, notes = text.index("## Why it is inconclusive"), text.index("## Read before use")
    assert all(why < text.index(f"- {one_line(each, 1000)}") < notes for each in card["reasons"])
    assert all(notes < text.index(f"- {one_line(each, 1000)}") for each in card["notes"])
    told = croissant(document)["description"]
    assert all(each in told for each in (*card["reasons"], *card["notes"]))


def test_tables_hold_the_examples_in_order(subset: assay.Subset, tmp_path: Path) -> None:
    import pandas as pd

    document = subset.to_document(n_halves=0)
    assert export_subset(tmp_path / "s.txt", document).read_text().split() == list(subset.example_ids)
    for suffix, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        table = read(export_subset(tmp_path / f"s{suffix}", document))
        assert table.columns.tolist() == ["rank", "example_id", "index", "score"]
        assert table["rank"].tolist() == [1, 2, 3, 4]
        assert table["example_id"].tolist() == list(subset.example_ids)
        assert table["index"].tolist() == subset.indices.tolist()
        assert table["score"].tolist() == subset.scores.tolist()
    with pytest.raises(InputError, match=r"\.xlsx.*exported as \.txt"):
        export_subset(tmp_path / "s.xlsx", document)


def test_croissant_has_the_terms_that_version_1_0_requires(subset: assay.Subset) -> None:
    """https://docs.mlcommons.org/croissant/docs/croissant-spec.html: what a data set and its records need."""
    found = json.loads(json.dumps(croissant(subset.to_document(n_halves=0), "CC-BY-4.0"), allow_nan=False))
    assert found["@type"] == "sc:Dataset"
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert found["license"] == "CC-BY-4.0"
    assert {"@context", "name", "description", "version", "recordSet"} <= found.keys()
    prefixes = {"sc", "cr", "dct"}
    assert prefixes <= found["@context"].keys()
    (records,) = found["recordSet"]
    types = {each["@id"]: each["dataType"] for each in records["field"]}
    assert set(types.values()) <= {"sc:Integer", "sc:Text", "sc:Float"}
    assert records["key"]["@id"] in types
    kinds = {"sc:Integer": int, "sc:Text": str, "sc:Float": float}
    assert len(records["data"]) == 4
    for row in records["data"]:
        assert row.keys() == types.keys()
        assert all(type(row[name]) is kinds[kind] for name, kind in types.items())
