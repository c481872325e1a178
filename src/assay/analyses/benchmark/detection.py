"""How well scores find the true edges of a planted model."""

from collections.abc import Collection
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.core.record import Record
from assay.stats import auroc, average_precision, precision_at


@dataclass(frozen=True, kw_only=True)
class Detected(Record):
    """How well edge scores tell the true edges from the others, by |score| and by signed score.

    Attributes:
        auroc, auroc_signed: Probability that a true edge outscores another, ties counting half; in [0, 1],
            1/2 at chance. NaN where every edge is true or none.
        average_precision, average_precision_signed: Mean precision at the ranks of the true edges, in (0, 1].
        recall, recall_signed: Share of true edges among as many best ones, which is their precision too.
    """

    auroc: float
    auroc_signed: float
    average_precision: float
    average_precision_signed: float
    recall: float
    recall_signed: float


def detect(scores: EdgeScores, edges: Collection[str]) -> Detected:
    """Score a ranking of edges against the true edge set.

    Args:
        scores: Edge scores.
        edges: Names of the true edges.

    Raises:
        UnknownNameError: For the first edge that the graph does not have.

    References:
        Mann and Whitney (1947), doi:10.1214/aoms/1177730491 (AUROC, ties counting half).

    Example:
        >>> graph = assay.build_graph(1, 1, mlps=False)
        >>> values = torch.zeros(graph.n_sources, graph.n_targets)
        >>> values[0, 0] = -2.0
        >>> found = detect(assay.EdgeScores(graph, values), ["input->a0.h0.q"])
        >>> found.auroc, found.auroc_signed
        (1.0, 0.0)
    """
    valid = scores.graph.valid
    members = Circuit.from_edges(scores.graph, edges).mask[valid].numpy()
    values: Float[Tensor, " n_edges"] = scores.values[valid].double()
    numbers = {}
    for suffix, ranking in (("", values.abs().numpy()), ("_signed", values.numpy())):
        numbers[f"auroc{suffix}"] = auroc(ranking, members).value
        numbers[f"average_precision{suffix}"] = average_precision(ranking, members).value
        numbers[f"recall{suffix}"] = precision_at(ranking, members, int(members.sum())).value
    return Detected(**numbers)
