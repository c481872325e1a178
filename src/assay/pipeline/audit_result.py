"""What an audit found: its documents and files, its place in a store, and how a command finds it there again.

A command that asks for the same as before needs no model: the hash of its options, and of the content of all
files that it would read, is kept beside the result.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.core.errors import AssayWarning, InputError
from assay.core.plotted import Plotted
from assay.core.record import BRIEF, HIDDEN, Record, library_version, named, record_id
from assay.metrics.plots import CurveData
from assay.models.loading import EMBEDDED
from assay.page.graph import graph_of
from assay.pipeline.checks import check_writable
from assay.pipeline.stage import Content
from assay.store import About, Store, StoredResult
from assay.tasks import TASKS, is_task_file


if TYPE_CHECKING:
    import pandas as pd

    from assay.page.blocks import Page

SCHEMA = "assay-audit/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Plotted, Record):
    """What an audit found: everything that its page shows, finite JSON, and the circuit itself.

    Attributes:
        created: When it was made, UTC, ISO 8601.
        model: `Model.describe` with its width and parameters.
        task: The measured examples: counts, the model's own success, a few examples, notes.
        discovery: The examples that edges were scored on.
        graph: The model's graph.
        method: How the edges were scored.
        edges: The strongest edges by rank, as far as they can be drawn.
        curve: Faithfulness by size; None where the stage was left out.
        worst_case: `WorstCase.to_dict`; None where it was left out.
        calibration: `CalibrationReport.to_dict`; None where it was left out.
        other_ablations: The first measurement with other values on the cut edges.
        excerpt: What a drawing of a large circuit opens on.
        left_out: What was not run (a stage or the key of a metric; `full`: the larger forms), and why.
        reported: The circuit's size, nodes, faithfulness, and the sweep that found it.
        measurements: `Measurement.to_dict` of each metric.
        per_head: `[layer][head]`: summed signed score of the edges that leave each head.
        provenance: How it came to be; its id is its key in a store.
        notes: Warnings that were given while it was made.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the target.
        cached: Whether a store already held it.
    """

    record_kind = "audit"
    record_schema = SCHEMA
    drawn_by = "assay.pipeline.audit_page:plot_audit"

    created: str
    model: Mapping[str, Any]
    task: Mapping[str, Any]
    discovery: Mapping[str, Any]
    graph: Mapping[str, Any]
    method: Mapping[str, Any]
    edges: tuple[Mapping[str, Any], ...]
    curve: CurveData | None
    worst_case: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    other_ablations: tuple[Mapping[str, Any], ...] = ()
    excerpt: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)
    left_out: Mapping[str, str]
    reported: Mapping[str, Any] = field(metadata=named("circuit"))
    measurements: tuple[Mapping[str, Any], ...]
    per_head: tuple[tuple[float, ...], ...]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=(), metadata=BRIEF)
    scores: EdgeScores = field(default=cast(EdgeScores, None), metadata=HIDDEN)
    circuit: Circuit = field(default=cast(Circuit, None), metadata=HIDDEN)
    cached: bool = field(default=False, metadata=HIDDEN)

    def __repr__(self) -> str:
        return f"Audit({self.id}, {self.circuit!r})"

    @property
    def id(self) -> str:
        """Hash of the record behind it, and its key in a store."""
        return str(self.provenance["id"])

    def to_frame(self) -> "pd.DataFrame":
        """One row per measurement, under other ablations last: name, value, low, high, unit, n, status."""
        import pandas as pd

        columns = ["name", "value", "low", "high", "unit", "n", "status"]
        rows = [{**(each["interval"] or {}), **each} for each in (*self.measurements, *self.other_ablations)]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def pages(self) -> "list[Page]":
        """Its page, then those of its worst case and its gates, where it has them."""
        from assay.report.save import pages_of

        parts = filter(None, (self.worst_case, self.calibration))
        return [self.page(), *(page for part in parts for page in pages_of(part))]

    def page(self) -> "Page":
        """Its page."""
        return self._page

    @cached_property
    def _page(self) -> "Page":
        from assay.pipeline.audit_page import audit_page

        return audit_page(self)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `report.html`, `audit.json`, `circuit.safetensors` and `scores.safetensors`.

        Returns:
            The path of the report.

        Raises:
            OutputError: If the directory cannot be written.
        """
        from assay.report.save import save_report

        folder = Path(directory)
        check_writable(folder, make=True)
        self.circuit.save(folder / "circuit.safetensors")
        self.scores.save(folder / "scores.safetensors")
        document = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / "audit.json", document.encode())
        return save_report(folder / "report.html", self)  # last: `is_saved` looks for the id in it

    def is_saved(self, directory: str | os.PathLike[str]) -> bool:
        """Whether `save` has left its files in a directory, and the report there is still its."""
        names = ("circuit.safetensors", "scores.safetensors", "audit.json", "report.html")
        files = [Path(directory) / name for name in names]
        return all(map(Path.is_file, files)) and self.id.encode() in files[-1].read_bytes()


