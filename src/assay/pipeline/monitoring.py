"""What a monitor starts from: a directory, a reference circuit, known images; its state for Prometheus."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from assay.analyses.generalization.alarms import CIRCUIT, OUTPUTS
from assay.analyses.generalization.monitor import Monitor, discover_reference
from assay.circuits import EdgeScores, load_scores
from assay.core.errors import InputError, OutputError, writing
from assay.core.random import stream
from assay.core.record import record_id
from assay.models import Model
from assay.pipeline.stage import Progress
from assay.tasks import ImageTask, find_domains, is_shapes, is_table, one_domain
from assay.tasks.image_source import FIRST_KNOWN


READINGS, DOCUMENT, PAGE = "readings.jsonl", "monitor.json", "monitor.html"  # in the directory of a monitor
USUAL_REFERENCE = 1024  # images of a reference, unless calibration needs them


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep a monitor's directory from a second process while entered; makes it if need be.

    Raises:
        OutputError: If another process holds it, or it cannot be written.
    """
    with writing(f"write to {out}", "choose another directory"):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("ab")
        alone = lock_descriptor(file.fileno(), blocking=False)
    with file:
        if not alone:
            raise OutputError(f"{out} is in use by another monitor; stop it, or choose another directory")
        yield


def is_images(source: str) -> bool:
    """Whether a reference is images rather than a file of edge scores."""
    return is_shapes(source) or is_table(source) or Path(source).is_dir()


