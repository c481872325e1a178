"""A monitor whose images are streamed from files says what it says of the same images in memory."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_vits import untrained_vit

from assay.analyses.generalization import (
    DomainEvaluation,
    calibrate_on_corruptions,
    discover_reference,
    inspection,
    measure_domains,
)
from assay.analyses.generalization.domains import EvaluationSettings
from assay.analyses.generalization.monitor import Monitor
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes, find_domains
from assay.tasks.image_reading import Pictures


N = 8
TRANSFORM = EvalTransform(resize=(32, 32))
KEYS = ("gaussian-noise-5", "cartoon")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit(seed=1))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageTask, ImageTask]:
    """The same 80 images, in memory and streamed."""
    root = tmp_path_factory.mktemp("images") / "flat"
    drawn = draw_shapes("flat", 80)
    assert drawn.labels is not None
    for number, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        path = root / str(label.item()) / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    lazy = find_domains(root)["flat"].with_transform(TRANSFORM)
    return lazy.held(), lazy


def log_of(model: Model, known: ImageTask, path: Path) -> list[dict[str, Any]]:
    """The lines that a monitor writes, without times and the hash of the images behind the reference."""
    reference = discover_reference(model, known.subset(range(4 * N)), batch=N, steps=1)
    rest = known.subset(range(4 * N, 80))
    monitor = Monitor(model, reference, labelled=rest, alpha=0.3, transform=TRANSFORM, log=path)
    monitor.calibrate(rest.subset(range(4 * N)), batch_size=N)
    for start in (4 * N, 5 * N):
        monitor.observe(rest.subset(range(start, start + N)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["reference"]["task"].pop("data_hash")
    lines[0].pop("id")
    for line in lines:
        line.pop("time", None)
        line.pop("seconds", None)
    return lines


def test_the_log_of_a_monitor_is_that_of_images_in_memory(
    model: Model, sources: tuple[ImageTask, ImageTask], tmp_path: Path
) -> None:
    held, streamed = (
        log_of(model, known, tmp_path / f"{kind}.jsonl")
        for kind, known in zip(("held", "streamed"), sources, strict=True)
    )
    assert [line["kind"] for line in streamed] == ["monitor", "calibration", "reading", "reading"]
    assert streamed == held
    assert held[2]["baselines"]["atc"] is not None


def test_corrupted_domains_have_equal_numbers(model: Model, sources: tuple[ImageTask, ImageTask]) -> None:
    held, streamed = (
        calibrate_on_corruptions(
            model,
            discover_reference(
                model,
                known.subset(range(4 * N)),
                batch=N,
                steps=1,
            ),
            known.subset(range(4 * N, 60)),
            labelled=known.subset(range(60, 80)),
            corruptions=KEYS,
            transform=TRANSFORM,
        )
        for known in sources
    )
    assert streamed.known == held.known
    assert streamed.known[0].n < streamed.known[0].n_labelled


class Counted(Pictures):
    """Pictures that count how often each is read."""

    def __init__(self, pictures: Pictures) -> None:
        super().__init__(len(pictures))
        self.pictures, self.reads = pictures, Counter[int]()

    def name(self, row: int) -> str:
        return self.pictures.name(row)

    def content(self, row: int) -> Any:
        self.reads[row] += 1
        return self.pictures.content(row)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        return self.pictures.marks(rows)


def test_images_are_decoded_once_for_all_corruptions(
    model: Model, sources: tuple[ImageTask, ImageTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = discover_reference(model, sources[1].subset(range(N)), batch=N, steps=1)
    counted = Counted(sources[1].source)
    images = replace(sources[1], source=counted).subset([*range(59, 39, -1)])

    def shifts() -> DomainEvaluation:
        counted.reads.clear()
        return calibrate_on_corruptions(model, reference, images, corruptions=KEYS, transform=TRANSFORM)

    held = shifts()
    assert counted.reads == dict.fromkeys(range(40, 60), 1)
    monkeypatch.setattr(
        inspection, "HELD", 0
    )  # too large to be held: once for each domain, and for its sample
    assert shifts().known == held.known
    reads = [counted.reads[row] for row in range(41, 60)]  # without 40, which tells the size
    assert sum(reads) <= len(KEYS) * (19 + N + 1)


def test_a_stream_is_a_labelled_domain(model: Model, sources: tuple[ImageTask, ImageTask]) -> None:
    held, streamed = sources
    scores = discover_reference(model, held.with_transform(TRANSFORM).subset(range(N)), batch=N, steps=1)
    parts = [each.parts(3, seed=2)[1] for each in (held, streamed)]
    assert [each.domain for each in parts] == ["flat/2", "flat/2"]
    found = [
        measure_domains(
            model,
            scores,
            {"flat": each.sample(20, seed=1)},
            settings=EvaluationSettings(n=N),
            transform=TRANSFORM,
        )
        for each in parts
    ]
    assert found[0] == found[1]
