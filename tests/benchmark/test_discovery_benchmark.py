"""The benchmark of discovery methods: curves as measured one by one, cost, held-out examples, the order."""

import math
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.analyses.benchmark import DiscoveryBenchmark, benchmark_discovery
from assay.analyses.benchmark.contenders import measured, plain_seconds
from assay.analyses.benchmark.discovery import N_RESAMPLES, mean_kl, seen_and_unseen
from assay.analyses.benchmark.results import PAIRED
from assay.analyses.benchmark.targets import find_target
from assay.circuits import Circuit, EdgeScores, write_eap_ig
from assay.core.errors import FileFormatError, GraphMismatchError, InputError, UnknownNameError
from assay.core.random import stream
from assay.execution import CircuitRuns
from assay.graph import build_graph
from assay.metrics import faithfulness_curve
from assay.models import Model
from assay.models.planted import planted_model
from assay.pipeline.benchmark import export_submission, read_scores
from assay.tasks import ImageTask, PairTask, load_images


MERGED = Path(__file__).parents[2] / "experiments" / "discovery_benchmark" / "targets.py"
METHODS = ["random", "eap", "eap-ig-inputs"]
FRACTIONS = (0.05, 0.3, 1.0)


@pytest.fixture(scope="module")
def model() -> Model:
    return assay.load_model("mini")


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    return assay.load_task("ioi", model, n=10, seed=0)


@pytest.fixture(scope="module")
def found(model: Model, task: PairTask) -> DiscoveryBenchmark:
    return benchmark_discovery(model, task, METHODS, fractions=FRACTIONS)


def test_rows_hold_what_discover_and_faithfulness_curve_give(
    model: Model, task: PairTask, found: DiscoveryBenchmark
) -> None:
    unseen = assay.load_task("ioi", model, n=40, seed=1)
    seen = {tuple(row) for row in task.clean.tolist()}
    rows = [place for place, row in enumerate(unseen.clean.tolist()) if tuple(row) not in seen][:10]
    unseen, row = unseen.subset(rows), found.row("eap-ig-inputs")
    scores = assay.discover(model, task, "eap-ig-inputs")
    assert torch.equal(found.scores["eap-ig-inputs"].values, scores.values)
    for absolute, ranked in ((False, row.signed), (True, row.absolute)):
        curve = faithfulness_curve(scores, model, unseen, fractions=FRACTIONS, absolute=absolute)
        assert ranked.faithfulness == pytest.approx(curve.values.tolist())
        ends = [ranked.cpr.value, ranked.cmd.value, ranked.cpr.low]
        assert ends == pytest.approx([curve.cpr, curve.cmd, curve.area.interval().low])
        assert ranked.overshoot is not None
        assert ranked.overshoot.value == pytest.approx(curve.overshoot)
        assert list(ranked.kept_edges) == curve.kept_edges.tolist()
        each = [assay.measure(circuit, model, unseen, "kl").value for circuit in curve.circuits]
        assert ranked.divergence == pytest.approx(each)
        assert ranked.kl.value == pytest.approx(sum(each) / len(FRACTIONS))
    # Examples that judge are none of those seen, and a task without a grammar is cut in two.
    assert found.evaluated_on["data_hash"] == unseen.data_hash != found.discovered_on["data_hash"]
    halves = benchmark_discovery(model, replace(task, grammar=None), ["random"], fractions=FRACTIONS)
    assert (halves.discovered_on["n"], halves.evaluated_on["n"]) == (5, 5)
    same = benchmark_discovery(model, task, ["random"], fractions=FRACTIONS, evaluate="same")
    assert same.evaluated_on == same.discovered_on


def test_cost_is_in_plain_passes_of_the_same_run(found: DiscoveryBenchmark) -> None:
    gradients, random = found.row("eap-ig-inputs"), found.row("random")
    assert gradients.forward_equivalents == gradients.seconds / gradients.plain_seconds
    assert gradients.forward_equivalents > random.forward_equivalents
    assert gradients.passes["backward"] == 5
    assert found.settings["clock"] in ("processor", "wall")


def test_rows_of_a_later_run_join_those_of_the_file(found: DiscoveryBenchmark, tmp_path: Path) -> None:
    """Other methods keep their rows, and a difference lasts as long as both of its rows."""
    with_earlier = runpy.run_path(str(MERGED))["with_earlier"]
    path = found.save(tmp_path / "earlier.json")
    whole, again, otherwise = (found.to_dict() for _ in range(3))
    for later in (again, otherwise):
        later.update(rows=later["rows"][1:2], differences=[])
    assert with_earlier(again, path, METHODS) == whole
    otherwise["rows"][0]["signed"]["cpr"]["value"] += 0.5
    joined = with_earlier(otherwise, path, METHODS)
    assert joined["rows"] == [whole["rows"][0], *otherwise["rows"][1:2], whole["rows"][2]]
    (kept,) = joined["differences"]
    assert {kept["first"], kept["second"]} == {"random", "eap-ig-inputs"}