@dataclass(frozen=True, kw_only=True)
class KnownImages:
    """Where a reference circuit and further images in distribution come from.

    Attributes:
        source: File of edge scores, folder of images, or `shapes:DOMAIN`.
        known: Source of further images. None: those of `source` that the circuit does not use.
        steps: Of the circuit, by `eap-ig-inputs` and the midpoint rule. None: as of a file's circuit, else 5.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
        cache: Folder of circuits, answers and domains that were measured before.
        progress: Called with the name of a stage, what is done, and the total.
    """

    source: str
    known: str | None
    steps: int | str | None
    seed: int
    skip_bad: bool
    cache: Path
    progress: Progress

    def reference(
        self, model: Model, window: int, spare: int, n: int | None = None, least: int = 0
    ) -> tuple[EdgeScores, ImageTask | None, ImageTask | None]:
        """The reference circuit, read, discovered or taken from the cache, and images in distribution.

        Args:
            model: The deployed model.
            window: Images of a batch, 2 or more.
            spare: Windows that the reference leaves of its own images, or that are drawn besides it.
            n: Images of the reference, at most; whole windows are used. None: 1,024 or four windows, or all
                that `spare` leaves.
            least: Windows of its own images that must be left where `known` is None.

        Returns:
            The circuit; the images that it rests on, None where it came from a file; further images in
            distribution, None where there are none.

        Raises:
            InputError: For too few images, several domains, or steps that differ from those of a file's
                circuit.
            FileFormatError: If something cannot be read.
            GraphMismatchError: For a file of edge scores of another model.
        """
        usual = max(4, USUAL_REFERENCE // window) if n is None else n // window

        def images_of(place: str) -> ImageTask:
            size = window * (spare + (max(1, usual) if is_images(self.source) else 1))
            found = find_domains(place, seed=self.seed, start=FIRST_KNOWN, drawn=size)
            images = one_domain(found, place).for_model(model)
            return images.readable() if self.skip_bad else images

        if self.known == self.source:
            raise InputError(f"known and reference are both {self.known}; remove known: images are split")
        pool = None if self.known is None else images_of(self.known)
        if not is_images(self.source):
            circuit = load_scores(self.source, graph=model.graph)
            recorded = circuit.provenance.get("steps")
            if self.steps not in (None, recorded):
                text = f"steps is {self.steps}, but the circuit of {self.source} was made with {recorded}"
                raise InputError(f"{text}; remove steps, or give the images of the reference")
            return circuit, None, pool
        images = images_of(self.source)
        if pool is None and images.n // window <= least:
            text = f"{images.n} known images are {images.n // window} batches of {window}; the alarm needs"
            text += f" {spare} for both shifts, {least} for the circuit's alone, and the reference 1"
            raise InputError(f"{text}. Give {window * (spare + 1)} images, smaller batches or a larger alpha")
        free = images.n // window - (spare if n is None and self.known is None else 0)
        size = window * max(1, min(usual, free))
        order = stream(self.seed, "monitor/reference").permutation(images.n)
        if pool is None and images.n > size:
            pool = images.subset(order[size:].tolist())
        used = images.subset(order[:size].tolist())
        settings: dict[str, Any] = {"steps": self.steps or 5, "quadrature": "midpoint", "seed": self.seed}
        record = {"model": model.describe(), "images": [used.source_hash, used.domain], "batch": window}
        path = self.cache / f"reference-{record_id('reference', record | settings)}.safetensors"
        if path.is_file():
            return load_scores(path, graph=model.graph), used, pool
        self.progress("reference", 0, 1)
        circuit = discover_reference(model, used, batch=window, **settings)
        self.cache.mkdir(parents=True, exist_ok=True)
        circuit.save(path)
        self.progress("reference", 1, 1)
        return circuit, used, pool


def parted(pool: ImageTask, spare: int, seed: int) -> tuple[ImageTask | None, ImageTask]:
    """Known images to compare outputs with, and at least `spare` others to calibrate on."""
    size = min(USUAL_REFERENCE, pool.n // 5, pool.n - spare)
    if size < 2:
        return None, pool
    order = stream(seed, "monitor/outputs").permutation(pool.n)
    return pool.subset(order[:size].tolist()), pool.subset(order[size:].tolist())


def metrics_text(monitor: Monitor, name: str) -> bytes:
    """The state of a monitor in the Prometheus text format.

    Args:
        monitor: That of a run.
        name: What to call it (label `monitor`).

    Returns:
        Lines `assay_monitor_NAME{monitor="...",model="...",distance="..."} VALUE` with their type, in UTF-8;
        docs/howto/alerts.md says what they mean. Numbers that do not exist are left out.
    """
    readings, rules = monitor.readings, monitor.rules
    found: dict[str, float | None] = {
        "batches_total": len(readings),
        "images_total": sum(each.n for each in readings),
        "unreadable_files_total": sum(len(each.skipped) for each in readings) + len(monitor.skipped),
        "alarms_total": sum(bool(each.alarm) for each in readings),
        "threshold": rules.threshold.value if rules.threshold else None,
        "conformal_limit": rules.limits.get(CIRCUIT),
        "output_limit": rules.limits.get(OUTPUTS),
    }
    baselines: Mapping[str, float] = {}
    for last in readings[-1:]:
        names = ("shift", "output_shift", "output_p_value", "alarm", "p_value", "e_value")
        found |= {key: getattr(last, key) for key in names}
        found["last_reading_timestamp_seconds"] = datetime.fromisoformat(last.time).timestamp()
        baselines = last.baselines
    facts = {"monitor": name, "model": monitor.model.id, "distance": monitor.distance}
    labels = ",".join(f'{label}="{_escaped(each)}"' for label, each in facts.items())
    samples = [(key, "", value) for key, value in found.items() if value is not None]
    samples += [("baseline", f',baseline="{_escaped(key)}"', value) for key, value in baselines.items()]
    lines: dict[str, None] = {}  # ordered, and each type once
    for key, more, value in samples:
        lines[f"# TYPE assay_monitor_{key} {'counter' if key.endswith('_total') else 'gauge'}\n"] = None
        lines[f"assay_monitor_{key}{{{labels}{more}}} {float(value)}\n"] = None
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    """A label as the format wants it. A name of a directory may hold what UTF-8 cannot say."""
    known = text.encode("utf-8", "backslashreplace").decode()
    return known.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
