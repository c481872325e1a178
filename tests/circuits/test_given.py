"""Public functions take models, tasks and circuits as objects or as text, and name a wrong type."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay.analyses.worst_case import search_worst
from assay.circuits import Circuit, published_circuit
from assay.circuits.given import named_circuit
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    return load_task("ioi", model, n=4)


def test_text_means_what_the_objects_do(model: Model, tmp_path: Path) -> None:
    ids = load_task("ioi", model, n=3)
    rows = [
        {"clean": a, "corrupted": b, "answers": c, "wrong": d}
        for a, b, c, d in zip(
            *(each.tolist() for each in (ids.clean, ids.corrupted, ids.answers, ids.wrong)), strict=True
        )
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    circuit = Circuit.from_heads(model.graph, [(2, 3), (3, 0)])
    expected = assay.measure(circuit, model, ids, "kl").value
    assert assay.measure("a2.h3,a3.h0", "mini", str(path), "kl").value == expected
    assert assay.measure(["a2.h3", "a3.h0"], model, path, "kl").value == expected
    (several,) = assay.measure(circuit, "mini", [str(path)], "kl")
    assert several.value == expected
    saved = circuit.save(tmp_path / "c.safetensors")
    torch.testing.assert_close(
        assay.run_circuit("mini", str(path), saved), assay.run_circuit(model, ids, circuit)
    )
    torch.testing.assert_close(assay.run_model("mini", str(path)), assay.run_model(model, ids))
    scores = assay.discover("mini", str(path), "eap")
    assert torch.equal(scores.values, assay.discover(model, ids, "eap").values)
    assert assay.discover_heads("mini", path, "dla").values.shape == (4, 8)
    assert assay.worst_case("a2.h3", "mini", path).divergence.shape == (3,)
    assert search_worst("a2.h3", "mini", path, budget=20, restarts=2).n_evaluations > 0
    assert set(assay.calibrate_all("a2.h3,a3.h0", "mini", path, gates=["C11"]).verdicts) == {
        "bootstrap-stability"
    }
    assert len(assay.faithfulness_curve(scores, "mini", path, fractions=[0.1, 0.2]).values) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t, c: assay.discover(t, m), "model is a PairTask; expected a loaded model"),
        (lambda m, t, c: assay.discover("ioi", "mini"), "model is 'ioi', which names a task or heads"),
        (lambda m, t, c: assay.discover(m, 3), "task is a int; expected a task, the key"),
        (lambda m, t, c: assay.discover(m, [t]), "task is a list"),
        (lambda m, t, c: assay.discover(m, t, ["eap", "exact"]), "method is a list of 2; give one name"),
        (
            lambda m, t, c: assay.measure(m, c, t, "kl"),
            "model is a Circuit; .* takes circuit, model, task, metric",
        ),
        (lambda m, t, c: assay.measure(c, t, m, "kl"), "model is a PairTask"),
        (lambda m, t, c: assay.measure("mini", "a2.h3", "ioi", "kl"), "model is 'a2.h3', which names"),
        (lambda m, t, c: assay.measure(c, m, t, ["kl", "topk"]), "metric is a list of 2; give one name"),
        (lambda m, t, c: assay.measure(c, m, "kl", t), "metric is a PairTask; expected its name"),
        (lambda m, t, c: assay.worst_case(m, c, t), "model is a Circuit"),
        (lambda m, t, c: search_worst(m, c, t), "model is a Circuit"),
        (lambda m, t, c: assay.calibrate_all(m, c, t), "model is a Circuit"),
        (lambda m, t, c: assay.audit(t), "model is a PairTask"),
        (lambda m, t, c: assay.audit(m, 3), "task is a int"),
        (lambda m, t, c: assay.run_circuit(m, c, t), "task is a Circuit"),
        (lambda m, t, c: assay.faithfulness_curve(c, m, t), "scores is a Circuit; expected edge scores"),
        (lambda m, t, c: assay.certify("scores", 3), "scores is a str"),
        (lambda m, t, c: assay.load_task("ioi", "mini"), r"load_task\('ioi', load_model\('mini'\)\)"),
    ],
)
def test_a_wrong_type_is_named_before_anything_runs(
    call: Callable[..., Any], message: str, model: Model, task: PairTask
) -> None:
    with pytest.raises(InputError, match=message):
        call(model, task, Circuit.full(model.graph))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: assay.calibrate(3, "C11"), "gate is a int;"),
        (lambda: assay.rank(3, "shapes:flat"), "models is a int;"),
        (lambda: assay.rank([3, 4], "shapes:flat"), "a model to rank is a int;"),
    ],
    ids=["gate", "models", "one model"],
)
def test_types_that_annotations_refuse_are_named(
    call: Callable[[], object], message: str, unchecked: None
) -> None:
    with pytest.raises(assay.AssayError, match=f"^{message}"):
        call()


def test_models_and_images_to_rank_may_be_text() -> None:
    ranking = assay.rank(
        ["colour-digits", load_model("colour-digits")], "colour-digits", metrics=["average-confidence"]
    )
    assert len(ranking.table()) == 2


def test_a_circuit_is_a_file_heads_or_a_published_name(model: Model, tmp_path: Path) -> None:
    circuit = Circuit.from_heads(model.graph, [(2, 3)])
    assert named_circuit(circuit.save(tmp_path / "c.safetensors"), model.graph) == circuit
    assert named_circuit("a2.h3", model.graph) == circuit
    assert Circuit.from_heads(model.graph, ["a2.h3"]) == circuit == Circuit.from_heads(model.graph, "a2.h3")
    published = published_circuit("ioi_gpt2")
    assert named_circuit("ioi_gpt2", published.graph) == published
    with pytest.raises(GraphMismatchError, match="circuit 'ioi_gpt2' belongs to another model"):
        named_circuit("ioi_gpt2", model.graph)
    assert getattr(named_circuit("ioi_gpt2_wang26", model.graph), "id", None) == "ioi_gpt2_wang26"
    with pytest.raises(GraphMismatchError):
        named_circuit(tmp_path / "c.safetensors", assay.build_graph(1, 1))
    with pytest.raises(InputError, match="write heads as in a0.h3,a2.h1"):
        named_circuit("a2.h3,b1", model.graph)
    with pytest.raises(InputError, match=r"'a2h3' is not a name such as 'a2.h3'"):
        Circuit.from_heads(model.graph, ["a2h3"])
    with pytest.raises(InputError, match="listed twice"):
        Circuit.from_heads(model.graph, ["a2.h3", (2, 3)])
    with pytest.raises(UnknownNameError, match="did you mean 'ioi_gpt2'"):
        named_circuit("ioi_gpt3", model.graph)
    assert {"ioi_gpt2", "ioi_gpt2_wang26"} <= set(assay.list("circuits").keys)