# ---- the store ----------------------------------------------------------------------------------


def read_audit(stored: StoredResult) -> Audit:
    """The audit of a row, without running anything."""
    audit, graph = Audit.from_dict(stored.payload), graph_of(stored.payload["graph"])
    scores = EdgeScores(
        graph, stored.arrays["scores"], provenance=audit.provenance["scores"], details=audit.method
    )
    provenance = audit.reported["provenance"]
    circuit = Circuit(graph=graph, mask=stored.arrays["mask"].bool(), provenance=provenance)
    return replace(audit, scores=scores, circuit=circuit, cached=True)


def written(audit: Audit) -> Content:
    """What is stored; an audit is found by the faithfulness of its circuit."""
    first = audit.measurements[0]
    about = About(
        model=audit.model["id"],
        task=audit.task["name"],
        method=audit.method["key"],
        metric=first["name"],
        **{key: first[key] for key in ("n", "value", "status")},
        **{key: first["interval"][key] for key in ("low", "high")},
        seed=audit.discovery["seed"],
        name=f"{audit.circuit.n_edges:,} edges",
        circuit=audit.circuit.hash,
        size=audit.circuit.n_edges,
        ablation=audit.task["ablation"],
    )
    arrays = {"scores": audit.scores.values, "mask": audit.circuit.mask}
    return Content(payload=audit.to_dict(), about=about, arrays=arrays)


# ---- requests -----------------------------------------------------------------------------------

READERS = ("numpy", "tokenizers", "torch", "transformers")  # they decide what weights and prompts are
# Options that say how a command runs and where its results go.
_UNCOUNTED = frozenset(("batch_size", "config", "json", "out", "quiet", "store", "traceback", "workers"))


def stored_answer(request: str, location: str | Path) -> Audit | None:
    """The audit that a store holds for a request; None where there is none, or no store.

    Args:
        request: What `request_of` gives.
        location: Of the store.
    """
    try:
        store = Store(location, create=False)
    except InputError:  # nothing was stored there yet
        return None
    if (identity := store.answer(request)) is None:
        return None
    audit = read_audit(store.get(identity))
    repeat(audit.notes)
    return audit


def repeat(notes: Iterable[str]) -> None:
    """Give warnings again that were given while a result was made."""
    for note in notes:
        warnings.warn(note, AssayWarning, stacklevel=3)


def request_of(options: Mapping[str, Any], device: str | None) -> str | None:
    """Hash of all that an audit is a function of; None where only loading tells that.

    Args:
        options: Those of `assay audit`.
        device: Where the model would run; it can choose the number type.
    """
    tasks = [options[name] for name in ("task", "discover_on", "measure_on") if options[name] is not None]
    # Images come from elsewhere, and a chat template can tell the date.
    elsewhere = options["images"] is not None or options["chat"] or options["device_map"] is not None
    if elsewhere or not all(map(_is_known, tasks)):
        return None
    try:
        model = _checkpoint(options["model"])
        digests = [_digest(Path(task)) for task in tasks if is_task_file(task)]
    except OSError:  # loading says what is wrong with a file
        return None
    if model is None:
        return None
    request = {
        "options": {name: value for name, value in options.items() if name not in _UNCOUNTED},
        "device": device,
        "library": library_version(),
        "readers": [version(name) for name in READERS],
        "model": model,
        "tasks": digests,
    }
    return record_id("request", request)


def _checkpoint(model: str) -> dict[str, str] | None:
    """SHA-256 of the files of a language model by name; None where they do not tell all that it is."""
    folder = EMBEDDED.get(model, Path(model))
    if not (folder / "config.json").is_file() or model == "colour-digits":
        return None
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return {path.name: _digest(path) for path in paths} if all(map(Path.is_file, paths)) else None


def _is_known(task: str) -> bool:
    """Whether a task is a file, or one of this package."""
    if is_task_file(task):
        return Path(task).is_file()
    key = task.replace("_", "-")
    return key in TASKS and TASKS[key].__module__.startswith("assay.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
