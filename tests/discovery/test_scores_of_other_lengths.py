"""Scores of pairs whose prompts differ in length: their twins, and first order in what an edge carries."""

from collections.abc import Callable

import literal
import pytest
import torch
from cut_models import TEXT, model_and_task
from heads_under import logits_under
from test_methods import STEPS, Literal, assert_scores
from test_relp import literal_relp
from torch import Tensor, nn
from unequal import unequal_task

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.edges import METHODS, discover, discover_positions, output_scores, quadrature_nodes
from assay.discovery.heads import discover_heads
from assay.execution import run_circuit
from assay.models import Model, load_model
from assay.tasks import PairTask


class Aligned(Literal):
    """The twin with what cut edges carry placed token by token."""

    def __init__(self, model: Model, task: PairTask, objective: str) -> None:
        super().__init__(model, task, objective, "resample")
        assert task.alignment is not None
        corrupted = literal.run_plain(model, task.corrupted)[1]
        self.ablated = literal.placed(corrupted, task.alignment)
        self.differences = {name: (self.ablated[name] - self.clean[name]).detach() for name in self.clean}

    def at(self, names: list[str], alpha: float) -> dict[str, Tensor]:
        """Tokens without a counterpart stay clean on the way."""
        assert self.task.alignment is not None
        moved = super().at(names, alpha)
        for row, places in enumerate(self.task.alignment.tolist()):
            for place, other in enumerate(places):
                if other < 0:
                    for name in names:
                        moved[name][row, place] = self.clean[name][row, place].detach()
        return moved

    def exact(self) -> Tensor:
        graph, task = self.model.graph, self.task
        assert task.alignment is not None
        scores = torch.zeros(task.n, graph.n_sources, graph.n_targets, dtype=torch.float64)
        for row, column in graph.valid.nonzero().tolist():
            mask = graph.valid.clone()
            mask[row, column] = False
            circuit = Circuit(graph=graph, mask=mask)
            logits = literal.run_aligned(self.model, circuit, task.clean, task.corrupted, task.alignment)
            scores[:, row, column] = self.loss(logits) - self.clean_loss
        return scores


@pytest.fixture
def model(module64: nn.Module) -> Model:
    return load_model(module64)


def test_gradient_scores_equal_their_twins(model: Model) -> None:
    task = unequal_task(model)
    settings = {"per_example": True, "batch_size": 3, "steps": STEPS}
    for objective in ("logit_diff", "kl"):
        twin, chosen = Aligned(model, task, objective), {**settings, "objective": objective}
        assert_scores(discover(model, task, "eap-ig-inputs", **chosen), twin.eap_ig_inputs())
        assert_scores(discover(model, task, "eap-ig-activations", **chosen), twin.eap_ig_activations())
    assert_scores(discover(model, task, "eap", **settings), Aligned(model, task, "logit_diff").eap())
    found = discover(model, task, "relp", **settings)
    assert_scores(found, literal_relp(model, task, "resample", "full"))


def test_a_rule_that_visits_the_ablated_end_equals_its_twin(model: Model) -> None:
    """There the run is that of the ablated embeddings at clean positions, not the corrupted prompt's own."""
    task = unequal_task(model)
    found = discover(model, task, steps=STEPS, quadrature="left", per_example=True)
    assert_scores(found, Aligned(model, task, "logit_diff").eap_ig_inputs("left"))


def test_exact_damage_equals_its_twin(model: Model) -> None:
    task = unequal_task(model, slice(1, 4))
    found = discover(model, task, "exact", per_example=True)
    assert_scores(found, Aligned(model, task, "logit_diff").exact())


@pytest.mark.parametrize("name", TEXT)
def test_a_score_is_the_slope_of_the_loss_as_its_edge_is_cut(
    name: str, tiny_module: Callable[..., nn.Module]
) -> None:
    """First order: the edge carries (1 - t) of its own value and t of the ablated one; d loss / dt at t = 0.

    At a clean token without counterpart that is (1 - t) of its own value.
    """
    model, _ = model_and_task(name, tiny_module)
    task = unequal_task(model)
    twin, graph, step = Aligned(model, task, "logit_diff"), model.graph, 1e-3
    near = 1e-3 if name in ("llama", "window") else 1e-4  # RMSNorm is float32 in transformers
    scores = discover(model, task, "eap", per_example=True).per_example
    assert scores is not None
    generator = torch.Generator().manual_seed(2)
    edges = graph.valid.nonzero()
    for row, column in edges[torch.randperm(len(edges), generator=generator)[:25]].tolist():

        def loss_at(t: float) -> Tensor:
            def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
                total, source = literal.plain_stream(target, outputs, biases), graph.sources[row]  # noqa: B023
                cut = target == graph.targets[column]  # noqa: B023 - called within this round
                return total + t * (twin.ablated[source] - outputs[source]) if cut else total

            with torch.no_grad():
                return twin.loss(literal.run(model, task.clean, stream_of)[0])

        slope = (loss_at(step) - loss_at(-step)) / (2 * step)
        close = near * float(scores.abs().max())
        torch.testing.assert_close(scores[:, row, column], slope, rtol=0, atol=close)


