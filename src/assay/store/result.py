"""What a store gives back: results in brief, and whole ones."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from assay.core.errors import FileFormatError
from assay.core.record import Record


@dataclass(frozen=True, kw_only=True)
class About(Record):
    """Facts by which a result is found; missing ones are None.

    Attributes:
        model: Id of the model.
        task: Name of the task or data set.
        method: Discovery method; of a measurement the one that found its circuit.
        metric: Metric; of a worst case its divergence, of an audit `faithfulness-norm`.
        n: Examples or pairs measured.
        seed: Root seed of all random draws.
        value: The number itself: of a worst case the largest divergence, of an audit the faithfulness of its
            circuit.
        low: Lower end of the interval of `value`.
        high: Upper end.
        status: Verdict, or state of a job.
        name: What people call it: a job, a sweep; of an audit or a measurement the size of its circuit.
        circuit: Hash of the circuit.
        size: Edges of the circuit.
        ablation: What a cut edge carried.
    """

    model: str | None = None
    task: str | None = None
    method: str | None = None
    metric: str | None = None
    n: int | None = None
    seed: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    name: str | None = None
    circuit: str | None = None
    size: int | None = None
    ablation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResultSummary(About):
    """One stored result in brief.

    Attributes:
        id: 16 hex digits, see `assay.core.record.record_id`.
        kind: `measurement`, `scores`, `audit`, ...
        created: UTC, ISO 8601, of the first `put`.
    """

    id: str
    kind: str
    created: str

    @property
    def title(self) -> str:
        """What it is, less task and model: its metric, how its circuit was found, and what edges carried."""
        under = f"({self.ablation} ablation)" if self.ablation else ""
        if self.kind == "measurement":
            made = ", ".join(part for part in (self.method, self.name) if part)
            return " ".join(part for part in (self.metric, made and f"of {made}", under) if part)
        usual = self.name or (self.metric if self.kind != "scores" else None) or self.method or ""
        return " ".join(part for part in (usual, under) if part)

    @property
    def about(self) -> str:
        """One line: what of which task in which model."""
        parts = (self.title, self.task and f"on {self.task}", self.model and f"in {self.model}")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class StoredResult(ResultSummary):
    """One result as it was stored.

    Attributes:
        provenance: How it came to be, facts about the machine included.
        payload: The result itself, less its arrays.
        file: Where its arrays lie; None: it has none.
        digest: SHA-256 of that file.
    """

    provenance: dict[str, Any]
    payload: dict[str, Any]
    file: Path | None = field(default=None, repr=False)
    digest: str | None = field(default=None, repr=False)

    @cached_property
    def arrays(self) -> Mapping[str, Tensor]:
        """CPU tensors by name, read and checked when they are first asked for.

        Raises:
            FileFormatError: If the file is missing or was changed.
        """
        if self.file is None:
            return {}
        try:
            return safetensors.torch.load(self.read_file())
        except SafetensorError as error:
            raise FileFormatError(f"cannot read {self.file}: {error}; restore it") from error

    def read_file(self) -> bytes:
        """The file of the arrays, its bytes checked against their hash."""
        assert self.file is not None
        try:
            data = self.file.read_bytes()
        except OSError as error:
            raise FileFormatError(
                f"cannot read {self.file}, the arrays of {self.id}: {error.strerror}; restore it, or pass "
                "?arrays=DIR"
            ) from error
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise FileFormatError(f"{self.file} was changed after it was stored; restore it")
        return data

    def document(self) -> dict[str, Any]:
        """The result as one JSON document: what `assay show --json` prints."""
        names = ("id", "kind", "created", "provenance", "payload")
        return {name: getattr(self, name) for name in names} | {"arrays": list(self.arrays)}


COLUMNS = tuple(each.name for each in fields(ResultSummary))
