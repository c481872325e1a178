"""The monitor on a small vision transformer: readings, rules, the log, and what it refuses."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import ks_2samp
from small_vits import untrained_vit
from torch import nn

from assay.analyses.generalization import baselines, calibrate_threshold, circuit_shift, rank_shift_map
from assay.analyses.generalization.alarms import (
    CIRCUIT,
    OUTPUTS,
    AlarmRules,
    Calibration,
    SequentialTest,
    conformal_p_value,
)
from assay.analyses.generalization.monitor import Monitor, Reading
from assay.circuits import EdgeScores
from assay.core.errors import (
    FileFormatError,
    GraphMismatchError,
    InputError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes


N = 12


def images(domain: str, start: int, n: int = N) -> ImageTask:
    return draw_shapes(domain, n, start=start).with_transform(EvalTransform())


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit(seed=1))


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, images("flat", 0, 24), steps=2)


@pytest.fixture
def calibrated(model: Model, reference: EdgeScores) -> Monitor:
    monitor = Monitor(model, reference, alpha=0.2)
    monitor.calibrate(draw_shapes("flat", 9 * N, start=1000).with_transform(EvalTransform()), batch_size=N)
    return monitor


def test_a_reading_is_one_discovery_with_the_settings_of_the_reference(
    model: Model, reference: EdgeScores
) -> None:
    batch = images("neon", 500)
    known = images("flat", 100)
    reading = Monitor(model, reference, labelled=known).observe(batch)
    literal = discover(model, batch, steps=2, per_example=True)
    assert reading.shift == circuit_shift(reference, literal)
    expected = rank_shift_map(reference, literal)
    torch.testing.assert_close(torch.tensor(reading.layers, dtype=torch.float64), expected, atol=1e-6, rtol=0)
    logits, known_logits = run_model(model, batch), run_model(model, known)
    assert known.labels is not None
    assert reading.baselines["ac"] == pytest.approx(baselines.average_confidence(logits), rel=1e-12)
    assert reading.baselines["ane"] == pytest.approx(baselines.average_negative_entropy(logits), rel=1e-12)
    assert reading.baselines["atc"] == baselines.atc(known_logits, known.labels, logits)
    assert (reading.n, reading.domain, reading.data_hash) == (N, "neon", batch.data_hash)
    assert reading.alarm is None


def test_a_batch_costs_one_discovery_and_one_forward_pass(model: Model, reference: EdgeScores) -> None:
    calls: list[int] = []
    counted = [each for each in model.module.modules() if isinstance(each, nn.Linear)][5]
    handle = counted.register_forward_hook(lambda *_: calls.append(1))

    def cost_of(run: Callable[[], object]) -> int:
        before = len(calls)
        run()
        return len(calls) - before

    try:
        batch = images("neon", 500)
        alone = cost_of(lambda: discover(model, batch, steps=2, per_example=True))
        monitor = Monitor(model, reference, outputs=images("flat", 700, 16))
        assert alone > 2
        assert cost_of(lambda: monitor.observe(batch)) == alone + 1
    finally:
        handle.remove()


def test_image_sets_and_tensors_read_the_same(model: Model, reference: EdgeScores) -> None:
    raw = draw_shapes("sketch", N, start=40)
    monitor = Monitor(model, reference, transform=EvalTransform())
    shifts = {
        monitor.observe(raw).shift,
        monitor.observe(raw.with_transform(EvalTransform())).shift,
        monitor.observe(raw.with_transform(EvalTransform()).clean).shift,
    }
    assert len(shifts) == 1


def test_the_threshold_decides_where_there_is_one(model: Model, reference: EdgeScores) -> None:
    shift = Monitor(model, reference).observe(images("neon", 500)).shift
    low = calibrate_threshold({"fog": shift / 2}, {"fog": 0.8}, 0.8)
    assert Monitor(model, reference, low).observe(images("neon", 500)).alarm is True
    above = Monitor(model, reference, threshold=shift * 1.01)
    assert above.observe(images("neon", 500)).alarm is False
    assert above.rules.rule == "threshold"
    assert "is unknown" in above.rules.guarantee


def test_calibration_makes_the_rate_of_a_threshold_known(model: Model, reference: EdgeScores) -> None:
    monitor = Monitor(model, reference, threshold=0.0)
    known = monitor.calibrate(images("flat", 1000, 4 * N), batch_size=N)
    assert len(known.shifts) == 4
    # Every shift is above 0: what sampling alone does.
    assert "4 of 4 batches of 12 images in distribution exceed the threshold" in monitor.rules.guarantee
    assert "interval 0.4 to 1." in monitor.rules.guarantee


def test_known_batches_are_disjoint_and_as_many_as_asked(model: Model, reference: EdgeScores) -> None:
    pool = images("flat", 1000, 5 * N + 3)
    monitor = Monitor(model, reference, alpha=0.5, seed=4)
    found = monitor.calibrate(pool, batch_size=N, n_batches=2)
    order = stream(4, "monitor/calibration").permutation(pool.n)
    for place, shift in enumerate(found.shifts):
        rows = order[place * N : (place + 1) * N].tolist()
        assert shift == circuit_shift(reference, discover(model, pool.subset(rows), steps=2))


def test_a_shifted_domain_raises_both_alarms_and_a_known_one_does_not(calibrated: Monitor) -> None:
    quiet = calibrated.observe(images("flat", 3000))
    assert quiet.p_value is not None
    assert quiet.alarm is (quiet.p_value <= 0.2)
    found = [calibrated.observe(images("neon", 4000 + N * place)) for place in range(12)]
    assert sum(bool(each.alarm) for each in found) >= 8
    for each in found:
        assert each.p_value is not None
        assert each.alarm is (each.p_value <= 0.2 + 1e-12)
    assert calibrated.rules.sequential.alarm(0.2)
    assert found[-1].e_value is not None
    assert found[-1].e_value > 5
    assert calibrated.rules.rule == "conformal"
    assert "at most 0.2" in calibrated.rules.guarantee


def test_outputs_are_compared_with_those_on_known_images_class_by_class(
    model: Model, reference: EdgeScores
) -> None:
    known = images("flat", 5000, 20)
    monitor = Monitor(model, reference, outputs=known, alpha=0.4)
    pool = images("flat", 1000, 4 * N)
    found = monitor.calibrate(pool, batch_size=N)
    p = run_model(model, known).double().softmax(1).numpy()

    def literal(task: ImageTask) -> float:
        q = run_model(model, task).double().softmax(1).numpy()
        return max(ks_2samp(p[:, c], q[:, c]).statistic for c in range(p.shape[1]))

    order = stream(0, "monitor/calibration").permutation(pool.n)
    for place, shift in enumerate(found.output_shifts):
        rows = order[place * N : (place + 1) * N].tolist()
        assert shift == pytest.approx(literal(pool.subset(rows)))
    batch = images("neon", 100)
    reading = monitor.observe(batch, page="monitor.html")
    assert reading.output_shift == pytest.approx(literal(batch))
    assert reading.output_p_value == conformal_p_value(found.output_shifts, reading.output_shift)
    assert reading.page == "monitor.html"


def test_either_statistic_raises_the_alarm_at_half_the_rate_and_the_reading_says_which() -> None:
    known = tuple(float(each) for each in range(9))
    calibration = Calibration(shifts=known, output_shifts=tuple(each / 10 for each in known), n=N)
    rules = AlarmRules(alpha=0.2).calibrated(calibration)
    assert {name: level for name, (_, level) in rules.tests.items()} == {CIRCUIT: 0.1, OUTPUTS: 0.1}
    assert rules.limits == {CIRCUIT: 8.0, OUTPUTS: 0.8}

    def decision(rules: AlarmRules, *shifts: float) -> tuple[object, ...]:
        found = rules.verdict(*shifts)
        return tuple(found[name] for name in ("alarm", "decided_by", "value", "limit"))

    assert decision(rules, 7.5, 0.35) == (False, CIRCUIT, 7.5, 8.0)
    assert decision(rules, 0.5, 0.85) == (True, OUTPUTS, 0.85, 0.8)
    verdict = rules.verdict(0.5, 0.85)
    assert (verdict["p_value"], verdict["output_p_value"]) == (0.9, 0.1)
    assert decision(rules, 9.0, 0.0) == (True, CIRCUIT, 9.0, 8.0)
    few = replace(rules, alpha=0.1)  # nine batches serve one test at 0.1, not two at 0.05
    assert list(few.tests) == [CIRCUIT]
    assert "19 known batches" in few.guarantee
    assert decision(few, 9.0, 0.0)[0] is True
    assert "at most 0.2" in rules.guarantee


def test_batches_of_another_size_are_judged_by_known_ones_of_that_size(
    model: Model, reference: EdgeScores, tmp_path: Path
) -> None:
    def start() -> Monitor:
        return Monitor(model, reference, alpha=0.3, log=tmp_path / "readings.jsonl")

    monitor = start()
    monitor.calibrate(images("flat", 1000, 4 * N), batch_size=N)
    small = monitor.calibrate(images("flat", 2000, 20), batch_size=5)
    monitor.observe(images("neon", 100))
    reading = monitor.observe(images("neon", 300, 5))
    assert reading.p_value == conformal_p_value(small.shifts, reading.shift)
    assert reading.e_value == monitor.readings[0].e_value  # shifts of other sizes do not join the bet
    again = start()
    assert again.readings == monitor.readings
    third = [each.observe(images("flat", 400, 5)) for each in (again, monitor)]
    assert third[0].p_value == third[1].p_value
    with pytest.raises(InputError, match="has been calibrated"):
        monitor.calibrate(images("flat", 2000, 20), batch_size=5)


def test_the_e_value_is_that_of_the_test_on_the_shifts(calibrated: Monitor) -> None:
    assert calibrated.rules.calibration is not None
    test = SequentialTest.start(calibrated.rules.calibration.shifts)
    for index in range(3):
        reading = calibrated.observe(images("sketch", 100 * index))
        test = test.observe(reading.shift, 1 - stream(0, f"monitor/tie/{index}").random())
        assert reading.e_value == pytest.approx(math.exp(test.log_capital))


def test_the_sequential_rule_needs_no_known_batches(model: Model, reference: EdgeScores) -> None:
    monitor = Monitor(model, reference, rule="sequential")
    reading = monitor.observe(images("flat", 700))
    assert reading.alarm is False
    assert reading.e_value is not None
    assert "over all batches together" in monitor.rules.guarantee


# ------------------------------------------------------------------------------------------------- the log


def test_a_monitor_goes_on_where_its_log_ends(model: Model, reference: EdgeScores, tmp_path: Path) -> None:
    def start(path: Path | None) -> Monitor:
        return Monitor(model, reference, alpha=0.3, log=path)

    whole = start(None)
    whole.calibrate(images("flat", 1000, 4 * N), batch_size=N)
    expected = [whole.observe(images("neon", 100 * place)) for place in range(4)]
    path = tmp_path / "readings.jsonl"
    first = start(path)
    first.calibrate(images("flat", 1000, 4 * N), batch_size=N)
    for place in range(2):
        first.observe(images("neon", 100 * place), sources=[f"{place}.png"])
    first.skip("broken.png")
    with path.open("a") as file:
        file.write('{"kind": "reading", "index": 2, "shi')  # killed while it wrote
    second = start(path)
    assert second.calibrations == first.calibrations
    assert second.readings == first.readings
    assert second.done == {"0.png", "1.png", "broken.png"}
    for place in (2, 3):
        second.observe(images("neon", 100 * place))
    assert [each.skipped for each in second.readings] == [(), (), ("broken.png",), ()]
    for one, other in zip(second.readings, expected, strict=True):
        numbers = [(each.shift, each.p_value, each.e_value, each.alarm) for each in (one, other)]
        assert numbers[0] == numbers[1]
    assert len(start(path).readings) == 4


def test_the_log_of_another_monitor_is_refused(model: Model, reference: EdgeScores, tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    Monitor(model, reference, log=path).observe(images("flat", 100))
    with pytest.raises(InputError, match=r"another monitor \(different: distance\)"):
        Monitor(model, reference, distance="cosine", log=path)
    with pytest.raises(InputError, match="different: threshold"):
        Monitor(model, reference, threshold=0.3, log=path)
    path.unlink()
    Monitor(model, reference, outputs=images("flat", 500), log=path).observe(images("flat", 100))
    with pytest.raises(InputError, match=r"different: known_outputs\)"):
        Monitor(model, reference, outputs=images("flat", 600), log=path)
    path.write_text("no log\n")
    with pytest.raises(FileFormatError, match="line 1"):
        Monitor(model, reference, log=path)


def test_a_failed_start_leaves_no_log_that_refuses_the_next(
    model: Model, reference: EdgeScores, tmp_path: Path
) -> None:
    path = tmp_path / "readings.jsonl"
    with pytest.raises(InputError, match=rf"give 1 batches of {N}, but 19 are needed"):
        Monitor(model, reference, log=path).calibrate(images("flat", 1000), batch_size=N)
    assert not path.exists()
    Monitor(model, reference, alpha=0.5, log=path).calibrate(images("flat", 1000, 2 * N), batch_size=N)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["monitor", "calibration"]


def test_a_reading_survives_its_record(calibrated: Monitor) -> None:
    calibrated.skip("b.png")
    reading = calibrated.observe(images("neon", 100), sources=["a.png"])
    assert reading.skipped == ("b.png",)
    assert Reading.from_dict(json.loads(json.dumps(reading.to_dict(), allow_nan=False))) == reading


def test_the_document_is_plain_json_and_complete(calibrated: Monitor) -> None:
    calibrated.observe(images("neon", 100))
    document = json.loads(json.dumps(calibrated.to_dict(), allow_nan=False))
    assert document["schema"] == "assay-monitor/1"
    assert document["rule"] == "conformal"
    assert document["settings"]["steps"] == 2
    assert len(document["calibration"]["shifts"]) == 9
    assert document["limits"] == {CIRCUIT: sorted(document["calibration"]["shifts"])[-2]}  # k = 2 of 10
    assert len(document["readings"][0]["layers"]) == 5


# -------------------------------------------------------------------------------------------- what it refuses


def test_a_reference_of_another_model_is_refused(model: Model, reference: EdgeScores) -> None:
    with pytest.raises(GraphMismatchError, match="belong to different graphs"):
        Monitor(load_model(untrained_vit(layers=2)), reference)
    with pytest.raises(GraphMismatchError, match="models with different weights"):
        Monitor(load_model(untrained_vit(seed=0)), reference)
    with pytest.raises(InputError, match="lacks model, seed, method"):
        Monitor(model, EdgeScores(model.graph, reference.values))


def test_wrong_options_are_refused(model: Model, reference: EdgeScores) -> None:
    with pytest.raises(UnknownNameError, match="spearman"):
        Monitor(model, reference, distance="spearmen")
    with pytest.raises(UnknownNameError, match="sequential"):
        Monitor(model, reference, rule="sequentiel")
    with pytest.raises(InputError, match="alpha is 0"):
        Monitor(model, reference, alpha=0.0)
    with pytest.raises(InputError, match="the threshold is missing"):
        Monitor(model, reference, rule="threshold")
    with pytest.raises(InputError, match="threshold inf"):
        Monitor(model, reference, threshold=math.inf)
    confidence = calibrate_threshold({"a": 0.9}, {"a": 0.8}, 0.7, higher_is_shift=False)
    with pytest.raises(InputError, match="falls with shift, such as confidence"):
        Monitor(model, reference, threshold=confidence)
    with pytest.raises(InputError, match="needs known batches"):
        Monitor(model, reference, rule="conformal").observe(images("flat", 100))
    unlabelled = ImageTask(images=images("flat", 100).clean)
    with pytest.raises(InputError, match="no labels"):
        Monitor(model, reference, labelled=unlabelled)


def test_calibration_that_cannot_hold_is_refused(model: Model, reference: EdgeScores) -> None:
    monitor = Monitor(model, reference)
    with pytest.raises(InputError, match="19 are needed.* Give 228 images"):
        monitor.calibrate(images("flat", 1000, 5 * N), batch_size=N)
    monitor = Monitor(model, reference, alpha=0.5)
    monitor.observe(images("flat", 100))
    with pytest.raises(InputError, match="has observed batches"):
        monitor.calibrate(images("flat", 1000, 2 * N), batch_size=N)


def test_batches_that_cannot_be_compared_are_refused(calibrated: Monitor) -> None:
    with pytest.raises(InputError, match="the batch holds 11 images, the known batches 12"):
        calibrated.observe(images("flat", 100, 11))


def test_images_that_cannot_be_read_are_refused(model: Model, reference: EdgeScores) -> None:
    monitor = Monitor(model, reference)
    with pytest.raises(InputError, match="images of the reference"):
        monitor.observe(images("flat", 0, 24))
    with pytest.raises(ShapeError):
        monitor.observe(draw_shapes("flat", 4, size=48).with_transform(EvalTransform()))
    bad = images("flat", 100).clean.clone()
    bad[3, 0, 0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="row 3"):
        monitor.observe(bad)
    assert monitor.readings == []