def test_scores_out_of_the_input_add_up_to_the_effect_of_ablating_it(gpt2_tiny64: nn.Module) -> None:
    """Where both prompts have a token; the others add what they have to first order along the path."""
    model = load_model(gpt2_tiny64)
    task = unequal_task(model)
    assert task.alignment is not None
    nodes = {"steps": 40, "quadrature": "gauss-legendre"}
    found, twin = discover(model, task, **nodes), Aligned(model, task, "logit_diff")
    with torch.no_grad():
        override = twin.at(["input"], 0.0)
        ablated = twin.loss(literal.run(model, task.clean, literal.plain_stream, override=override)[0])
    effect = float((ablated - twin.clean_loss).mean())
    runs = [(node.weight, twin.at(["input"], node.alpha)) for node in quadrature_nodes(40, "gauss-legendre")]
    absent = (task.alignment < 0)[..., None]
    twin.differences = {name: value * absent for name, value in twin.differences.items()}
    alone = twin.score(twin.gradient_mean(runs))[:, 0].sum(1).mean()
    assert abs(float(alone)) > 1e-3 * abs(effect)
    assert float(found.values[0].sum() - alone) == pytest.approx(effect, rel=1e-4)
    assert found.details["completeness_gap"] < 1e-4


def test_no_batch_and_no_padding_changes_a_score(model: Model) -> None:
    task = unequal_task(model)
    whole = discover(model, task, per_example=True).per_example
    assert whole is not None
    for row in range(task.n):
        one = task.subset([row])
        assert (one.alignment is None) == (row == 1)
        width, other = int(one.lengths[0]), int(one.corrupted_lengths[0])
        alone = PairTask(
            clean=one.clean[:, :width],
            corrupted=one.corrupted[:, :other],
            answers=one.answers,
            wrong=one.wrong,
            alignment=None if one.alignment is None else one.alignment[:, :width],
        )
        found = discover(model, alone, per_example=True).per_example
        torch.testing.assert_close(found, whole[row : row + 1], rtol=1e-6, atol=1e-8)


def test_pairs_of_one_length_have_the_scores_that_they_have_among_others(model: Model) -> None:
    """Row 1 is aligned one by one; alone, it is an ordinary pair and takes the ordinary path."""
    task = unequal_task(model)
    alone = PairTask(
        clean=task.clean[1:2, :5],
        corrupted=task.corrupted[1:2, :5],
        answers=task.answers[1:2],
        wrong=task.wrong[1:2],
    )
    assert alone.alignment is None
    for method in ("eap", "eap-ig-inputs", "eap-ig-activations", "relp", "exact"):
        among = discover(model, task.subset([0, 1]), method, per_example=True).per_example
        ordinary = discover(model, alone, method, per_example=True).per_example
        assert among is not None
        torch.testing.assert_close(among[1:], ordinary, rtol=1e-6, atol=1e-8)


def test_output_scores_are_the_column_of_the_logits(model: Model) -> None:
    task = unequal_task(model)
    column = discover(model, task).values[:, -1]
    torch.testing.assert_close(output_scores(model, task).values, column, rtol=1e-5, atol=1e-7)


def test_heads_take_their_outputs_from_the_place_of_the_token(model: Model) -> None:
    """Heads resampled in the clean run write what they wrote in the corrupted one, or nothing."""
    task = unequal_task(model)
    twin, rows = Aligned(model, task, "logit_diff"), torch.arange(task.n)
    heads = [(0, 1), (1, 2)]
    override = {f"a{layer}.h{head}": twin.ablated[f"a{layer}.h{head}"] for layer, head in heads}
    with torch.no_grad():
        logits = literal.run(model, task.clean, literal.plain_stream, override=override)[0]
    found = logits_under(model, task, "resample", heads)
    torch.testing.assert_close(found, logits[rows, task.positions], rtol=1e-5, atol=1e-5)


SERVED = {"eap", "eap-ig-inputs", "eap-ig-activations", "exact", "ifr", "random", "relp"}


def test_methods_say_whether_they_align() -> None:
    assert {key for key, method in METHODS.items() if method.aligns} == SERVED


@pytest.mark.parametrize("method", sorted(set(METHODS) - SERVED))
def test_other_methods_are_refused_by_name(method: str, gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match=f"{method} under resample, unlike eap.* 3 of 4 pairs"):
        discover(model, unequal_task(model), method)


def test_ablations_without_corrupted_prompts_are_served(gpt2_tiny64: nn.Module) -> None:
    """By every method; the corrupted prompts do not matter."""
    model = load_model(gpt2_tiny64)
    task = unequal_task(model)
    ordinary = PairTask(
        clean=task.clean, corrupted=task.clean, answers=task.answers, wrong=task.wrong, lengths=task.lengths
    )
    for method in ("acdc", "eap-ig-inputs"):
        for ablation in ("zero", "mean"):
            found, expected = (discover(model, each, method, ablation=ablation) for each in (task, ordinary))
            torch.testing.assert_close(found.values, expected.values, rtol=0, atol=0)


def test_what_exchanges_positions_is_refused(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = unequal_task(model)
    for method in ("activation-patching", "mediation", "attribution-patching"):
        with pytest.raises(InputError, match=f"{method}, which exchanges activations by position"):
            discover_heads(model, task, method)
    with pytest.raises(
        InputError, match="discover_positions needs clean and corrupted prompts of one length"
    ):
        discover_positions(model, task, spans="each")
    full = Circuit.full(model.graph)
    with pytest.raises(InputError, match="pairs= needs clean and corrupted prompts of one length"):
        run_circuit(model, task, full, pairs=torch.tensor([[0, 1]]))
