"""Runs in which everything outside a circuit is replaced by one draw of an intervention on heads.

A circuit of heads has the other heads replaced inside plain passes, by any intervention. A circuit of edges
has its other edges ablated, by those interventions that are an ablation of edges as well, and by donors: what
an edge carries on the donor's prompt is known from a plain run.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from assay.circuits import Circuit
from assay.discovery.heads.edges import run_with_edges_replaced
from assay.discovery.heads.interventions import INTERVENTIONS, Donor
from assay.discovery.heads.replacing import outside, run_with_heads_replaced
from assay.execution import ABLATIONS, Ablation, CircuitRuns
from assay.execution.batches import choose_batch_size
from assay.execution.forward import finite_rows
from assay.execution.replacements import Setting
from assay.metrics.outputs import divergences


def heads_alone(circuit: Circuit) -> bool:
    """Whether the circuit ablates whole heads and nothing else, so that they are replaced in plain passes."""
    return circuit.heads is not None and (circuit.keeps_mlps or not circuit.graph.mlps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replacements:
    """What some draws of one intervention gave.

    Attributes:
        margins: `[draws, n]`; NaN where the logits are not finite.
        kl: `[draws, n]`, KL(model || run) in nats, NaN likewise; None unless asked for.
        served: Prompts that the intervention has a replacement for.
    """

    margins: Float64[np.ndarray, "draws n"]
    kl: Float64[np.ndarray, "draws n"] | None
    served: Bool[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Complement:
    """Everything outside the circuit of some runs, to be replaced.

    Attributes:
        runs: Model, task, circuit, objective and seed.
    """

    runs: CircuitRuns

    @cached_property
    def setting(self) -> Setting:
        """Passes that interventions share."""
        size = choose_batch_size(self.runs.model, self.runs.task, asked=self.runs.batch_size)
        return Setting(
            model=self.runs.model,
            task=self.runs.task,
            reference=self.runs.task,
            batch_size=size,
            seed=self.runs.seed,
        )

    def refusal(self, method: str) -> str | None:
        """Why this circuit and task cannot be run under a method, as a code; None if they can."""
        intervention = INTERVENTIONS[method]
        if isinstance(intervention, Donor):
            _, counts = self.runs.task.lengths.unique(return_counts=True)
            served = int(counts.max()) > 1 and intervention.served(self.setting).any()
            return None if served else "no_donor"
        if not heads_alone(self.runs.circuit) and method not in ABLATIONS:
            return "no_edge_ablation"
        return None

    def draw(self, method: str, *, draws: int | None = None, kl: bool = False) -> Replacements:
        """Runs with the circuit kept, one per draw where something is drawn; default: the method's own count.

        Raises:
            InputError: For prompts that the method cannot serve.
        """
        intervention = INTERVENTIONS[method]
        margins, divergence = [], []
        for number in range(intervention.draws if draws is None or intervention.draws == 1 else draws):
            self.setting.draw = number
            logits = self._logits(intervention)
            finite = finite_rows(logits).numpy()
            margins.append(np.where(finite, self.runs.margins_from(logits), np.nan))
            if kl:
                full = self.runs.logits("full")
                one = divergences(full.numpy(), logits.numpy())["kl"]
                divergence.append(np.where(finite & finite_rows(full).numpy(), one, np.nan))
        return Replacements(
            margins=np.stack(margins),
            kl=np.stack(divergence) if kl else None,
            served=intervention.served(self.setting),
        )

    def _logits(self, chosen: Ablation) -> Float[Tensor, "n d_vocab"]:
        runs = self.runs
        if heads_alone(runs.circuit):
            assert runs.circuit.heads is not None
            rest = outside(runs.circuit.heads, runs.model)
            replacement = chosen.prepare_heads(self.setting)
            size = self.setting.batch_size
            return run_with_heads_replaced(
                runs.model, runs.task, rest, replacement, batch_size=size, check=False
            )
        return run_with_edges_replaced(runs.circuit, chosen, self.setting)
