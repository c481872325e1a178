"""An audit: its document, its identity, the store it is found in again, what it runs by default."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Outcome, invoke
from small_runs import write_prompts
from torch import nn

import assay.models
from assay.analyses.worst_case import worst_case
from assay.circuits import Circuit, EdgeScores, load_circuit, load_node_scores, load_scores
from assay.core.errors import AssayWarning, DegenerateDataWarning, InputError
from assay.execution import ABLATIONS, CircuitRuns, run_circuit
from assay.graph import build_graph
from assay.metrics import measure
from assay.models import Model, load_model
from assay.models.loading import MINI
from assay.pipeline.audit import audit
from assay.pipeline.audit_page import verdict
from assay.pipeline.audit_result import Audit
from assay.pipeline.prompts import draw_prompts
from assay.pipeline.sizing import COARSE, Kept, RankedItems, Targets, find_circuit
from assay.pipeline.stage import Memo, Stage, measure_stored
from assay.store import Store
from assay.tasks import PairTask


def silent(stage: str, done: int, total: int) -> None:
    del stage, done, total


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("this was computed before")


@pytest.fixture(scope="module")
def tiny(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("gpt2"))


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def task(tiny: Model) -> PairTask:
    """Random prompts whose right answer is what the model itself prefers, so that there is a margin."""
    generator = torch.Generator().manual_seed(3)
    clean, corrupted = torch.randint(1, 61, (2, 24, 6), generator=generator)
    with torch.no_grad():
        logits = tiny.read(tiny.forward(clean), torch.full((24,), 5))
    best, least = logits.argmax(1, keepdim=True), logits.argmin(1, keepdim=True)
    return PairTask(clean=clean, corrupted=corrupted, answers=best, wrong=least)


@pytest.fixture(scope="module")
def found(tiny: Model, task: PairTask) -> Audit:
    """In full, discovered and measured on the same prompts."""
    return audit(tiny, task, n_random=2, full=True)


@pytest.fixture(scope="module")
def usual(mini: Model) -> Audit:
    return audit(mini, "ioi", n=24)


# ---- the document -------------------------------------------------------------------------------


def test_the_document_agrees_with_what_was_found(found: Audit, tiny: Model, task: PairTask) -> None:
    document, circuit = found.to_dict(), found.circuit
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["circuit"]["n_edges"] == circuit.n_edges <= document["circuit"]["size"]
    assert document["circuit"]["id"] == circuit.hash
    edges = {f"{edge['source']}->{edge['target']}" for edge in document["edges"] if edge["kept"]}
    assert edges == set(circuit.edges())
    for edge in document["edges"][:5]:
        row, column = tiny.graph.source_index(edge["source"]), tiny.graph.target_index(edge["target"])
        assert edge["score"] == pytest.approx(float(found.scores.values[row, column]))
    head = float(found.scores.values[tiny.graph.head_source(1, 2)].sum())
    assert document["per_head"][1][2] == pytest.approx(head, rel=1e-5)
    # Discovery and measurement share their prompts, so the reported number is that of the search.
    runs = CircuitRuns(tiny, task, Circuit.full(tiny.graph))
    kept = Kept.by(runs, circuit)
    assert 0.9 <= kept.low <= kept.faithfulness <= kept.high <= 1.1
    assert kept.distribution >= 0.9
    for share, whole in ((0.0, Circuit.empty(tiny.graph)), (1.0, Circuit.full(tiny.graph))):
        ends = Kept.by(runs, whole)
        assert (ends.faithfulness, ends.distribution) == pytest.approx((share, share), abs=1e-5)
    reported = document["circuit"]
    assert reported["discovery_faithfulness"] == pytest.approx(kept.faithfulness)
    assert reported["discovery_distribution"] == pytest.approx(kept.distribution)
    assert reported["faithfulness"]["value"] == pytest.approx(kept.faithfulness)
    assert document["distribution"]["value"] == pytest.approx(kept.distribution)
    full, cut = (runs.logits_of(each).double().log_softmax(1) for each in (Circuit.full(tiny.graph), circuit))
    empty = runs.logits_of(Circuit.empty(tiny.graph)).double().log_softmax(1)
    lost, most = ((full.exp() * (full - each)).sum() for each in (cut, empty))
    assert kept.distribution == pytest.approx(float(1 - lost / most), abs=1e-5)
    random = {each["name"]: each for each in found.measurements}["faithfulness-norm"]["baseline"]["random"]
    assert len(random["values"]) == 2


def test_an_audit_on_the_same_prompts_says_nothing_with_confidence(found: Audit) -> None:
    document = found.to_dict()
    assert document["discovery"]["held_out"] is False
    for record in document["measurements"]:
        assert "same_prompts" in record["warnings"]
        assert {record["status"], record["verdict"]["status"]} <= {"inconclusive", "none"}
    verdicts = [gate["verdict"] for gate in document["calibration"]["gates"]]
    assert {each["status"] for each in verdicts} == {"inconclusive"}
    assert any(each["published"] != "inconclusive" for each in verdicts)


def test_a_default_audit_reads_everything_from_few_runs(usual: Audit) -> None:
    document = usual.to_dict()
    named = {each["name"]: each for each in usual.measurements}
    assert list(named) == ["faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk"]
    assert all("same_prompts" not in each["warnings"] for each in named.values())
    assert document["task"]["data_hash"] != document["discovery"]["data_hash"]
    gates = {gate["code"]: gate["verdict"] for gate in document["calibration"]["gates"]}
    assert set(gates) == {"C11", "C13", "C23", "M93"}
    assert named["faithfulness"]["value"] in map(pytest.approx, gates["C11"]["values"].values())
    n = document["task"]["n"]
    assert (document["worst_case"]["protocol"], document["worst_case"]["n_pairs"]) == ("file", n)
    assert len(named["faithfulness-norm"]["baseline"]["random"]["values"]) == usual.curve.n_random == 5
    assert usual.left_out.keys() == {"full"}
    assert usual.pages is usual.pages


def test_numbers_of_an_audit_are_those_of_the_functions(mini: Model, usual: Audit) -> None:
    document = usual.to_dict()
    measured = draw_prompts(mini, "ioi", n=24, seed=0).measured
    worst = worst_case(usual.circuit, mini, measured, protocol="file").to_dict()
    largest = document["worst_case"]["summary"]["absolute"]["max"]
    assert largest == pytest.approx(worst["summary"]["absolute"]["max"], rel=1e-2)
    assert document["worst_case"]["worst"][0]["clean_index"] == worst["worst"][0]["clean_index"]
    others = {each["provenance"]["ablation"]: each for each in document["other_ablations"]}
    assert list(others) == ["zero", "mean"]
    for key, each in others.items():
        alone = measure(usual.circuit, mini, measured, "faithfulness-norm", ablation=key)
        assert each["value"] == pytest.approx(alone.value, rel=1e-5)
    # A large circuit says what its strongest edges keep alone.
    excerpt = document["excerpt"]
    names = {f"{edge['source']}->{edge['target']}" for edge in document["edges"] if "shown" in edge}
    shown = Circuit.from_edges(mini.graph, sorted(names))
    assert shown.n_edges == excerpt["n_edges"] <= 150 < usual.circuit.n_edges
    assert names == set(usual.scores.top(excerpt["size"]).connected().edges())
    alone = measure(shown, mini, measured, "faithfulness-norm")
    assert excerpt["faithfulness"]["value"] == pytest.approx(alone.value, rel=1e-5)


def test_stages_that_are_skipped_are_null_and_listed(mini: Model, tmp_path: Path) -> None:
    skipped = audit(mini, "ioi", n=12, skip=["curve", "random", "attack", "calibrate"], out=tmp_path)
    document = skipped.to_dict()
    assert [document[key] for key in ("curve", "worst_case", "calibration")] == [None] * 3
    assert document["measurements"][0]["baseline"] == {}
    assert skipped.left_out.keys() == {"full", "curve", "random", "attack", "calibrate"}
    assert skipped.left_out["curve"] == "left out by --skip"
    assert "What was not run" in (tmp_path / "report.html").read_text()


def test_an_audit_of_nodes_counts_nodes(mini: Model, tmp_path: Path) -> None:
    how: dict[str, Any] = {"n": 12, "steps": 1, "n_random": 1, "level": "node", "store": tmp_path}
    found = audit(mini, "ioi", skip=["attack", "calibrate"], **how)
    circuit, n = found.circuit, mini.graph.n_sources
    assert circuit.level == found.scores.level == "node"
    assert verdict(found).startswith(f"{circuit.n_items} of {n} nodes ({circuit.n_items / n * 100:.3g}")
    assert {*found.reported["nodes"]} == {*circuit.nodes()}
    assert len(found.edges) == circuit.n_edges
    assert found.curve is not None
    assert found.curve.n_edges[-1] == n
    again = audit(mini, "ioi", skip=["attack", "calibrate"], **how)
    assert again.cached
    assert again.circuit == circuit
    torch.testing.assert_close(again.scores.values, found.scores.values)
    folder = found.save(tmp_path / "out").parent
    assert load_circuit(folder / "circuit.safetensors") == circuit
    assert load_node_scores(folder / "scores.safetensors").n_items == n
    page = (folder / "report.html").read_text()
    assert "An edge is drawn with the score of the node that writes it." in page
    strongest = found.scores.to_frame().query("node in @circuit.nodes()").node[:10]
    listed = invoke("show", found.id, "--store", tmp_path).stdout
    rows = listed[: listed.index(f"The 10 strongest of {circuit.n_items} nodes.")].splitlines()[-10:]
    assert [row.split()[0] for row in rows] == strongest.tolist()


def test_an_ablation_of_edges_alone_ends_no_audit(tiny: Model, task: PairTask, monkeypatch: Any) -> None:
    """A package may register one that no intervention on heads goes by the name of."""
    hushed = type("Hushed", (type(ABLATIONS["zero"]),), {"key": "hushed"})()
    monkeypatch.setitem(ABLATIONS._entries, "hushed", hushed)
    document = audit(tiny, task, n_random=1, metrics=[], ablation="hushed").to_dict()
    assert document["calibration"] is None
    assert document["left_out"]["calibrate"].startswith("the ablation is defined for edges alone")


# ---- identity and options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"target": 0.8},
        {"target_kl": 0.8},
        {"level": "node"},
        {"n_random": 3},
        {"steps": 4},
        {"ablation": "zero"},
        {"objective": "kl"},
        {"method": "random"},
        {"full": False},
        {"skip": ["curve"]},
    ],
)
def test_every_choice_is_part_of_the_identity(
    tiny: Model, task: PairTask, found: Audit, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def looked_up(self: Stage, store: object) -> Memo:
        seen.append(self.id)
        return Memo(value=found, cached=True)

    monkeypatch.setattr(Stage, "run", looked_up)
    audit(tiny, task, n_random=2, full=True, batch_size=5)
    audit(tiny, task, **{"n_random": 2, "full": True, **change})
    assert seen[0] == found.id != seen[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 1}, "n is 1"),
        ({"n_random": 0}, "n_random is 0"),
        ({"target": 1.5}, r"target is 1.5; .* in \(0, 1\]"),
        ({"method": "eap-ig-input"}, "did you mean 'eap-ig-inputs'"),
        ({"task": "my/own.json"}, "unknown task"),
        ({"objective": "logit-dif"}, "unknown objective"),
        ({"metrics": ["fathfulness"]}, "did you mean 'faithfulness'"),
        ({"skip": ["atack"]}, "did you mean 'attack'"),
        ({"device": "gpu"}, "device 'gpu' does not exist"),
        ({"level": "neuron"}, "an audit is of edges or nodes"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit("no-such-model", **change)


# ---- files and the store ------------------------------------------------------------------------


def test_saved_files_read_back(found: Audit, tiny: Model, task: PairTask, tmp_path: Path) -> None:
    page = found.save(tmp_path / "out")
    out = page.parent
    names = ["audit.json", "circuit.safetensors", "report.html", "scores.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert found.id in page.read_text()
    assert json.loads((out / "audit.json").read_text()) == found.to_dict()
    assert torch.equal(load_scores(out / "scores.safetensors").values, found.scores.values)
    circuit = load_circuit(out / "circuit.safetensors", tiny.graph)
    assert circuit == found.circuit
    assert torch.equal(run_circuit(circuit, tiny, task), run_circuit(found.circuit, tiny, task))


def test_an_interrupted_audit_goes_on_and_a_finished_one_is_looked_up(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("assay.pipeline.audit.measure_stored", interrupt)
        with pytest.raises(KeyboardInterrupt):
            audit(tiny, task, n_random=1, metrics=["kl"], store=tmp_path)
    assert [result.kind for result in Store(tmp_path).results()] == ["scores", "scores"]
    monkeypatch.setattr("assay.pipeline.stage.discover", forbidden)
    first = audit(tiny, task, n_random=1, metrics=["kl"], store=tmp_path)
    monkeypatch.setattr("assay.pipeline.sizing.discovery_stage", forbidden)
    second = audit(tiny, task, n_random=1, metrics=["kl"], store=Store(tmp_path))
    assert (first.cached, second.cached) == (False, True)
    assert second.to_dict() == first.to_dict()
    assert second.circuit == first.circuit
    assert torch.equal(second.scores.values, first.scores.values)


def test_an_audit_from_the_store_gives_the_warnings_of_the_first_again(
    tiny: Model, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measure_stored

    def warned(*args: Any, **kwargs: Any) -> dict[str, Any]:
        warnings.warn("one value is constant", DegenerateDataWarning, stacklevel=1)
        return measured(*args, **kwargs)

    monkeypatch.setattr("assay.pipeline.audit.measure_stored", warned)
    heard = []
    for _ in range(2):
        with pytest.warns(AssayWarning) as given:
            found = audit(tiny, task, n=30, n_random=1, metrics=["kl"], store=tmp_path)
        heard.append(list(dict.fromkeys(str(each.message) for each in given)))
    assert found.cached
    assert heard[0] == heard[1]
    few, constant = heard[0]
    assert (few[:23], constant) == ("'custom' has 24 prompts", "one value is constant")


Loads = Callable[..., tuple[Outcome, int]]


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    """`assay audit` of a copied model on a file, with the number of models loaded for it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MINI, "model")
    write_prompts(Path("own.jsonl"), 12)
    names: list[object] = []
    load = assay.models.load_model

    def counted(name: object, **more: Any) -> Model:
        names.append(name)
        return load(name, **more)

    monkeypatch.setattr(assay.models, "load_model", counted)

    def call(*more: str) -> tuple[Outcome, int]:
        names.clear()
        options = ("--model", "model", "--task", "own.jsonl", "--n", "20", "--steps", "1", "--n-random", "1")
        skipped = "attack,random,curve,calibrate"
        outcome = invoke("audit", *options, "--skip", skipped, "--out", "out", *more)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome, len(names)

    return call


