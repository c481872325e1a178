"""`run_claim`: measure a claim's heads, test what was predicted, list the evidence."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.analyses.claims.claim import (
    EACH_HEAD,
    MAGNITUDE,
    Claim,
    Prediction,
    Rival,
    head_name,
)
from assay.analyses.claims.evidence import (
    AGAINST,
    KINDS,
    MISSING,
    PRESENT,
    REPLICATION,
    UNDECIDED,
    Evidence,
    checklist,
    licensed,
    state_of,
)
from assay.analyses.claims.gates import averaged, claim_gates
from assay.analyses.claims.outcomes import (
    CONTRADICTED,
    HELD,
    Outcome,
    joint_state,
    predicted,
    rivalled,
    settle,
)
from assay.analyses.claims.prompts import ClaimPrompts, ClaimTables, claim_prompts
from assay.analyses.claims.reading import held_against, load_claim
from assay.analyses.claims.registration import Registration, note_measured, now, register, registered
from assay.analyses.claims.sets import head_sets, shape_of
from assay.circuits import Circuit
from assay.circuits.heads import Head
from assay.core import display
from assay.core.random import stream
from assay.core.record import Record, laid_out, library_version, same
from assay.core.verdict import Verdict
from assay.discovery.heads.table import MeasurementTable
from assay.models import Model, load_model
from assay.models.placing import DeviceMap


if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]
_REGISTRATION = {
    "file": "path.name",
    "registered": "time",
    "library": "library",
    "earlier": "earlier.__len__",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ClaimResult(display.Shown, Record):
    """What became of a claim.

    Attributes:
        claim: The claim.
        registration: When and as what it was registered; None for a claim that is in no file.
        registered_before: Whether that was before its prompts were first measured, as far as the registration
            and the folder of tables know.
        outcomes: Every test: predictions (one per head for `each head`), controls, rivals.
        multiplicity: M93's verdict on all of them.
        gates: Verdicts of the gates that are evidence, by code.
        replication: The predictions' tests on fresh prompts.
        evidence: The checklist.
        tier: What the evidence licenses.
        lacking: What the next tier needs.
        tables: Task -> content hash of its measurement table.
        passes: Passes over one prompt that this run made, forward equivalents and backward.
        seconds: Wall-clock time.
        facts: Model, prompts, head sets drawn for controls and rivals.
    """

    drawn_by = "assay.analyses.claims.plots:plot_claim"
    record_kind = "claim"
    record_schema = "assay-claim-result/1"
    record_layout = {
        "registered_before": "registered_before",
        "tests": "outcomes",
        **same("multiplicity", "gates", "replication", "evidence", "tier", "lacking", "tables", "passes"),
        **same("seconds", "facts", "hash", "predictions", "checklist", "contradicted", "provenance", "claim"),
        "registration": "registered_as",
    }

    claim: Claim
    registration: Registration | None
    registered_before: bool
    outcomes: tuple[Outcome, ...]
    multiplicity: Verdict
    gates: Mapping[str, Verdict]
    replication: tuple[Outcome, ...]
    evidence: tuple[Evidence, ...]
    tier: str
    lacking: tuple[str, ...]
    tables: Mapping[str, str]
    passes: Mapping[str, float]
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ClaimResult({self.claim.name!r}, tier {self.tier!r}, contradicted {self.contradicted})"

    def _summary(self) -> str:
        rows = [(each.name, each.value, each.size, each.state) for each in self.outcomes]
        return display.table(
            f"claim {self.claim.name}: {self.tier}", ("test", "measured", "claimed", "state"), rows
        )

    def to_frame(self) -> "pd.DataFrame":
        """One row per test: kind, name, task, n, value, low, high, size, p, q, state."""
        import pandas as pd

        columns = ["kind", "name", "task", "n", "value", "low", "high", "size", "p", "q", "state"]
        rows = [each.to_dict() | each.interval.to_dict() for each in self.outcomes]
        return pd.DataFrame([[row[name] for name in columns] for row in rows], columns=columns)

    @property
    def contradicted(self) -> tuple[int, ...]:
        """Numbers, from 0, of the predictions whose opposite holds."""
        return tuple(
            number
            for number in range(len(self.claim.predictions))
            if self.state_of_prediction(number) == CONTRADICTED
        )

    def state_of_prediction(self, number: int) -> str:
        """`held`, `lost`, `open` or `contradicted`: all tests of a prediction together."""
        return joint_state([each for each in self.outcomes if (each.kind, each.of) == ("prediction", number)])

    @property
    def checklist(self) -> dict[str, str]:
        """State of each kind of evidence, and of the replication."""
        return {kind: state_of(kind, self.evidence) for kind in (*KINDS, REPLICATION)}

    @property
    def hash(self) -> str:
        """Hash of the claim's content."""
        return self.claim.hash

    @property
    def predictions(self) -> list[dict[str, str]]:
        """Text and state of each prediction."""
        return [
            {"text": each.text, "state": self.state_of_prediction(number)}
            for number, each in enumerate(self.claim.predictions)
        ]

    @property
    def provenance(self) -> dict[str, str]:
        """The library, and the time at which the document is made."""
        return {"library": library_version(), "measured": now()}

    @property
    def registered_as(self) -> dict[str, Any] | None:
        """What identifies the registration; None without one."""
        return None if self.registration is None else laid_out(self.registration, _REGISTRATION)


