"""The registry of metrics: what each says about itself, and how one is found and called."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from array_runs import GRAPH, ArrayRuns, margin_runs
from hypothesis import given
from hypothesis import strategies as st

from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.core.record import record_id
from assay.execution import CircuitRuns
from assay.metrics import METRICS, find_metric, measure_runs, measurement_provenance, metric, random_like
from assay.metrics.metric import MetricSpec, record
from assay.stats import mean_of


# Of given arrays: metrics that run the model themselves have tests of their own.
MEASURED = [
    key
    for key, spec in METRICS.items()
    if spec.compute is not None and key not in ("scrub-recovery", "scrub-kl")
]


def rich_runs(n: int = 30, seed: int = 0) -> ArrayRuns:
    """Runs of every kind, on a head circuit, over 20 outputs."""
    rng = stream(seed, "rich")
    circuit = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)])
    full = rng.normal(size=(n, 20))
    full[:, 0] += 3
    damage = {"keep": 0.5, "drop": 2.5, "empty": 4.0}
    logits = {which: full + 0.3 * rng.normal(size=full.shape) for which in damage}
    for which, margin in damage.items():
        logits[which][:, 0] -= margin
    others = {
        circuit.without_head(*head).hash: full + rng.normal(size=full.shape) for head in circuit.kept_heads()
    }
    return ArrayRuns(
        answers=[[0]] * n, wrong=[[1]] * n, circuit=circuit, others=others, seed=seed, full=full, **logits
    )


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_is_deterministic_finite_json_with_an_interval(key: str) -> None:
    first, second = (measure_runs(rich_runs(), key).to_dict(per_example=True) for _ in range(2))
    assert first == second
    text = json.dumps(first, allow_nan=False)
    assert json.loads(text)["interval"]["low"] <= first["value"] <= first["interval"]["high"]
    assert first["n"] == 30
    assert len(first["per_example"]) == 30
    assert np.mean(first["per_example"]) == pytest.approx(first["value"], rel=1e-9)


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_leaves_its_input_alone_and_asks_for_the_runs_it_declares(key: str) -> None:
    runs = rich_runs()
    before = {which: logits.clone() for which, logits in runs.given.items()}
    measured = measure_runs(runs, key)
    for which, logits in runs.given.items():
        assert (logits == before[which]).all()
    assert {each for each in runs.asked if each in before} == set(METRICS[key].runs)
    low, high = METRICS[key].range
    assert low <= measured.value <= high
    assert measured.direction == METRICS[key].direction
    assert measured.provenance["metric"]["key"] == key


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_ignores_the_order_of_examples(key: str) -> None:
    runs, shuffled = rich_runs(), rich_runs()
    order = stream(1, "order").permutation(30)
    for logits in (shuffled.given, shuffled.others):
        for which in logits:
            logits[which] = logits[which][order]
    plain, moved = measure_runs(runs, key), measure_runs(shuffled, key)
    assert moved.value == pytest.approx(plain.value, rel=1e-12)
    np.testing.assert_allclose(moved.per_example, plain.per_example[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_survives_one_and_no_usable_example(key: str) -> None:
    single = rich_runs()
    for logits in (single.given, single.others):
        for which in logits:
            logits[which][1:] = np.nan
    measured = measure_runs(single, key)
    assert measured.n + measured.n_excluded == 30
    assert measured.n <= 1
    json.dumps(measured.to_dict(), allow_nan=False)
    nothing = rich_runs()
    nothing.given["full"][:] = np.nan
    measured = measure_runs(nothing, key)
    assert measured.n == 0
    assert measured.reason == "no_valid_prompt"
    assert (measured.passed, measured.status in ("inconclusive", "none")) == (None, True)


def test_ids_are_unique_and_every_metric_says_what_it_is() -> None:
    specs = [spec for _, spec in METRICS.items()]
    assert len({spec.id for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.name
        assert spec.reference
        assert spec.direction in ("higher", "lower", "target", "report")
        assert (spec.rule is None) == (spec.pass_threshold is None)
        if spec.compute is not None:
            assert spec.compute.__doc__


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("faithfulness", "faithfulness"),
        ("ce_delta", "ce-delta"),
        ("D05", "topk"),
        ("d05", "topk"),
        ("D02", "faithfulness"),
        ("D02.completeness", "completeness"),
        ("D03", "kl"),
        ("D04", "ce-delta"),
        ("C4b", "minimality"),
        ("D01", "output-divergence"),
        ("C4", "scrub-recovery"),
        ("C4.scrub_kl", "scrub-kl"),
    ],
)
def test_metrics_are_found_by_key_id_and_code(name: str, key: str) -> None:
    assert find_metric(name).key == key


def test_unknown_metrics_list_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'faithfulness'"):
        find_metric("faithfullness")


def test_unknown_options_list_near_matches() -> None:
    with pytest.raises(
        UnknownNameError, match="option of metric 'faithfulness' 'normalized'; did you mean 'normalised'"
    ):
        measure_runs(margin_runs(full=[1.0], keep=[1.0]), "faithfulness", normalized=True)


def test_areas_of_a_curve_point_to_the_curve() -> None:
    for name in ("cpr", "MIB.cmd"):
        with pytest.raises(InputError, match="use faithfulness_curve"):
            measure_runs(margin_runs(full=[1.0], keep=[1.0]), name)


def test_options_and_parts_enter_the_identity() -> None:
    runs = rich_runs()
    plain, other = measure_runs(runs, "topk"), measure_runs(runs, "topk", support="union")
    assert plain.provenance["metric"]["options"]["support"] == "full"
    assert plain.id_hash != other.id_hash
    assert plain.parts["acc@5"].id_hash not in (plain.id_hash, plain.parts["acc@10"].id_hash)
    assert plain.id_hash == measure_runs(rich_runs(), "topk", support="full").id_hash
    assert measure_runs(rich_runs(seed=1), "topk").id_hash != plain.id_hash


def test_the_identity_is_known_before_anything_runs() -> None:
    runs = rich_runs()
    provenance = measurement_provenance(runs, "D05", support="union")
    assert not runs.asked
    assert record_id("measurement", provenance) == measure_runs(runs, "topk", support="union").id_hash


@pytest.fixture
def registered() -> Iterator[str]:
    """A metric of someone else's, taken out of the registry again."""

    @metric(key="mean-margin", id="Z1.mean_margin", name="mean margin", unit="logits", runs=("full",))
    def compute(runs: CircuitRuns, spec: MetricSpec, *, scale: float = 1.0) -> Measurement:
        """Mean margin of the model."""
        used = np.ones(runs.task.n, dtype=bool)
        return record(spec, {"y": scale * runs.margins("full")}, mean_of("y"), used=used)

    yield "mean-margin"
    del METRICS._entries["mean-margin"]


