"""The reference of a monitor: a mean over batches, with a noise floor that every reading is corrected for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_vits import untrained_vit

from assay.analyses.generalization import circuit_shift, measure_domains
from assay.analyses.generalization.monitoring import Monitor
from assay.analyses.generalization.noise_floor import rows_of
from assay.analyses.generalization.reference import Reference, discover_reference, load_reference
from assay.circuits import load_scores
from assay.core.errors import InputError
from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import ImageTask, draw_shapes


N = 8


def images(domain: str, start: int, n: int = N) -> ImageTask:
    return draw_shapes(domain, n, start=start).task()


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit(seed=1))


@pytest.fixture(scope="module")
def reference(model: Model) -> Reference:
    return discover_reference(model, images("flat", 0, 4 * N + 3), batch=N, steps=2)


def test_it_is_the_mean_of_the_circuits_of_its_batches(model: Model, reference: Reference) -> None:
    alone = [discover(model, images("flat", N * place), steps=2).values.double() for place in range(4)]
    torch.testing.assert_close(
        reference.scores.values.double(), torch.stack(alone).mean(0), atol=1e-6, rtol=1e-5
    )
    record = reference.scores.provenance
    assert (record["batches"], record["batch"], record["task"]["n"]) == (4, N, 4 * N)
    assert record["steps"] == 2
    assert reference.blocks is not None
    assert reference.blocks.shape == (4, 8, model.graph.n_edges)
    assert reference.blocks.mean((0, 1)) == pytest.approx(
        reference.scores.values[model.graph.valid].numpy(), abs=1e-5
    )


def test_one_batch_is_what_discover_gives_and_has_no_floor(model: Model) -> None:
    single = discover_reference(model, images("flat", 0, N), batch=N, steps=2)
    literal = discover(model, images("flat", 0, N), steps=2)
    assert torch.equal(single.scores.values, literal.values)
    assert single.scores.provenance == literal.provenance
    assert single.floor("spearman") is None
    assert "holds 1 batches of 8 inputs; a noise floor needs 4 or more" in single.without_floor("spearman")


def test_a_file_brings_it_back_and_is_edge_scores_too(
    model: Model, reference: Reference, tmp_path: Path
) -> None:
    path = reference.save(tmp_path / "reference.safetensors")
    again = load_reference(path, model)
    assert again.blocks is not None
    assert reference.blocks is not None
    np.testing.assert_array_equal(again.blocks, reference.blocks)
    assert again.batch == N
    assert torch.equal(load_scores(path).values, reference.scores.values)


def test_readings_hold_the_shift_and_what_is_beyond_the_floor(model: Model, reference: Reference) -> None:
    monitor = Monitor(model, reference, alpha=0.34)
    known = monitor.calibrate(images("flat", 1000, 2 * N), batch_size=N)
    assert len(known.excess) == len(known.shifts) == 2
    batch = images("neon", 500)
    reading = monitor.observe(batch)
    literal = discover(model, batch, steps=2, per_example=True)
    floor = reference.floor("spearman")
    assert floor is not None
    assert reading.shift == circuit_shift(reference.scores, literal)
    assert reading.excess == floor.excess(rows_of(literal))
    # One formula links the three.
    assert reading.excess.value == pytest.approx(
        1 - (1 - reading.shift) / (1 - reading.excess.floor), abs=1e-5
    )
    assert reading.alarm is (reading.excess.value > max(known.excess))
    assert monitor.to_dict()["statistic"] == "excess"


def test_a_log_is_taken_up_with_its_excess(model: Model, reference: Reference, tmp_path: Path) -> None:
    log = tmp_path / "readings.jsonl"
    first = Monitor(model, reference, rule="sequential", log=log)
    first.observe(images("flat", 700))
    again = Monitor(model, reference, rule="sequential", log=log)
    assert again.readings == first.readings
    assert again.observe(images("flat", 800)).e_value == first.observe(images("flat", 800)).e_value


def test_a_log_without_floor_says_how_to_go_on(model: Model, reference: Reference, tmp_path: Path) -> None:
    log = tmp_path / "readings.jsonl"
    Monitor(model, discover(model, images("flat", 0), steps=2), log=log).observe(images("flat", 700))
    with pytest.raises(InputError, match=r"belong to another monitor .* \(--reference-n 8\) resumes it"):
        Monitor(model, reference, log=log)


def test_batches_of_another_size_are_refused(model: Model, reference: Reference) -> None:
    monitor = Monitor(model, reference)
    with pytest.raises(InputError, match="holds 12 images, the batches of the reference 8"):
        monitor.observe(images("flat", 700, 12))
    with pytest.raises(InputError, match="holds 12 images, the batches of the reference 8"):
        monitor.calibrate(images("flat", 1000, 12 * 19), batch_size=12)
    with pytest.raises(InputError, match="fewer than the 8 of a batch"):
        discover_reference(model, images("flat", 0, 5), batch=8)
    with pytest.raises(InputError, match="it needs 2 or more"):
        discover_reference(model, images("flat", 0, 5), batch=1)


def test_drift_tests_stand_beside_and_decide_nothing(model: Model, reference: Reference) -> None:
    plain = Monitor(model, reference, rule="sequential").observe(images("neon", 500))
    tested = Monitor(model, reference, rule="sequential", drift=images("flat", 2000, 40)).observe(
        images("neon", 500)
    )
    assert set(tested.drift) == {"ks", "mmd", "c2st"}
    assert all(0 < each <= 1 for each in tested.drift.values())
    assert plain.drift == {}
    assert (plain.alarms, plain.e_value) == (tested.alarms, tested.e_value)


def test_domains_are_measured_beyond_the_floor(model: Model, reference: Reference) -> None:
    (found,) = measure_domains(model, reference, {"neon": images("neon", 50, 20)})
    assert (found.n, found.n_labelled) == (N, 20)
    assert set(found.excess) == set(found.shifts)
    assert found.statistic("spearman") == found.excess["spearman"]
    assert found.statistic("ac") == found.baselines["ac"]
