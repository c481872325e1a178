"""What a result is about: the facts that results are found, listed and compared by."""

from dataclasses import dataclass, fields
from typing import Any

from assay.core.errors import InputError
from assay.core.record import Record


_INTEGERS = range(-(2**63), 2**63)  # what a database column holds


@dataclass(frozen=True, kw_only=True)
class About(Record):
    """What whoever stores a result says of it; whatever it does not have is None.

    Attributes:
        model: Id of the model.
        task: Name of the task or data set.
        method: Discovery method; of what was measured of a stored circuit, the one that found the circuit.
        metric: Metric; of a worst case its divergence, of an audit `faithfulness-norm`.
        n: Examples or pairs measured.
        seed: Root seed of all random draws.
        value: The number itself: of a worst case the largest divergence, of an audit the faithfulness of its
            circuit.
        low: Lower end of the interval of `value`.
        high: Upper end.
        status: Verdict, or state of a job.
        name: What people call it: a job, a sweep, a claim; of an audit or a measurement the size of its
            circuit.
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

    def row(self) -> dict[str, Any]:
        """The facts as columns hold them: undefined numbers are None.

        Raises:
            InputError: A whole number that no column holds.
        """
        row = self.to_dict()
        for key, value in row.items():
            if isinstance(value, str):  # a column holds neither a NUL nor half of a surrogate pair
                row[key] = value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
            elif isinstance(value, int) and value not in _INTEGERS:
                raise InputError(f"{key} is {value}; a result is described by whole numbers below 2^63")
        return row


@dataclass(frozen=True, kw_only=True)
class ResultSummary(About):
    """One stored result in brief.

    Attributes:
        id: 16 hex digits.
        kind: `measurement`, `scores`, `audit`, ...
        created: UTC, ISO 8601, of the first `put`.
    """

    id: str
    kind: str
    created: str

    @property
    def what(self) -> str:
        """What it is, less task and model: its name, its metric or its method."""
        usual = self.method or self.metric if self.kind in ("audit", "scores") else self.metric or self.method
        what = self.name or usual or ""
        if self.kind == "measurement":
            what = " of ".join(part for part in (self.metric, self.made) if part)
        elif self.kind == "audit":
            what = self.made or ""
        return what

    @property
    def about(self) -> str:
        """One line: what of which task in which model."""
        parts = (self.what, self.task and f"on {self.task}", self.model and f"in {self.model}", self._under)
        return " ".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """The same without task and model, which tables have in columns of their own."""
        return " ".join(part for part in (self.what, self._under) if part)

    @property
    def _under(self) -> str:
        return f"({self.ablation} ablation)" if self.ablation else ""

    @property
    def made(self) -> str | None:
        """How what it is about was found, and how large it is: `eap, 20 edges`."""
        if self.kind in ("circuit", "subset-path"):
            return self.name
        if self.kind not in ("audit", "measurement"):
            return self.method
        return ", ".join(part for part in (self.method, self.name) if part) or None


COLUMNS = ("id", "kind", "created", *(field.name for field in fields(About)))
NUMBERS = ("value", "low", "high")
COUNTS = ("n", "seed", "size")