def test_a_metric_can_be_added(registered: str) -> None:
    measured = measure_runs(margin_runs(full=[1.0, 2.0]), registered, scale=2.0)
    assert (measured.value, measured.unit, measured.status) == (3.0, "logits", "none")
    assert find_metric("Z1").options == {"scale": 1.0}


# ---------------------------------------------------------------------------------- random circuits


@given(st.integers(0, 30), st.integers(0, 5))
def test_random_edge_circuits_have_the_size_of_the_original(n_edges: int, index: int) -> None:
    circuit = Circuit.random(GRAPH, n_edges, seed=3)
    other = random_like(circuit, seed=0, index=index)
    assert (other.n_edges, other.heads) == (n_edges, None)
    assert other == random_like(circuit, seed=0, index=index)


@pytest.mark.parametrize("mlps", [True, False])
def test_random_head_circuits_have_as_many_heads_and_the_same_mlps(mlps: bool) -> None:
    circuit = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)], mlps=mlps)
    others = [random_like(circuit, seed=0, index=index) for index in range(20)]
    assert {len(other.heads or ()) for other in others} == {2}
    assert len({other.hash for other in others}) > 1
    assert {bool(other.mask[GRAPH.mlp_source(0)].any()) for other in others} == {mlps}


def test_a_negative_number_of_random_circuits_is_refused() -> None:
    with pytest.raises(InputError, match="random_circuits is -1"):
        measure_runs(rich_runs(), "kl", random_circuits=-1)


def test_random_circuits_stand_beside_the_measurement() -> None:
    runs = rich_runs()
    circuits = [random_like(runs.circuit, seed=0, index=index) for index in range(3)]
    full = runs.given["full"]
    share = {circuit.hash: 0.25 * (1 + index) for index, circuit in enumerate(circuits)}
    for circuit in circuits:
        runs.others[circuit.hash] = full * share[circuit.hash]
        runs.others[circuit.dropped().hash] = full
    empty = Circuit.from_heads(GRAPH, [])
    runs.others[empty.hash] = full / 8
    runs.others[empty.dropped().hash] = full
    measured = measure_runs(runs, "faithfulness", random_circuits=3)
    random = measured.baseline["random"]
    expected = [share[circuit.hash] for circuit in circuits]
    assert random["values"] == pytest.approx(expected)
    assert (random["value"], random["n"]) == (pytest.approx(np.mean(expected)), 3)
    assert random["sd"] == pytest.approx(np.std(expected, ddof=1))
    assert measured.baseline["empty"]["value"] == pytest.approx(1 / 8)
    dropped = measure_runs(runs, "completeness", random_circuits=3)
    assert dropped.baseline["random"]["values"] == pytest.approx([0.0, 0.0, 0.0])
    assert measured.id_hash != measure_runs(runs, "faithfulness").id_hash
