"""How far the circuit of a model on new data is from its circuit on known data."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from assay.analyses.generalization.circuit_view import WeightedCircuit
from assay.analyses.generalization.depth_bias import sum_by_layers
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, unknown_name
from assay.core.record import Record, plain
from assay.core.registry import Registry
from assay.graph import Graph
from assay.stats import kendall_tau, pearson, spearman


REFERENCE_EIGENVALUES = 50  # of each Laplacian that the authors' code compares
# Diffusion times of NetLSD, with which its signatures are published.
TIMES = np.logspace(-2, 2, 250)
# Scores estimated in different ways differ by more than the data do.
SETTINGS = ("method", "objective", "ablation", "steps", "quadrature")
OPTIONS = "options"  # of the method


Compare = Callable[[WeightedCircuit, WeightedCircuit], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Distance:
    """A way to compare two circuits of one model.

    Attributes:
        key: What `circuit_shift` calls it.
        summary: One line.
        published: Its name in the source.
        bounds: Smallest and largest value.
        compare: The distance of two views, >= 0, 0 for equal circuits.
    """

    key: str
    summary: str
    published: str
    bounds: tuple[float, float]
    compare: Compare


@dataclass(frozen=True, kw_only=True)
class ShiftView(Record):
    """What shifts compare; the arguments of these names of `circuit_shift`.

    Attributes:
        weights: `"abs"` or `"signed"`.
        top_k: Number of strongest edges; None leaves it to the distance.
        prune: Drop chosen edges off the paths from input to logits.
        normalized: Scale Laplacians by the degrees.
        compat: None, or `"reference"` for graphs as the authors' code makes them.
    """

    weights: str = "abs"
    top_k: int | None = None
    prune: bool = False
    normalized: bool = True
    compat: str | None = None

    def check(self, graph: Graph) -> None:
        """Refuse what does not go together or does not fit a graph, before anything runs.

        Raises:
            InputError: For `top_k` outside the graph, or `prune` or unscaled Laplacians with `compat`.
            UnknownNameError: For other `weights` or `compat`.
        """
        if self.compat not in (None, "reference"):
            raise unknown_name("compat", self.compat, ("reference",))
        if self.compat and (self.prune or not self.normalized):
            raise InputError(
                "compat='reference' prunes and scales in its own way; keep prune=False and normalized=True"
            )
        if self.weights not in ("abs", "signed"):
            raise unknown_name("weights", self.weights, ("abs", "signed"))
        if self.top_k is not None and not 1 <= self.top_k <= graph.n_edges:
            raise InputError(
                f"top_k is {self.top_k}; expected 1 to {graph.n_edges}, the number of edges of this graph"
            )

    def of(self, scores: EdgeScores) -> WeightedCircuit:
        """What is compared of a circuit."""
        return WeightedCircuit(
            scores=scores,
            signed=self.weights == "signed",
            top_k=self.top_k,
            prune=self.prune,
            normalized=self.normalized,
            reference=self.compat == "reference",
        )


USUAL_VIEW = ShiftView()

DISTANCES: Registry[Distance] = Registry("distance", holds=Distance)


def _distance(key: str, **facts: Any) -> Callable[[Compare], Compare]:
    def register(compare: Compare) -> Compare:
        DISTANCES.add(key, Distance(key=key, compare=compare, **facts))
        return compare

    return register


@_distance("spearman", summary="1 - rank correlation", published="CSS_v,SRCC", bounds=(0.0, 2.0))
def _spearman(a: WeightedCircuit, b: WeightedCircuit) -> float:
    return 1 - spearman(a.weights, b.weights)


@_distance("cosine", summary="1 - cosine of the weights", published="CSS_v,cos", bounds=(0.0, 2.0))
def _cosine(a: WeightedCircuit, b: WeightedCircuit) -> float:
    units = []
    for name, view in (("reference", a), ("shifted", b)):
        largest = np.abs(view.weights).max()
        if largest == 0:
            raise InputError(f"every {name} score is 0, so its direction is undefined; use another distance")
        scaled = view.weights / largest  # squares of tiny scores would vanish
        units.append(scaled / np.linalg.norm(scaled))
    return 1 - float(np.clip(units[0] @ units[1], -1.0, 1.0))


@_distance("l2", summary="Euclidean distance of the weights", published="CSS_v,l2", bounds=(0.0, math.inf))
def _l2(a: WeightedCircuit, b: WeightedCircuit) -> float:
    return float(np.linalg.norm(a.weights - b.weights))


@_distance(
    "laplacian", summary="distance of the Laplacian spectra", published="CSS_g", bounds=(0.0, math.inf)
)
def _laplacian(a: WeightedCircuit, b: WeightedCircuit) -> float:
    if a.reference:
        return _distance_of_smallest(a, b, REFERENCE_EIGENVALUES)
    spectra = [
        view.spectrum(
            view.graph.valid if view.top_k is None else view.selected,
            touched=False,
            normalized=view.normalized,
        )
        for view in (a, b)
    ]
    return float(np.linalg.norm(spectra[0] - spectra[1]))


def _distance_of_smallest(a: WeightedCircuit, b: WeightedCircuit, n: int) -> float:
    """Euclidean distance of the n smallest eigenvalues of the selected graphs; 0 replaces missing ones."""
    padded = np.zeros((2, n))
    for row, view in zip(padded, (a, b), strict=True):
        smallest = view.selected_spectrum[:n]
        row[: len(smallest)] = smallest
    return float(np.linalg.norm(padded[0] - padded[1]))


@_distance("netlsd", summary="distance of the heat signatures", published="CSS_g", bounds=(0.0, math.inf))
def _netlsd(a: WeightedCircuit, b: WeightedCircuit) -> float:
    spectra = [view.selected_spectrum for view in (a, b)]
    if not all(map(len, spectra)):
        warnings.warn(
            "NetLSD is undefined: no selected edge lies on a path from input to logits; raise top_k or "
            "remove prune",
            DegenerateDataWarning,
            stacklevel=3,
        )
        return math.nan
    return float(np.linalg.norm(heat_signature(spectra[0]) - heat_signature(spectra[1])))


@_distance("jaccard", summary="1 - overlap of the strongest edges", published="CSS_g", bounds=(0.0, 1.0))
def _jaccard(a: WeightedCircuit, b: WeightedCircuit) -> float:
    union = int((a.selected | b.selected).sum())
    return 1 - int((a.selected & b.selected).sum()) / union if union else 0.0


def heat_signature(eigenvalues: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n_times"]:
    """NetLSD: mean over the eigenvalues of exp(-t lambda), at 250 times from 0.01 to 100.

    References:
        Tsitsulin et al. (2018), arXiv:1805.10712; normalised by the empty graph.
    """
    return np.asarray(np.exp(-np.outer(TIMES, eigenvalues)).mean(1))


def circuit_shift(
    reference_scores: EdgeScores,
    shifted_scores: EdgeScores,
    *,
    distance: str = "spearman",
    top_k: int | None = None,
    weights: str = "abs",
    prune: bool = False,
    normalized: bool = True,
    compat: str | None = None,
) -> float:
    """Distance of a model's circuit on new data from its circuit on known data (CSS).

    With w, w' the scores of the edges in row-major order:

    - `"spearman"`: 1 - rank correlation of w and w' (average ranks); in [0, 2].
    - `"cosine"`: 1 - <w, w'> / (|w| |w'|); in [0, 2], at most 1 for magnitudes.
    - `"l2"`: |w - w'|, in the unit of the scores.
    - `"laplacian"`: |lambda(w) - lambda(w')|, all eigenvalues in ascending order, of the undirected graph of
      all nodes: input, heads, MLPs, logits; edges of a pair of nodes (q, k, v) add up.
    - `"netlsd"`: |h - h'|, heat signatures of the graphs of the strongest edges; untouched nodes left out.
    - `"jaccard"`: 1 - overlap / union of the sets of the strongest edges; in [0, 1].

    Args:
        reference_scores: Scores on known (in-distribution) data.
        shifted_scores: Scores of the same model on other data, made with the same settings.
        distance: One of the keys above.
        top_k: Number of strongest edges, 1 to n_edges. None: 200, at most all, for `"netlsd"` and
            `"jaccard"`, and all for `"laplacian"`. The vector distances use every edge whatever is said here.
        weights: `"abs"`: magnitudes; `"signed"`: vectors and the choice of the strongest edges take signs
            into account. Graphs always carry magnitudes.
        prune: Drop chosen edges that lie on no path from input to logits inside the choice.
        normalized: For `laplacian`, scale by the degrees: I - D^(-1/2) W D^(-1/2) rather than D - W. NetLSD
            is defined on the scaled one.
        compat: `"reference"` makes the graphs of `"laplacian"`, `"netlsd"` and `"jaccard"` as the authors'
            code does, to compare with published numbers: the strongest edges by sign, pruned in one round,
            queries, keys and values as nodes of their own, and of the Laplacians the 50 smallest
            eigenvalues, filled up with 0.

    Returns:
        >= 0; larger means more shift. 0 for equal circuits.

    Raises:
        GraphMismatchError: For circuits of different graphs or models.
        InputError: For scores made in different ways, `top_k` outside the graph, or scores that are all 0
            under `"cosine"`, or `prune` or unscaled Laplacians together with `compat`.
        UnknownNameError: For another `distance`, `weights` or `compat`.

    Notes:
        `"spearman"` is NaN with a `DegenerateDataWarning` where the scores are constant, `"netlsd"` where
        pruning leaves nothing; two empty choices have Jaccard distance 0. A key or value head that several
        query heads share counts as equal parts of them. Vectors cost O(E log E), spectra O(n_nodes^3);
        no model runs. The two circuits should rest on equally many examples: noise is distance, too.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 7.

    Example:
        >>> from assay.graph import build_graph
        >>> values = torch.arange(15.0).view(3, 5)
        >>> before, after = (EdgeScores(build_graph(1, 1), each) for each in (values, 100 - values))
        >>> circuit_shift(before, after)
        2.0
    """
    a, b = _views(
        reference_scores,
        shifted_scores,
        weights=weights,
        top_k=top_k,
        prune=prune,
        normalized=normalized,
        compat=compat,
    )
    return DISTANCES[distance].compare(a, b)


def circuit_shifts(
    reference_scores: EdgeScores,
    shifted_scores: EdgeScores,
    *,
    extra: bool = False,
    top_k: int | None = None,
    weights: str = "abs",
    prune: bool = False,
    normalized: bool = True,
    compat: str | None = None,
) -> dict[str, float]:
    """The shift under every registered distance.

    Args:
        reference_scores: As in `circuit_shift`, like all further arguments.
        shifted_scores: Scores on other data.
        extra: Add three agreements, which fall as circuits differ: `"kendall_tau"` (tau-b), `"pearson"` and
            `"weighted_jaccard"` (sum of the smaller over sum of the larger magnitudes, in [0, 1]; under
            `compat` of the selected edges only). Under `compat` also what else the authors' code prints:
            `"kendall_tau_c"`, `"largest_difference"` of two scores and `"laplacian_10"`, the distance of the
            10 smallest eigenvalues.
        top_k: Number of strongest edges.
        weights: `"abs"` or `"signed"`.
        prune: Drop chosen edges off the paths from input to logits.
        normalized: Scale Laplacians by the degrees.
        compat: None or `"reference"`.

    Returns:
        Key of the distance (or agreement) -> value.

    Raises:
        InputError: As `circuit_shift`.
    """
    a, b = _views(
        reference_scores,
        shifted_scores,
        weights=weights,
        top_k=top_k,
        prune=prune,
        normalized=normalized,
        compat=compat,
    )
    shifts = {key: each.compare(a, b) for key, each in DISTANCES.items()}
    return shifts | _agreements(a, b) if extra else shifts


def _agreements(a: WeightedCircuit, b: WeightedCircuit) -> dict[str, float]:
    magnitudes = [np.abs(view.weights) for view in (a, b)]
    if a.reference:
        magnitudes = [
            np.where(view.selected[view.graph.valid].numpy(), size, 0.0)
            for view, size in zip((a, b), magnitudes, strict=True)
        ]
    larger = float(np.maximum(*magnitudes).sum())
    agreements = {
        "kendall_tau": kendall_tau(a.weights, b.weights),
        "pearson": pearson(a.weights, b.weights),
        "weighted_jaccard": float(np.minimum(*magnitudes).sum()) / larger if larger else math.nan,
    }
    if a.reference:
        agreements |= {
            "kendall_tau_c": float(scipy.stats.kendalltau(a.weights, b.weights, variant="c").statistic),
            "largest_difference": float(np.abs(a.weights - b.weights).max()),
            "laplacian_10": _distance_of_smallest(a, b, 10),
        }
    return agreements


def rank_shift_map(
    reference_scores: EdgeScores,
    shifted_scores: EdgeScores,
    *,
    absolute: bool = False,
    granularity: str = "block",
) -> Float[Tensor, "n n"]:
    """Where in the network a circuit moved: mean change of the edges' ranks from layer to layer.

    delta(e) = (rank'(e) - rank(e)) / n_edges, ranks 1..n_edges of |score|, ascending, ties averaged.

    Args:
        reference_scores: Scores on known data.
        shifted_scores: Scores of the same model on other data, made with the same settings.
        absolute: Average |delta| instead.
        granularity: `"block"` or `"sublayer"`, see `dependency_matrix`.

    Returns:
        float64 `[L + 1, L + 1]`, layers of source and target as in `dependency_matrix`, in (-1, 1); positive:
        these edges gained weight against the others. 0 where no edge joins two layers.

    Raises:
        GraphMismatchError: For circuits of different graphs or models.
        InputError: For scores made in different ways.

    References:
        Peng et al. (2026), arXiv:2604.08192, Fig. 7.
    """
    a, b = _views(reference_scores, shifted_scores)
    delta = torch.from_numpy(
        (scipy.stats.rankdata(b.weights) - scipy.stats.rankdata(a.weights)) / len(a.weights)
    )
    counts = sum_by_layers(a.graph, torch.ones_like(delta), granularity)
    moved = sum_by_layers(a.graph, delta.abs() if absolute else delta, granularity)
    return moved / counts.clamp_min(1)


def check_comparable(a: EdgeScores, b: EdgeScores, *, same_model: bool = True) -> None:
    """Refuse scores whose difference would say something about anything but the data.

    Args:
        a: Scores of one circuit.
        b: Scores of another.
        same_model: Require the same weights, too; False to compare models.

    Raises:
        GraphMismatchError: For different graphs, or models of different weights.
        InputError: For different estimators; settings that a record does not hold are not compared.
    """
    if a.graph != b.graph:
        raise GraphMismatchError(
            f"the circuits belong to different graphs: {a.graph.describe()} and {b.graph.describe()}; "
            "compare circuits of one model"
        )
    one, other = settings_of(a), settings_of(b)
    for name in (*SETTINGS, OPTIONS):
        if name in one and name in other and one[name] != other[name]:
            raise InputError(
                f"the circuits were discovered with different settings: {name} is {one[name]!r} and "
                f"{other[name]!r}; use the same for both"
            )
    weights = [each.provenance.get("model", {}).get("weight_hash") for each in (a, b)]
    if same_model and None not in weights and weights[0] != weights[1]:
        raise GraphMismatchError(
            f"the circuits belong to models with different weights ({weights[0]} and {weights[1]}); measure "
            "a shift on one model"
        )


def settings_of(scores: EdgeScores) -> dict[str, Any]:
    """How scores were found, as far as their record holds it.

    A record names only the options of a method that are not the defaults, so one that holds none has the
    defaults.
    """
    record = scores.provenance
    settings = {name: record[name] for name in SETTINGS if name in record}
    return settings | ({OPTIONS: plain(record.get(OPTIONS, {}))} if "method" in record else {})


def _views(
    reference: EdgeScores,
    shifted: EdgeScores,
    *,
    weights: str = "abs",
    top_k: int | None = None,
    prune: bool = False,
    normalized: bool = True,
    compat: str | None = None,
) -> tuple[WeightedCircuit, WeightedCircuit]:
    check_comparable(reference, shifted)
    view = ShiftView(weights=weights, top_k=top_k, prune=prune, normalized=normalized, compat=compat)
    view.check(reference.graph)
    return view.of(reference), view.of(shifted)