def test_the_same_request_loads_no_model_and_whatever_can_change_it_does(loads: Loads) -> None:
    first, n_first = loads()
    files = [Path("out") / name for name in ("audit.json", "report.html")]
    written = [path.read_bytes() for path in files]
    files[0].write_text("changed")
    files[1].unlink()
    again, n_again = loads("--batch-size", "2")
    assert (n_first, n_again) == (1, 0)
    assert again.stdout.replace(" (taken from the store)", "") == first.stdout
    (note,) = (line for line in first.stderr.splitlines() if line.startswith("note: "))
    assert note.startswith("note: 'own' has 12 prompts to discover and measure on, fewer than")
    assert again.stderr.splitlines() == [note]
    assert [path.read_bytes() for path in files] == written
    model, prompts = Path("model/config.json"), Path("own.jsonl")
    model.write_text(json.dumps(json.loads(model.read_text())))
    assert loads()[1] == 1, "a file of the model"
    prompts.write_text("".join(prompts.read_text().splitlines(keepends=True)[1:]))
    assert loads()[1] == 1, "the file of the task"
    outcome, count = loads("--target", "0.8")
    assert count == 1, "an option"
    identity = outcome.stdout.split()[-1]
    assert invoke("store", "rm", identity, "--store", "out", "--yes").exit_code == 0
    outcome, count = loads("--target", "0.8")
    assert (count, outcome.stdout.split()[-1]) == (1, identity), "the audit was removed"


