"""The prompts that a claim is judged on, and the measurement tables made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.analyses.claims.claim import (
    Claim,
)
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.core.random import stream
from assay.discovery.heads.shelf import RECORD
from assay.discovery.heads.table import MeasurementTable
from assay.models import Model
from assay.tasks import PairTask, load_task


POOL = 120  # fewest prompts from which C30 draws its samples


@dataclass(frozen=True, kw_only=True, eq=False)
class ClaimPrompts:
    """Prompts of one task, in the order of one draw.

    Attributes:
        main: What the claim is judged on.
        more: Further ones; with `main` the pool of C30.
        fresh: For the replication: no prompt of `main` is among them. None if too few are left.
    """

    main: PairTask
    more: PairTask | None
    fresh: PairTask | None


def claim_prompts(claim: Claim, name: str, model: Model) -> ClaimPrompts:
    """The claim's own task has a pool as well; a longer draw begins with the shorter one."""
    source = claim.folder / name if name in claim.files else name
    n_more = max(2 * claim.n, POOL - claim.n) if name == claim.task else 0
    if name in claim.files:
        # Lines of a file may come in an order that means something.
        prompts = load_task(source, model)
        order = stream(claim.seed, f"claim/{name}").permutation(prompts.n)
        prompts = prompts.subset(order[: 2 * claim.n + n_more].tolist())
    else:
        prompts = load_task(source, model, n=2 * claim.n + n_more, seed=claim.seed)
    if prompts.n < claim.n:
        raise InputError(
            f"{name} has {prompts.n} prompts, but the claim needs n = {claim.n}; lower n, or give it more "
            "lines"
        )
    main = prompts.subset(range(claim.n))
    # The fresh prompts come first in what a short file has left: the pool is worth less than they are.
    seen = {tuple(row) for row in main.clean.tolist()}
    fresh = [
        row
        for row in range(claim.n, min(prompts.n, 2 * claim.n))
        if tuple(prompts.clean[row].tolist()) not in seen
    ]
    rest = range(2 * claim.n, prompts.n)
    return ClaimPrompts(
        main=main,
        more=prompts.subset(rest) if len(rest) else None,
        fresh=prompts.subset(fresh) if 2 * len(fresh) >= claim.n else None,
    )


class ClaimTables:
    """Makes the tables of a claim's heads, and knows when their folders were begun."""

    def __init__(
        self,
        claim: Claim,
        model: Model,
        circuit: Circuit,
        folder: Path | None,
        options: Mapping[str, Any],
    ) -> None:
        self.claim, self.model, self.circuit = claim, model, circuit
        self.folder, self.options = folder, options
        self.began: list[str] = []  # of tables that were there already
        self._made: list[MeasurementTable] = []

    def __call__(self, task: PairTask, *, more: PairTask | None = None) -> MeasurementTable:
        def table(folder: Path | None) -> MeasurementTable:
            return MeasurementTable(
                self.model,
                task,
                self.circuit,
                more=more,
                ablation=self.claim.ablation,
                folder=folder,
                seed=self.claim.seed,
                **self.options,
            )

        whole_table = table(None)
        if self.folder is not None:
            place = self.folder / whole_table.hash
            if (place / RECORD).exists():
                start = datetime.fromtimestamp((place / RECORD).stat().st_mtime, UTC)
                self.began.append(start.isoformat(timespec="microseconds"))
            whole_table = table(place)
        self._made.append(whole_table)
        return whole_table

    @property
    def passes(self) -> dict[str, float]:
        """Passes of all of them."""
        total: dict[str, float] = {}
        for table in self._made:
            for name, count in table.passes.items():
                total[name] = total.get(name, 0.0) + count
        return total
