"""The observer inside a serving function: windows, threads, and what ends it."""

import threading

import numpy as np
import pytest
import torch
from small_vits import untrained_vit

from assay.analyses.generalization import Monitor, Observer, Reading
from assay.core.errors import InputError, ShapeError, TokenizationError
from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import EvalTransform, draw_shapes
from assay.tasks.prompt_set import draw_prompts


TRANSFORM = EvalTransform(resize=(32, 32))


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit(seed=1))


@pytest.fixture
def monitor(model: Model) -> Monitor:
    reference = discover(model, draw_shapes("flat", 8).task(TRANSFORM), steps=1)
    return Monitor(model, reference, threshold=0.0, transform=TRANSFORM)


def test_windows_are_those_of_a_monitor_that_is_given_the_batches(model: Model, monitor: Monitor) -> None:
    pixels = draw_shapes("neon", 9).pixels
    task = draw_shapes("neon", 9).task(TRANSFORM)
    readings: list[Reading] = []
    with Observer(monitor, readings.append, window=4) as observer:
        for each in pixels[:3]:
            assert observer.add(each) == 1
        assert observer.add(pixels[3:]) == 6  # one at a time or several
    assert (len(readings), observer.waiting, observer.dropped) == (2, 1, 0)
    twin = Monitor(model, monitor.reference_scores, threshold=0.0)
    for first, reading in zip((0, 4), readings, strict=True):
        expected = twin.observe(task.subset(torch.arange(first, first + 4)))
        assert reading.shift == pytest.approx(expected.shift, abs=1e-6)
    with Observer(twin, readings.append, window=4) as observer:
        observer.add(task.images[:4])  # normalised, as a service has them
    assert readings[2].shift == pytest.approx(readings[0].shift, abs=1e-6)


def test_threads_may_add_at_once_and_never_wait_for_a_discovery(monitor: Monitor) -> None:
    pixels = draw_shapes("neon", 40).pixels
    readings: list[Reading] = []
    observing, go_on = threading.Event(), threading.Event()

    def take(reading: Reading) -> None:
        readings.append(reading)
        observing.set()
        assert go_on.wait(60)

    with Observer(monitor, take, window=4) as observer:
        observer.add(pixels[:4])
        assert observing.wait(60)  # from here the observer's thread does nothing else
        threads = [threading.Thread(target=observer.add, args=(pixels[k : k + 9],)) for k in (4, 13, 22, 31)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
            assert not each.is_alive()
        assert observer.waiting == 36
        go_on.set()
    assert sum(each.n for each in readings) == 40


def test_a_full_queue_drops_and_counts(monitor: Monitor) -> None:
    pixels = draw_shapes("neon", 12).pixels
    observing, go_on = threading.Event(), threading.Event()

    def take(reading: Reading) -> None:
        observing.set()
        assert go_on.wait(60)

    with Observer(monitor, take, window=4, most_waiting=5) as observer:
        observer.add(pixels[:4])
        assert observing.wait(60)
        assert observer.add(pixels[:3]) == 3
        assert observer.add(pixels[:9]) == 2
        assert observer.dropped == 7
        go_on.set()


def test_an_error_of_the_callback_reaches_the_service(monitor: Monitor) -> None:
    def fail(reading: Reading) -> None:
        raise RuntimeError("the pager is off")

    observer = Observer(monitor, fail, window=4)
    observer.add(draw_shapes("neon", 4).pixels)
    observer._thread.join(60)
    with pytest.raises(RuntimeError, match="the pager is off"):
        observer.add(draw_shapes("neon", 1).pixels)
    with pytest.raises(RuntimeError, match="the pager is off"):
        observer.close()


@pytest.mark.filterwarnings("ignore:Spearman correlation is undefined")  # of a constant vector: the case
def test_inputs_alike_are_passed_over_and_bad_ones_refused_at_once(monitor: Monitor) -> None:
    readings: list[Reading] = []
    with Observer(monitor, readings.append, window=4) as observer:
        observer.add(np.zeros((4, 32, 32, 3), np.uint8))
        observer.add(draw_shapes("neon", 4).pixels)
        for bad, error, message in (
            (np.zeros((32, 32, 3)), ShapeError, "got a ndarray float64"),
            (torch.zeros(32, 32), ShapeError, r"got a Tensor torch.float32 \(32, 32\)"),
            (np.zeros((16, 16, 3), np.uint8), ShapeError, "16"),
            (torch.zeros(3, 32, 32), ShapeError, "one observer takes inputs of one form"),
            ("a prompt", TokenizationError, "tokenizer"),
        ):
            with pytest.raises(error, match=message):
                observer.add(bad)
    assert (len(readings), observer.passed_over) == (1, 4)
    with pytest.raises(InputError, match="is closed"):
        observer.add(draw_shapes("neon", 1).pixels)


def test_prompts_are_observed_too(monitor: Monitor) -> None:
    mini = load_model("mini")
    known = draw_prompts("task:ioi", mini, n=8, seed=0, name="a")
    watching = Monitor(mini, discover(mini, known.task(mini), steps=1))
    readings: list[Reading] = []
    with Observer(watching, readings.append, window=4) as observer:
        observer.add(list(draw_prompts("task:ioi", mini, n=3, seed=0, name="b").prompts))
        with pytest.raises(TokenizationError):
            observer.add("zyzzyva 🦆")
        observer.add(draw_prompts("task:ioi", mini, n=1, seed=0, name="c").prompts[0])
    assert [each.n for each in readings] == [4]


def test_the_window_comes_from_the_calibration(model: Model, monitor: Monitor) -> None:
    with pytest.raises(InputError, match="pass window="):
        Observer(monitor, print)
    with pytest.raises(InputError, match="expected 2 inputs or more"):
        Observer(monitor, print, window=1)
    monitor.calibrate(draw_shapes("flat", 8, start=1000).task(), batch_size=4)
    with pytest.raises(InputError, match="window is 3, but the known batches have 4"):
        Observer(monitor, print, window=3)
    with Observer(monitor, print) as observer:
        assert observer.window == 4