class GivenRuns(CircuitRuns):
    """Runs with given margins of three examples, of which the third repeats another."""

    def __init__(self, margins: dict[Circuit, np.ndarray]) -> None:
        self.task: Any = SimpleNamespace(n=3)
        self.counted, self.seed, self.given = np.array([True, True, False]), 0, margins

    def margins_of(self, circuit: Circuit) -> np.ndarray:
        return self.given[circuit]


def test_mean_kl_is_over_sizes_and_counted_examples() -> None:
    graph = build_graph(1, 1)
    empty, few = Circuit.empty(graph), Circuit.from_edges(graph, ["input->logits"])
    runs = GivenRuns({empty: -np.array([0.4, 0.8, 18.0]), few: -np.array([0.2, 0.4, 9.0])})
    found = mean_kl(runs, [empty, few, Circuit.full(graph)])  # the model itself has 0
    assert found.value == pytest.approx((0.6 + 1.2) / 3 / 2)
    assert found.value_on(np.array([[0, 0], [1, 1]])) == pytest.approx([0.2, 0.4])


def test_differences_are_paired_and_antisymmetric(
    model: Model, task: PairTask, found: DiscoveryBenchmark
) -> None:
    names = ("eap-ig-inputs", "random")
    for of in PAIRED:
        gap, back = found.difference(*names, of), found.difference(*names[::-1], of)
        ranking = "absolute" if of in ("cmd", "kl") else "signed"
        first, second = (getattr(getattr(found.row(name), ranking), of) for name in names)
        assert gap.value == pytest.approx(first.value - second.value)
        assert (gap.low, gap.high) == (-back.high, -back.low)
        assert gap.low <= gap.value <= gap.high
    assert found.difference("random", "nobody") is None
    # The interval of the last, from the same draws, an example at a time.
    _, unseen = seen_and_unseen(task, 0)
    runs = CircuitRuns(model, unseen, Circuit.full(model.graph)).judged_by("kl")
    mean = {}
    for name in names:
        curve = faithfulness_curve(found.scores[name], model, unseen, fractions=FRACTIONS)
        mean[name] = sum(-runs.margins_of(circuit) for circuit in curve.circuits[:-1]) / len(FRACTIONS)
    draws = stream(0, "benchmark-differences").integers(0, unseen.n, (N_RESAMPLES, unseen.n))
    gaps = [np.mean([mean[names[0]][row] - mean[names[1]][row] for row in draw]) for draw in draws]
    assert (gap.low, gap.high) == pytest.approx(np.quantile(gaps, [0.025, 0.975]))


def test_options_reach_the_method_and_the_record(model: Model, task: PairTask) -> None:
    name, options = "eap-ig-inputs@two", {"steps": 2}
    two = benchmark_discovery(model, task, [name], options={name: options}, fractions=FRACTIONS)
    row = two.rows[0]
    assert (row.passes["backward"], row.options) == (2, options)
    assert two.scores[name].provenance["steps"] == 2
    assert two.to_frame().forward_equivalents.item() == row.seconds / row.plain_seconds


def test_a_method_that_cannot_serve_has_a_row_that_says_so(model: Model, task: PairTask) -> None:
    under_kl = benchmark_discovery(model, task, ["eap", "random"], objective="kl", fractions=FRACTIONS)
    row = under_kl.row("eap")
    assert (row.signed, row.cpr, "zero gradient" in str(row.reason)) == (None, None, True)
    assert [each.name for each in under_kl.ranking()] == ["random", "eap"]


def test_imported_scores_are_rows_without_a_cost(
    model: Model, task: PairTask, found: DiscoveryBenchmark
) -> None:
    imports = {"theirs": found.scores["eap-ig-inputs"]}
    again = benchmark_discovery(model, task, ["eap-ig-inputs"], fractions=FRACTIONS, imports=imports)
    ours, theirs = again.rows
    assert (theirs.signed, theirs.absolute, theirs.method) == (ours.signed, ours.absolute, None)
    assert math.isnan(theirs.forward_equivalents)


def test_submissions_go_out_and_come_back(model: Model, found: DiscoveryBenchmark, tmp_path: Path) -> None:
    root = export_submission(tmp_path / "out", found, model)
    assert sorted(each.name for each in root.iterdir()) == sorted(METHODS)
    for place in (root / "eap", root / "eap" / "ioi_mini", root / "eap" / "ioi_mini" / "importances.json"):
        assert torch.equal(read_scores(place, model).values, found.scores["eap"].values)
    file = found.scores["eap"].save(tmp_path / "eap.safetensors")
    assert torch.equal(read_scores(file, model).values, found.scores["eap"].values)


