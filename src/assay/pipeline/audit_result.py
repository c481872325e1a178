"""What an audit found: its document, scores and circuit."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.circuits import Circuit, EdgeScores, write_atomically
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.graph import Graph
from assay.models import Model
from assay.page.graph import graph_of
from assay.pipeline.checks import check_writable
from assay.report import save_report
from assay.store import Store, StoredResult


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Plotted):
    """What an audit found.

    Attributes:
        id: Hash of the record behind it, and its key in a store.
        document: Everything a report shows, plain JSON.
        scores: Edge scores on the discovery prompts.
        circuit: The smallest swept circuit that meets the target.
        cached: Whether a store already held it.
    """

    drawn_by = "assay.report.audit_plots:plot_audit"

    id: str
    document: Mapping[str, Any]
    scores: EdgeScores
    circuit: Circuit
    cached: bool = False

    def __repr__(self) -> str:
        return f"Audit({self.id}, {self.circuit!r})"

    def to_frame(self) -> "pd.DataFrame":
        """One row per measurement, under other ablations last: name, value, low, high, unit, n, status."""
        import pandas as pd

        columns = ["name", "value", "low", "high", "unit", "n", "status"]
        return pd.DataFrame(self._rows(), columns=columns)

    def _rows(self) -> list[dict[str, Any]]:
        """The measurements with the ends of their intervals."""
        return [
            {**each, **{end: (each["interval"] or {}).get(end) for end in ("low", "high")}}
            for each in (*self.measurements, *self.document.get("other_ablations", ()))
        ]

    @property
    def curve(self) -> Mapping[str, Any] | None:
        """Faithfulness by size: `fractions`, `n_edges`, `values`, `low`, `high`, `random`, `cpr`, `cmd`.

        None where the stage was left out.
        """
        curve: Mapping[str, Any] | None = self.document["curve"]
        return curve

    @property
    def left_out(self) -> tuple[Mapping[str, Any], ...]:
        """What was not run: `stage`, `what`, `reason`, `passes` and the `option` that runs it."""
        return tuple(self.document["left_out"])

    @property
    def measurements(self) -> tuple[Mapping[str, Any], ...]:
        """Records of the measurements, as `Measurement.to_dict` writes them."""
        return tuple(self.document["measurements"])

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `report.html`, `audit.json`, `circuit.safetensors` and `scores.safetensors`.

        Returns:
            The path of the report.

        Raises:
            OutputError: If the directory cannot be written.
        """
        folder = Path(directory)
        check_writable(folder, make=True)
        text = json.dumps(self.document, indent=1, allow_nan=False)
        write_atomically(folder / "audit.json", text.encode())
        self.circuit.save(folder / "circuit.safetensors")
        self.scores.save(folder / "scores.safetensors")
        page: Path = save_report(folder / "report.html", self.document)
        return page


def restored(stored: StoredResult, graph: Graph) -> Audit:
    """The audit of a stored result."""
    origin = stored.payload["provenance"]["scores"]
    scores = EdgeScores(graph, stored.arrays["scores"], provenance=origin, details=stored.payload["method"])
    circuit = Circuit(
        graph=graph, mask=stored.arrays["mask"].bool(), provenance=stored.payload["circuit"]["provenance"]
    )
    return Audit(id=stored.id, document=stored.payload, scores=scores, circuit=circuit, cached=True)


def load_audit(store: Store, identity: str, *, model: Model | None = None) -> Audit:
    """An audit out of a store, without running anything.

    Args:
        store: Where it was kept.
        identity: Its id or the beginning of it.
        model: Its graph is used instead of one built anew.

    Raises:
        UnknownNameError: No result of this id.
        InputError: The result is not an audit.
    """
    stored = store.get(identity)
    if stored.kind != "audit":
        raise InputError(f"{stored.id} is a {stored.kind}, not an audit; see `assay store ls --kind audit`")
    return restored(stored, graph_of(stored.payload["graph"]) if model is None else model.graph)