# ---- the size of a circuit ----------------------------------------------------------------------


def kept(faithfulness: float, distribution: float = 1.0) -> Kept:
    """Without uncertainty."""
    ends = dict.fromkeys(("faithfulness", "low", "high"), faithfulness)
    return Kept(**ends, distribution=distribution)


@pytest.fixture(scope="module")
def ranked() -> EdgeScores:
    graph = build_graph(3, 4)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=torch.Generator().manual_seed(0))
    return EdgeScores(graph, values)


@pytest.mark.parametrize("needed", [1, 7, 60, 131, 200])
def test_the_sweep_finds_the_smallest_size_of_a_growing_curve(ranked: EdgeScores, needed: int) -> None:
    sizes: list[int] = []

    def judge(circuit: Circuit) -> Kept:
        sizes.append(circuit.n_edges)
        return kept(float(circuit.n_edges >= needed))

    sized = find_circuit([RankedItems(scores=ranked)], judge, targets=Targets(), progress=silent)
    assert sized.circuit.n_edges >= needed
    smaller = ranked.top(sized.size - max(1, sized.size // 50)).connected(warn=False)
    assert smaller.n_edges < needed
    assert len(sizes) < 20
    # Only the model itself meets what nothing else does: too little or undefined, too much, uncertain.
    for values in ((0.0, 1.0), (float("nan"), 1.0), (1.2, 1.0), (1.0, 0.8), (1.0, float("nan"))):
        sized = find_circuit(
            [RankedItems(scores=ranked)],
            lambda circuit, values=values: kept(*values),
            targets=Targets(),
            progress=silent,
        )
        assert (sized.circuit, sized.kept) == (Circuit.full(ranked.graph), Kept())
    assert Targets(distribution=0.0).met(kept(1.0, 0.1)) == (True, True)
    assert Targets().met(replace(kept(1.0), low=0.85)) == (False, True)


def test_a_size_between_too_little_and_too_much_is_found(ranked: EdgeScores) -> None:
    """Faithfulness passes 1 on its way, so no size that doubles is right."""
    sized = find_circuit(
        [RankedItems(scores=ranked)],
        lambda circuit: kept(circuit.n_edges / 100),
        targets=Targets(),
        progress=silent,
    )
    assert 90 <= sized.circuit.n_edges <= 93


def test_the_passage_through_the_band_is_not_jumped_over(ranked: EdgeScores) -> None:
    """Of 202 edges some 99 to 103 keep the margin; a rough search looks there as closely as a fine one."""
    sized = find_circuit(
        [RankedItems(scores=ranked)],
        lambda circuit: kept(1 + (circuit.n_edges - 101) / 20),
        targets=Targets(),
        progress=silent,
        resolution=COARSE,
    )
    assert 99 <= sized.circuit.n_edges <= 103

    def late(circuit: Circuit) -> Kept:
        """A margin inside the band, without the distribution at first, that passes it later."""
        return kept(1.02 if circuit.n_edges < 82 else 1.3, 0.85 if circuit.n_edges < 72 else 0.99)

    found = find_circuit([RankedItems(scores=ranked)], late, targets=Targets(), progress=silent)
    assert 72 <= found.circuit.n_edges < 82


def test_a_size_can_be_confirmed_on_other_prompts(ranked: EdgeScores) -> None:
    def at_least(needed: int) -> Callable[[Circuit], Kept]:
        return lambda circuit: kept(float(circuit.n_edges >= needed))

    how = {"targets": Targets(), "progress": silent}
    rankings = [RankedItems(scores=ranked)]
    sized = find_circuit(rankings, at_least(60), elsewhere=at_least(80), **how)
    assert sized.confirmed
    assert 80 <= sized.circuit.n_edges <= 86
    never = find_circuit(rankings, at_least(60), elsewhere=lambda circuit: kept(0.5), **how)
    alone = find_circuit(rankings, at_least(60), **how)
    assert (never.confirmed, alone.confirmed) == (False, None)
    assert never.circuit == alone.circuit


def test_the_ranking_that_needs_the_fewest_edges_is_taken(ranked: EdgeScores) -> None:
    """By sign the wanted edges come first; by size they stand behind others, and the other way round."""
    wanted = ranked.top(30, absolute=False).connected()
    both = [RankedItems(scores=ranked), RankedItems(scores=ranked, absolute=False)]

    def judge(circuit: Circuit) -> Kept:
        return kept(float((circuit & wanted) == wanted))

    for rankings in (both, both[::-1]):
        sized = find_circuit(rankings, judge, targets=Targets(), progress=silent)
        assert not sized.ranking.absolute
        assert [each["absolute"] for each in sized.tried] == [each.absolute for each in rankings]
        needed = {each["absolute"]: each["size"] for each in sized.tried}
        assert needed[False] == sized.size <= 30
        assert needed[True] is None or needed[True] > sized.size
    any_circuit = find_circuit(both, lambda circuit: kept(1.0), targets=Targets(), progress=silent)
    assert [each["size"] for each in any_circuit.tried] == [1, None]