def test_a_benchmark_survives_its_file(found: DiscoveryBenchmark, tmp_path: Path) -> None:
    loaded = DiscoveryBenchmark.load(found.save(tmp_path / "benchmark.json"))
    assert (loaded.to_dict(), loaded.rows) == (found.to_dict(), found.rows)
    assert (loaded.scores, loaded.task) == ({}, "ioi")


def test_memory_is_what_the_work_adds(model: Model) -> None:
    with measured(model) as cost:
        block = torch.ones(64 * 2**20 // 4)
        del block
    if cost["peak_memory"] is not None:  # Linux
        assert 60 * 2**20 < cost["peak_memory"] < 80 * 2**20
    with measured(model) as little:
        torch.ones(16)
    if little["peak_memory"] is not None:
        assert little["peak_memory"] < 4 * 2**20


def test_plain_passes_run_text_and_images(model: Model, task: PairTask) -> None:
    assert plain_seconds(model, task, 4) > 0
    target = find_target("colour-digits", n=4)
    assert plain_seconds(target.model, target.model.bind(target.task), 4) > 0


def test_planted_models_bring_their_examples_and_truth() -> None:
    target = find_target("planted:induction/gpt2/bare", n=6, seed=3)
    samples = [target.task, target.held_out]
    assert all(isinstance(each, PairTask) and each.n == 6 for each in samples)
    assert samples[0].data_hash != samples[1].data_hash
    assert target.truth == planted_model("induction/gpt2/bare").edges
    with pytest.raises(InputError, match="has its own examples"):
        find_target("planted:induction/gpt2/bare", "ioi")


def test_coloured_digits_are_named_as_images_are() -> None:
    names = (None, "colour-digits:0.9/both", "colour-digits:0.5/colour")
    usual, named, even = (find_target("colour-digits", name, n=6) for name in names)
    for target in (usual, named, even):
        assert isinstance(target.task, ImageTask)
        assert isinstance(target.held_out, ImageTask)
        assert target.task.data_hash != target.held_out.data_hash
        assert target.task.config["start"] + 6 == target.held_out.config["start"]
        facts = target.held_out.config["counterparts"]
    drawn = load_images("colour-digits:0.5/colour", even.model, n=6)
    assert usual.task.data_hash == named.task.data_hash != even.task.data_hash == drawn.data_hash
    assert (facts["swap"], facts["agreement"]) == ("colour", 0.5)
    for model, task, error, match in (
        ("colour-digits", "colour-digits:2", InputError, "expected a probability"),
        ("colour-digits", "colour-digits:0.5/color", UnknownNameError, "swap of coloured digits"),
        ("mini", "colour-digits", InputError, "mini is not a classifier of the 2 classes"),
    ):
        with pytest.raises(error, match=match):
            find_target(model, task, n=4)


def test_mini_does_ioi_unless_told_otherwise() -> None:
    assert find_target("mini", n=4).task.name == "ioi"
    assert find_target("mini", "greater_than", n=4).task.name == "greater-than"
    with pytest.raises(InputError, match="give one of them"):
        find_target("mini", "ioi", images="shapes:flat")


def test_contradictions_are_refused(model: Model, task: PairTask, found: DiscoveryBenchmark) -> None:
    foreign = build_graph(1, 1)
    scores = EdgeScores(foreign, torch.zeros(foreign.n_sources, foreign.n_targets))
    few = replace(task.subset([0, 1]), grammar=None)
    for of, methods, options, error, match in (
        (task, ["random"], {"evaluate": "elsewhere"}, InputError, "evaluate"),
        (task, ["eap"], {"imports": {"eap": found.scores["eap"]}}, InputError, "like a method judged"),
        (task, ["random"], {"imports": {"x": scores}}, GraphMismatchError, "imported scores 'x'"),
        (task, ["nobody"], {}, UnknownNameError, "unknown method 'nobody'"),
        (few, ["random"], {}, InputError, "too few to hold some out"),
    ):
        with pytest.raises(error, match=match):
            benchmark_discovery(model, of, methods, **options)
    with pytest.raises(InputError, match="unknown row of the benchmark 'x'"):
        found.row("x")


def test_files_that_hold_no_scores_are_refused(
    model: Model, found: DiscoveryBenchmark, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match="none.json"):
        read_scores(tmp_path / "none.json", model)
    for task in ("a", "b"):
        (tmp_path / "many" / f"{task}_mini").mkdir(parents=True)
        write_eap_ig(found.scores["eap"], tmp_path / "many" / f"{task}_mini" / "importances.json")
    with pytest.raises(FileFormatError, match="has 2 .* files; give the folder of your task and model"):
        read_scores(tmp_path / "many", model)
    (tmp_path / "x.json").write_text('{"format": "other"}')
    with pytest.raises(FileFormatError, match="DiscoveryBenchmark document cannot be read"):
        DiscoveryBenchmark.load(tmp_path / "x.json")
