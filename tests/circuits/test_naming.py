"""What commands name becomes circuits; what is refused by its type."""

from collections.abc import Callable
from pathlib import Path

import pytest

import assay
from assay.circuits import Circuit, published_circuit
from assay.circuits.naming import named_circuit
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import load_task


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mini")


def test_a_model_that_is_not_loaded_is_refused() -> None:
    with pytest.raises(InputError, match=r"load_task\('ioi', load_model\('mini'\)\)"):
        load_task("ioi", "mini")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: assay.calibrate(3, "C11"), "gate is a int;"),
    ],
    ids=["gate"],
)
def test_types_that_annotations_refuse_are_named(
    call: Callable[[], object], message: str, unchecked: None
) -> None:
    with pytest.raises(assay.AssayError, match=f"^{message}"):
        call()


def test_models_and_images_to_rank_may_be_text() -> None:
    models = {"named": "colour-digits", "loaded": load_model("colour-digits")}
    ranking = assay.rank(models, "colour-digits:0.1", metrics=["average-confidence"])
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
    with pytest.raises(InputError, match=r"'a2h3' is not a pair .* or a name such as 'a2.h3'"):
        Circuit.from_heads(model.graph, ["a2h3"])
    with pytest.raises(InputError, match="listed twice"):
        Circuit.from_heads(model.graph, ["a2.h3", (2, 3)])
    with pytest.raises(UnknownNameError, match="did you mean 'ioi_gpt2'"):
        named_circuit("ioi_gpt3", model.graph)
    assert {"ioi_gpt2", "ioi_gpt2_wang26"} <= set(assay.list("circuits").keys)