def run_claim(
    claim: Claim | str | Path,
    model: Model | None = None,
    *,
    folder: str | Path | None = None,
    device: str | None = None,
    device_map: DeviceMap = None,
    dtype: torch.dtype | None = None,
    batch_size: int | None = None,
    register_anew: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> ClaimResult:
    """Register a claim, measure it, and say which evidence it has.

    Args:
        claim: A claim file, registered unless it is, once its model has its heads and its tasks their prompts
            and before anything is measured; or a claim, which then counts as not registered.
        model: The model; default: the one the claim names.
        folder: Where measurement tables are kept and found again, each in a folder named by its hash.
        device: Where to load the model.
        device_map: Where its parts go, if not all to one device; see `load_model`.
        dtype: Number type of its weights. Default: float32.
        batch_size: Prompts per pass; default: by free memory. Never changes a number.
        register_anew: Replace the registration of another content instead of refusing.
        progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        InputError: For a claim that differs from its registration, heads that the model does not have, fewer
            prompts than a test needs.
        FileFormatError: For a file that cannot be read as a claim, a registration or a table.
    """
    began = time.monotonic()
    registration = path = None
    if not isinstance(claim, Claim):
        path = Path(claim)
        claim = load_claim(path)
        registered(claim, path, anew=register_anew)  # another content is refused before a model is loaded
    progress("load", 0, 1)
    if model is None:
        model = load_model(claim.model, device=device, device_map=device_map, dtype=dtype)
    sets = head_sets(claim, shape_of(model))
    circuit = Circuit.from_heads(model.graph, claim.heads)
    samples = {name: claim_prompts(claim, name, model) for name in claim.tasks}
    if path is not None:  # what cannot be measured can still be corrected, so it is not registered
        registration = register(claim, path, anew=register_anew)
    make = ClaimTables(
        claim, model, circuit, None if folder is None else Path(folder), {"batch_size": batch_size}
    )
    tables = {name: make(sample.main, more=sample.more) for name, sample in samples.items()}
    own = tables[claim.task]
    before = registration is not None and _before(registration, make.began, samples, model)
    if registration is not None:
        registration = _noted(registration, tables, samples, model)
    progress("predictions", 0, 1)
    rng = stream(claim.seed, "claim/sign-flips")
    all_sets = {**sets, **_of_magnitude(claim, own)}
    tests = [
        *_predictions(claim, tables, rng),
        *_controls(claim, own, all_sets, rng),
        *_rivals(claim, own, all_sets, rng),
    ]
    outcomes, multiplicity = settle(tests)
    progress("predictions", 1, 1)
    others = {name: table for name, table in tables.items() if name != claim.task}
    gates = claim_gates(claim, own, others, progress=progress)
    progress("replication", 0, 1)
    replication, fresh = _replicate(claim, make, samples, outcomes, rng)
    progress("replication", 1, 1)
    evidence = checklist(claim, outcomes, gates, replication=fresh)
    contradicted = any(each.kind == "prediction" and each.state == CONTRADICTED for each in outcomes)
    tier, lacking = licensed(evidence, contradicted=contradicted, registered_before=before)
    return ClaimResult(
        claim=claim,
        registration=registration,
        registered_before=before,
        outcomes=outcomes,
        multiplicity=multiplicity,
        gates=gates,
        replication=replication,
        evidence=evidence,
        tier=tier,
        lacking=lacking,
        tables={name: table.hash for name, table in tables.items()},
        passes=make.passes,
        seconds=time.monotonic() - began,
        facts=_facts(model, samples, all_sets),
    )


def _noted(
    registration: Registration,
    tables: Mapping[str, MeasurementTable],
    samples: Mapping[str, "ClaimPrompts"],
    model: Model,
) -> Registration:
    """The registration, with what was measured under it."""
    for name, table in tables.items():
        registration = note_measured(
            registration,
            table=table.hash,
            prompts=samples[name].main.data_hash,
            weights=model.weight_hash,
        )
    return registration


def _facts(
    model: Model,
    samples: Mapping[str, "ClaimPrompts"],
    drawn: Mapping[str, Sequence[Sequence[tuple[int, int]]]],
) -> dict[str, Any]:
    """What was measured on what, for the record."""
    return {
        "model": model.describe(),
        "tasks": {name: sample.main.describe() for name, sample in samples.items()},
        "sets": {
            name: [[head_name(head) for head in heads] for heads in each] for name, each in drawn.items()
        },
    }


# ----------------------------------------------------------------------------------------------- prompts


def _before(
    registration: Registration, began: Sequence[str], samples: Mapping[str, ClaimPrompts], model: Model
) -> bool:
    """Whether a registration is older than every known measurement of the claim's prompts."""
    looks = [registration.first_look(sample.main.data_hash, model.weight_hash) for sample in samples.values()]
    return all(registration.time < look for look in (*began, *looks) if look is not None)


# ------------------------------------------------------------------------------------------------- heads


def _of_magnitude(claim: Claim, table: MeasurementTable) -> dict[str, list[tuple[Head, ...]]]:
    """Rivals of the largest activations: as many heads as the claim has."""
    sets: dict[str, list[tuple[Head, ...]]] = {}
    for number, rival in enumerate(claim.rivals):
        if rival.heads == MAGNITUDE:
            sizes = table.column("magnitude").mean(axis=0)
            largest = np.argsort(-sizes, kind="stable")[: len(claim.heads)].tolist()
            heads = tuple(sorted(divmod(place, table.model.n_heads) for place in largest))
            sets[f"rival {number + 1}"] = [heads]
    return sets


# ------------------------------------------------------------------------------------------------- tests


def _run(table: MeasurementTable, what: str, heads: Sequence[Head]) -> Float64[np.ndarray, " n"]:
    return averaged(table.drop(heads) if what == "dropping" else table.keep(heads))


def _predictions(
    claim: Claim, tables: Mapping[str, MeasurementTable], rng: np.random.Generator
) -> list[Outcome]:
    """A test per prediction, one per head for `each head`."""
    tests = []
    for number, prediction in enumerate(claim.predictions):
        table = tables[prediction.on]
        full = table.column("y_full")
        if prediction.of != EACH_HEAD:
            run = _run(table, prediction.what, claim.heads_of(prediction.of))
            name = f"{number + 1}. {prediction.text}"
            tests.append(predicted(prediction, full, run, of=number, name=name, rng=rng))
            continue
        without_one = table.column("y_drop1/circuit")  # in the order of the claim's heads
        tests += [
            predicted(
                prediction,
                full,
                without_one[:, place],
                of=number,
                name=f"{number + 1}. {_about(prediction, head)}",
                rng=rng,
                opposed=claim.sign_of[head] < 0,
            )
            for place, head in enumerate(claim.heads)
        ]
    return tests


def _about(prediction: Prediction, head: Head) -> str:
    return replace(prediction, of=head_name(head)).text


def _controls(
    claim: Claim,
    table: MeasurementTable,
    sets: Mapping[str, list[tuple[Head, ...]]],
    rng: np.random.Generator,
) -> list[Outcome]:
    """Each control against each prediction of the set it stands for."""
    tests = []
    full = table.column("y_full")
    for number, control in enumerate(claim.controls):
        for prediction in held_against(claim, control):
            each = [_run(table, prediction.what, heads) for heads in sets[f"control {number + 1}"]]
            of = claim.predictions.index(prediction) + 1
            test = predicted(
                prediction,
                full,
                np.mean(each, axis=0),
                of=number,
                name=f"control {number + 1} ({control.text}) does less than prediction {of}",
                rng=rng,
                kind="control",
                avoided=True,
            )
            tests.append(replace(test, details={"n_sets": len(each)}))
    return tests


def _rivals(
    claim: Claim,
    table: MeasurementTable,
    sets: Mapping[str, list[tuple[Head, ...]]],
    rng: np.random.Generator,
) -> list[Outcome]:
    """Each rival against the claim's heads, both kept alone; the claim's own heads rival nothing."""
    full, own = table.column("y_full"), _run(table, "keeping", claim.heads)

    def test(number: int, rival: Rival) -> Outcome:
        (heads,) = sets[f"rival {number + 1}"]
        outcome = rivalled(
            full,
            own,
            _run(table, "keeping", heads),
            of=number,
            name=f"rival {number + 1} ({rival.name}) departs further from the model",
            task=claim.task,
            rng=rng,
        )
        return replace(outcome, details={**outcome.details, "k": len(claim.heads), "k_of_rival": len(heads)})

    return [
        test(number, rival)
        for number, rival in enumerate(claim.rivals)
        if set(sets[f"rival {number + 1}"][0]) != set(claim.heads)
    ]


def _replicate(
    claim: Claim,
    make: ClaimTables,
    samples: Mapping[str, ClaimPrompts],
    outcomes: Sequence[Outcome],
    rng: np.random.Generator,
) -> tuple[tuple[Outcome, ...], Evidence]:
    """The predictions' tests on prompts that nothing else used."""
    line: dict[str, Any] = {"kind": REPLICATION, "source": "fresh prompts", "required": True}
    short = sorted(name for name, sample in samples.items() if sample.fresh is None)
    if short:
        return (), Evidence(
            **line,
            state=MISSING,
            finding=f"{', '.join(short)} has too few other prompts",
            supply=f"{2 * claim.n} different prompts of each task",
        )
    tables = {name: make(sample.fresh) for name, sample in samples.items() if sample.fresh is not None}
    again, _ = settle(_predictions(claim, tables, rng))
    first = [each for each in outcomes if each.kind == "prediction"]
    held_first = [one.state == HELD for one in first]
    twice = sum(one and other.state == HELD for one, other in zip(held_first, again, strict=True))
    finding = f"{twice} of {len(first)} tests hold on both samples"
    if any(each.state == CONTRADICTED for each in again):
        state, supply = AGAINST, "another claim: a prediction is contradicted on fresh prompts"
    elif twice == len(first):
        state, supply = PRESENT, ""
    else:
        state, supply = UNDECIDED, "predictions that hold on the first sample, and more prompts"
    return again, Evidence(**line, state=state, finding=finding, supply=supply)
