"""The monitor on a small vision transformer: reference, readings, rules, the log, and what it refuses."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import ks_2samp
from small_vits import untrained_vit

from assay.analyses.generalization import (
    baselines,
    calibrate_threshold,
    circuit_shift,
    discover_reference,
    rank_shift_map,
)
from assay.analyses.generalization.alarms import (
    CIRCUIT,
    OUTPUTS,
    AlarmRules,
    Calibration,
    SequentialTest,
    conformal_p_value,
)
from assay.analyses.generalization.inspection import inspect_model
from assay.analyses.generalization.monitor import Monitor, append_line, read_lines
from assay.circuits import EdgeScores
from assay.core.errors import (
    FileFormatError,
    GraphMismatchError,
    InputError,
    NonFiniteError,
    OutputError,
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
    monitor.calibrate(images("flat", 1000, 9 * N), batch_size=N)
    return monitor


# ---- readings -----------------------------------------------------------------------------------


def test_the_reference_is_the_mean_of_the_circuits_of_its_batches(model: Model) -> None:
    n = 8
    found = discover_reference(model, images("flat", 0, 2 * n + 3), batch=n, steps=2)
    alone = [discover(model, images("flat", n * place, n), steps=2) for place in range(2)]
    mean = torch.stack([each.values.double() for each in alone]).mean(0)
    torch.testing.assert_close(found.values.double(), mean, atol=1e-6, rtol=1e-5)
    record = found.provenance
    assert (record["batches"], record["batch"], record["task"]["n"], record["steps"]) == (2, n, 2 * n, 2)
    single = discover_reference(model, images("flat", 0, n), batch=n, steps=2)
    assert torch.equal(single.values, alone[0].values)
    assert single.provenance == alone[0].provenance
    with pytest.raises(InputError, match="fewer than the 8 of a batch"):
        discover_reference(model, images("flat", 0, 5), batch=n)


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
    assert reading.baselines["ac"] == pytest.approx(baselines.average_confidence(logits), rel=1e-12)
    assert reading.baselines["ane"] == pytest.approx(baselines.average_negative_entropy(logits), rel=1e-12)
    assert reading.baselines["atc"] == baselines.atc(known_logits, known.labels, logits)
    shown = inspect_model(model, batch, ["features"])
    assert reading.baselines["rankme"] == baselines.effective_rank(shown.spectrum)
    assert (reading.n, reading.domain, reading.data_hash) == (N, "neon", batch.data_hash)
    assert reading.alarm is None
    held = ImageTask(images=batch.clean)
    assert Monitor(model, reference).observe(held).shift == reading.shift


def test_outputs_are_compared_with_those_on_known_images_class_by_class(
    model: Model, reference: EdgeScores
) -> None:
    known, pool, batch = images("flat", 5000, 20), images("flat", 1000, 4 * N), images("neon", 100)
    monitor = Monitor(model, reference, outputs=known, alpha=0.4)
    found = monitor.calibrate(pool, batch_size=N)
    p = run_model(model, known).double().softmax(1).numpy()

    def literal(task: ImageTask) -> float:
        q = run_model(model, task).double().softmax(1).numpy()
        return max(ks_2samp(p[:, c], q[:, c]).statistic for c in range(p.shape[1]))

    # Known batches are disjoint, in random order.
    order = stream(0, "monitor/calibration").permutation(pool.n)
    for place, (shift, moved) in enumerate(zip(found.shifts, found.output_shifts, strict=True)):
        part = pool.subset(order[place * N : (place + 1) * N].tolist())
        assert moved == pytest.approx(literal(part))
        assert shift == circuit_shift(reference, discover(model, part, steps=2))
    reading = monitor.observe(batch, page="monitor.html")
    assert reading.output_shift == pytest.approx(literal(batch))
    assert reading.output_p_value == conformal_p_value(found.output_shifts, reading.output_shift)
    assert reading.page == "monitor.html"


# ---- rules --------------------------------------------------------------------------------------


def test_the_threshold_decides_and_calibration_makes_its_rate_known(
    model: Model, reference: EdgeScores
) -> None:
    batch = images("neon", 500)
    shift = Monitor(model, reference).observe(batch).shift
    low = calibrate_threshold({"fog": shift / 2}, {"fog": 0.8}, 0.8)
    assert Monitor(model, reference, low).observe(batch).alarm is True
    above = Monitor(model, reference, threshold=shift * 1.01)
    assert (above.observe(batch).alarm, above.rules.rule) == (False, "threshold")
    assert "is unknown" in above.rules.guarantee
    monitor = Monitor(model, reference, threshold=0.0)
    monitor.calibrate(images("flat", 1000, 4 * N), batch_size=N, n_batches=4)
    # Every shift is above 0: what sampling alone does.
    assert "4 of 4 batches of 12 images in distribution exceed the threshold" in monitor.rules.guarantee
    assert "interval 0.4 to 1." in monitor.rules.guarantee


def test_a_shifted_domain_raises_both_alarms_and_a_known_one_does_not(calibrated: Monitor) -> None:
    quiet = calibrated.observe(images("flat", 3000))
    assert quiet.alarm is (quiet.p_value <= 0.2)
    found = [calibrated.observe(images("neon", 4000 + N * place)) for place in range(12)]
    assert sum(bool(each.alarm) for each in found) >= 8
    assert all(each.alarm is (each.p_value <= 0.2 + 1e-12) for each in found)
    assert calibrated.rules.sequential.alarm(0.2)
    assert found[-1].e_value > 5
    # The e-value is that of the test on the shifts.
    test = SequentialTest(scores=calibrated.rules.calibration.shifts)
    for index, reading in enumerate(calibrated.readings):
        test = test.observe(reading.shift, 1 - stream(0, f"monitor/tie/{index}").random())
        assert reading.e_value == pytest.approx(math.exp(test.log_capital))


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


# ---- the log ------------------------------------------------------------------------------------


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
    known = images("flat", 500)
    Monitor(model, reference, outputs=known, log=path).observe(images("flat", 100))
    for changed in ({"distance": "cosine"}, {"threshold": 0.3}, {"outputs": images("flat", 600)}):
        name = {"outputs": "known_outputs"}.get(*changed, *changed)
        with pytest.raises(InputError, match=rf"another monitor \(different: {name}\)"):
            Monitor(model, reference, **{"outputs": known, **changed}, log=path)


@pytest.mark.parametrize("tail", ["x" * 10000, '{"kind": "reading"}'])
def test_a_torn_last_line_is_ignored_and_then_cut_off(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    assert read_lines(path) == []
    append_line(path, "monitor", {"b": [1.5, "ü"], "bad": math.nan})
    for expected in ([("monitor", {"b": [1.5, "ü"], "bad": None})], []):
        with path.open("a", encoding="utf-8") as file:
            file.write(tail)
        assert read_lines(path) == expected
        append_line(path, "reading", {"index": 0})
        assert read_lines(path) == [*expected, ("reading", {"index": 0})]
        path.write_text("")  # a file that is only a torn line starts anew
    for line in ("no json", "[1]", '{"no": "kind"}'):
        path.write_text(f'{{"kind": "monitor"}}\n{line}\n')
        with pytest.raises(FileFormatError, match="line 2 of .*log.jsonl"):
            read_lines(path)
    with pytest.raises(OutputError, match="cannot write to"):
        append_line(path / "log.jsonl", "monitor", {})


# ---- what it refuses ----------------------------------------------------------------------------


def test_what_cannot_be_watched_is_refused(model: Model, reference: EdgeScores) -> None:
    confidence = calibrate_threshold({"a": 0.9}, {"a": 0.8}, 0.7, higher_is_shift=False)
    refused: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (UnknownNameError, "spearman", {"distance": "spearmen"}),
        (UnknownNameError, "sequential", {"rule": "sequentiel"}),
        (InputError, "alpha is 0", {"alpha": 0.0}),
        (InputError, "the threshold is missing", {"rule": "threshold"}),
        (InputError, "threshold inf", {"threshold": math.inf}),
        (InputError, "falls with shift, such as confidence", {"threshold": confidence}),
        (InputError, "no labels", {"labelled": ImageTask(images=images("flat", 100).clean)}),
    )
    for error, message, arguments in refused:
        with pytest.raises(error, match=message):
            Monitor(model, reference, **arguments)
    with pytest.raises(GraphMismatchError, match="belong to different graphs"):
        Monitor(load_model(untrained_vit(layers=2)), reference)
    with pytest.raises(GraphMismatchError, match="have different weights"):
        Monitor(load_model(untrained_vit(seed=0)), reference)
    with pytest.raises(InputError, match="lacks model, seed, method"):
        Monitor(model, EdgeScores(model.graph, reference.values))


def test_batches_that_cannot_be_compared_are_refused(model: Model, reference: EdgeScores) -> None:
    with pytest.raises(InputError, match="needs known batches"):
        Monitor(model, reference, rule="conformal").observe(images("flat", 100))
    sequential = Monitor(model, reference, rule="sequential").observe(images("flat", 700))
    assert (sequential.alarm, sequential.decided_by, sequential.limit) == (False, "e-value", 20)
    monitor = Monitor(model, reference, alpha=0.5)
    both = Monitor(model, reference, outputs=images("flat", 5000))
    with pytest.raises(InputError, match="19 are needed for the circuit's shift and 39 for both .* 228 im"):
        both.calibrate(images("flat", 1000, 5 * N), batch_size=N)
    with pytest.raises(InputError, match="images of the reference"):
        monitor.observe(images("flat", 0, 24))
    with pytest.raises(ShapeError):
        monitor.observe(draw_shapes("flat", 4, size=48).with_transform(EvalTransform()))
    bad = images("flat", 100).clean.clone()
    bad[3, 0, 0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="row 3"):
        monitor.observe(ImageTask(images=bad))
    assert monitor.readings == []
    pool = images("flat", 1000, 2 * N)
    monitor.calibrate(pool, batch_size=N)
    with pytest.raises(InputError, match="the batch holds 11 images, the known batches 12"):
        monitor.observe(images("flat", 100, 11))
    with pytest.raises(InputError, match="has been calibrated"):
        monitor.calibrate(pool, batch_size=N)
