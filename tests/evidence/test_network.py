"""Published facts about real models, from the hub or its cache: `pytest -m network tests/evidence`.

Each test writes its figures; see `conftest.py`.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import assay
from assay.circuits import Circuit, load_head_circuit, published_circuit
from assay.discovery.heads.direct import direct_attribution, head_outputs, margin_directions
from assay.execution import CircuitRuns
from assay.models import Model
from assay.tasks import load_images


pytestmark = [pytest.mark.network, pytest.mark.usefixtures("unchecked")]
Keep = Callable[..., None]
NAME_MOVERS = {(9, 9), (10, 0), (9, 6)}
NEGATIVE = {(10, 7), (11, 10)}


@pytest.fixture(scope="module")
def gpt2() -> Model:
    return assay.load_model("openai-community/gpt2")


def test_the_ioi_circuit_keeps_most_of_the_margin(gpt2: Model, keep: Keep) -> None:
    """Wang et al. 2022, arXiv:2211.00593: 26 heads keep 87 % of the logit difference under means."""
    task = assay.load_task("ioi", gpt2, n=200, template_ids=range(15))
    circuit = Circuit.from_heads(gpt2.graph, load_head_circuit("ioi_gpt2_wang26").heads, mlps=True)
    found = assay.measure(circuit, gpt2, task, "faithfulness", ablation="mean")
    keep(faithfulness=found.to_dict())
    assert 0.6 < found.value < 1.2


def test_name_movers_write_the_name_directly(gpt2: Model, keep: Keep) -> None:
    """Wang et al. 2022, figure 3: 9.9, 10.0 and 9.6 push the name up, 10.7 and 11.10 push it down."""
    task = assay.load_task("ioi", gpt2, n=100, template_ids=range(15))
    direct = direct_attribution(gpt2, head_outputs(gpt2, task), margin_directions(gpt2, task)).values
    order = [divmod(int(place), gpt2.n_heads) for place in np.argsort(-direct.ravel())]
    keep(strongest=order[:8], weakest=order[-8:], direct=direct)
    assert set(order[:8]).issuperset(NAME_MOVERS)
    assert set(order[-4:]).issuperset(NEGATIVE)


def test_gpt2_prefers_later_years(gpt2: Model, keep: Keep) -> None:
    """Hanna et al. 2023, arXiv:2305.00586: 81.7 % more probability on years after the first than before."""
    task = assay.load_task("greater-than", gpt2, n=200)
    margin = float(CircuitRuns(gpt2, task, Circuit.full(gpt2.graph)).margins("full").mean())
    keep(margin=margin)
    assert 0.6 < margin < 0.95


@pytest.mark.parametrize(
    ("name", "circuit", "published"), [("ioi", "ioi_gpt2", 5.15), ("greater-than", "greater_than_gpt2", 2.09)]
)
def test_table_3_is_that_of_the_empty_circuit(
    gpt2: Model, keep: Keep, name: str, circuit: str, published: float
) -> None:
    """Uit de Bos and Garriga-Alonso 2024, arXiv:2407.15166: means over all pairs, in nats."""
    task = assay.load_task(name, gpt2, n=2, **({"template_ids": [0]} if name == "ioi" else {}))
    worst = assay.worst_case(published_circuit(circuit), gpt2, task, "all", 100, 100, reuse_clean=True)
    found, empty = float(worst.divergence.mean()), float(worst.empty.mean())
    keep(circuit=found, empty=empty, published=published)
    assert abs(empty - published) < 0.2 * published
    assert found < empty


def test_pythia_loads_at_a_step_of_its_training(keep: Keep) -> None:
    names = {}
    for revision in ("step1000", "step143000"):
        model = assay.load_model("EleutherAI/pythia-70m", revision=revision)
        task = assay.load_task("sva", model, n=40)
        scores = assay.discover(model, task, "eap-ig-inputs")
        found = assay.measure(scores.top(model.graph.n_edges // 10), model, task, "faithfulness-norm")
        names[revision] = {**model.describe(), "faithfulness-norm": found.value}
    keep(**names)
    assert names["step1000"]["weight_hash"] != names["step143000"]["weight_hash"]


def test_a_llama_repeats_what_it_has_read(keep: Keep) -> None:
    """Olsson et al. 2022, arXiv:2209.11895: models of this size continue a repeated sequence."""
    model = assay.load_model("HuggingFaceTB/SmolLM-135M")
    task = assay.load_task("induction", model, n=40)
    found = assay.measure(Circuit.full(model.graph), model, task, "topk")
    right = found.details["label_top1_full"]
    keep(model=model.describe(), right=right)
    assert right > 0.8


def test_a_vit_names_its_classes_and_keeps_its_output(tmp_path: Path, keep: Keep) -> None:
    model = assay.load_model("google/vit-base-patch16-224")
    rng = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    task = load_images(str(tmp_path), model)
    scores = assay.discover(model, task, "eap-ig-inputs")
    shares = {0.03: 0.0, 0.3: 0.0}
    for share in shares:
        circuit = scores.top(int(share * model.graph.n_edges))
        shares[share] = assay.measure(circuit, model, task, "faithfulness-norm").value
    keep(model=model.describe(), values={f"{share:.0%}": value for share, value in shares.items()})
    assert model.classes is not None
    assert len(model.classes) == 1000
    assert shares[0.3] > 0.5
