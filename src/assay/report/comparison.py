"""Two circuits, or two runs, beside each other, as one plain JSON document.

Circuits are compared edge by edge; runs by every measurement they share, each with an interval of its
difference, and by what differs in their provenance.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy import special
from torch import Tensor

from assay.core.errors import FileFormatError, InputError
from assay.core.random import stream
from assay.core.verdict import Interval, undefined_interval
from assay.graph import Graph
from assay.report.comparison_sides import Kept, Side, side_of
from assay.stats import bootstrap_interval, spearman, statistic_from_dict
from assay.store import Store


SCHEMA = "assay-comparison/1"
KIND = "comparison"
EDGES = 600  # edges listed and drawn
PER_SET = 150  # of each of the three sets at least, where it has so many
CHANGES = 200  # differences in provenance
SHARED = 300  # measurements that two runs share
LEVEL = 0.95

Document = dict[str, Any]


def compare_document(store: Store, a: str, b: str, *, files: bool = True) -> Document:
    """Two circuits or two runs compared.

    Args:
        store: Where results lie; it is only read.
        a: Id (or its beginning) of an audit, scores, measurement or sweep; or a circuit file.
        b: The other; differences are B minus A.
        files: Whether a circuit file may be named; a server says no.

    Returns:
        Plain JSON of schema `assay-comparison/1` for `save_report`. `circuits` is None where one side has
        no circuit, `measurements` holds what both have measured.

    Raises:
        InputError: A result of another kind, or two sides with nothing to compare.
        UnknownNameError: An id that the store does not have.

    Notes:
        The interval of a difference is paired (BCa bootstrap over examples) where both measured the same
        examples (same hash of the data) and their per-example values are stored. Elsewhere it is
        Welch's from the two standard errors. Intervals are at 95 % each, not adjusted for their number.
    """
    sides = [side_of(store, given, files=files) for given in (a, b)]
    circuits = _circuits(*sides)
    measurements = _measurements(*sides)
    if circuits is None and not measurements:
        raise InputError(
            f"{sides[0].label} ({sides[0].kind}) and {sides[1].label} ({sides[1].kind}) have no circuits and "
            "no measurement in common; compare two audits, scores, circuit files or sweeps, or two "
            "measurements of one metric"
        )
    changes = _changes(*sides)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "a": sides[0].to_dict(),
        "b": sides[1].to_dict(),
        "circuits": circuits,
        "measurements": measurements[:SHARED],
        "n_measurements": len(measurements),
        "level": LEVEL,
        "changes": changes[:CHANGES],
        "n_changes": len(changes),
    }


# ---- circuits -----------------------------------------------------------------------------------


def _circuits(a: Side, b: Side) -> Document | None:
    """Edges of both, of one, and of the other; None unless both have a circuit of one graph."""
    if a.circuit is None or b.circuit is None:
        return None
    graph = a.circuit.graph
    if graph.fingerprint != b.circuit.graph.fingerprint:
        return {"mismatch": [_shape(graph), _shape(b.circuit.graph)]}
    first, second = a.circuit.mask, b.circuit.mask
    sets = {"both": first & second, "a": first & ~second, "b": second & ~first}
    union = int((first | second).sum())
    listed = _listed(graph, sets, a.scores, b.scores)
    correlation = None
    if a.scores is not None and b.scores is not None:
        pair = [each.double()[graph.valid].abs().numpy() for each in (a.scores, b.scores)]
        if all(np.ptp(each) > 0 for each in pair):
            correlation = float(spearman(*pair))
    return {
        "mismatch": None,
        "graph": {**graph.describe(), "n_edges": graph.n_edges, "fingerprint": graph.fingerprint},
        "counts": {name: int(mask.sum()) for name, mask in sets.items()},
        "jaccard": int(sets["both"].sum()) / union if union else None,
        "rank_correlation": correlation,
        "scored": [a.scores is not None, b.scores is not None],
        "layers": _layers(graph, sets),
        "edges": listed,
        "n_listed": len(listed),
        "n_union": union,
    }


def _shape(graph: Graph) -> str:
    return f"{graph.n_layers} layers of {graph.n_heads} heads, {graph.n_edges:,} edges"


def _layers(graph: Graph, sets: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Edges out of and into each layer, by set; row 0 is the input, the last one the logits."""
    rows = []
    names = ["input", *(f"layer {layer}" for layer in range(graph.n_layers)), "logits"]
    for place, name in enumerate(names):
        row: dict[str, Any] = {"name": name}
        for key, mask in sets.items():
            row[f"out_{key}"] = int(mask[graph.source_layer == place].sum())
            row[f"into_{key}"] = int(mask[:, graph.target_layer == place].sum())
        rows.append(row)
    return rows


def _listed(
    graph: Graph, sets: Mapping[str, Tensor], a: Tensor | None, b: Tensor | None
) -> list[dict[str, Any]]:
    """The strongest edges of the union; each set gets some places, however weak its edges are."""
    given = [each.double() for each in (a, b) if each is not None]
    strength = (
        torch.stack(given).abs().amax(0) if given else torch.ones(graph.valid.shape, dtype=torch.double)
    )
    order = torch.sort(strength.flatten(), descending=True, stable=True).indices
    places = {name: order[mask.flatten()[order]].tolist() for name, mask in sets.items()}
    rank = {place: position for position, place in enumerate(order.tolist())}
    first = [place for found in places.values() for place in found[:PER_SET]]
    rest = sorted((place for found in places.values() for place in found[PER_SET:]), key=rank.__getitem__)
    chosen = sorted([*first, *rest[: max(0, EDGES - len(first))]], key=rank.__getitem__)
    owner = {place: name for name, found in places.items() for place in found}
    edges = []
    for position, place in enumerate(chosen, start=1):
        row, column = divmod(place, graph.n_targets)
        scores = [None if each is None else float(each[row, column]) for each in (a, b)]
        known = [each for each in scores if each is not None]
        edges.append(
            {
                "source": graph.sources[row],
                "target": graph.targets[column],
                "in": owner[place],
                "score_a": scores[0],
                "score_b": scores[1],
                "score": max(known, key=abs) if known else 1.0,
                "rank": position,
            }
        )
    return edges


# ---- measurements -------------------------------------------------------------------------------


def _measurements(a: Side, b: Side) -> list[dict[str, Any]]:
    rows = []
    for name, first in a.measurements.items():
        second = b.measurements.get(name)
        if second is None:
            continue
        rows.append({"name": name, **_difference(first, second)})
    return rows


def _difference(a: Kept, b: Kept) -> dict[str, Any]:
    """Both values and B minus A with its interval."""
    values = a.record.get("value"), b.record.get("value")
    difference, interval, how, n = None, undefined_interval(LEVEL, "none", "undefined"), "none", None
    if values[0] is not None and values[1] is not None:
        difference = values[1] - values[0]
        paired = _paired(a, b) if a.data is not None and a.data == b.data else None
        if paired is not None:
            (difference, interval, n), how = paired, "paired"
        else:
            interval, how = _welch(a.record, b.record, difference), "unpaired"
            if not interval.defined:
                how = "none"
    return {
        "id": a.record.get("id"),
        "unit": a.record.get("unit"),
        "direction": a.record.get("direction"),
        **{side: _value(each) for side, each in (("a", a), ("b", b))},
        "difference": difference,
        "low": interval.low if interval.defined else None,
        "high": interval.high if interval.defined else None,
        "method": interval.method,
        "reason": interval.reason,
        "how": how,
        "n_pairs": n,
        "finding": _finding(interval, difference),
    }


def _value(kept: Kept) -> dict[str, Any]:
    interval = kept.record.get("interval") or {}
    return {
        "value": kept.record.get("value"),
        "low": interval.get("low"),
        "high": interval.get("high"),
        "n": kept.record.get("n"),
        "status": kept.record.get("status"),
        "result": None if kept.stored is None else kept.stored.id,
    }


def _finding(interval: Interval, difference: float | None) -> str:
    if difference is None or not interval.defined:
        return "undefined"
    if interval.low == interval.high == 0:
        return "equal"
    if interval.low > 0:
        return "higher"
    return "lower" if interval.high < 0 else "open"


def _components(kept: Kept) -> Float64[np.ndarray, "n_components batch"] | None:
    """Per-example rows of a measurement, NaN where excluded; None where they are not stored."""
    record, stored = kept.record, kept.stored
    if stored is None or record.get("statistic") is None:
        return None
    statistic = statistic_from_dict(record["statistic"])
    prefix = f"parts/{record['part']}/components/" if "part" in record else "components/"
    names = [prefix + name for name in statistic.components]
    if any(name not in stored.arrays for name in names):
        return None
    return np.stack([stored.arrays[name].double().numpy() for name in names])


def _paired(a: Kept, b: Kept) -> tuple[float, Interval, int] | None:
    """Difference over the examples both have, with a BCa interval; None where rows are not stored."""
    try:
        first, second = _components(a), _components(b)
    except FileFormatError:  # an array file went missing or changed: `Store.verify` names it
        return None
    if first is None or second is None or first.shape[1] != second.shape[1]:
        return None
    statistics = [statistic_from_dict(each.record["statistic"]) for each in (a, b)]
    both = np.concatenate([first, second])
    used = both[:, np.isfinite(both).all(axis=0)]
    split, n = len(first), used.shape[1]

    def of_sums(sums: Any, count: int) -> Any:
        return statistics[1].of_sums(sums[..., split:], count) - statistics[0].of_sums(
            sums[..., :split], count
        )

    difference = float(of_sums(used.sum(axis=1), n)) if n else math.nan
    if math.isnan(difference):
        return None
    interval = bootstrap_interval(used, of_sums, rng=stream(0, "comparison"), level=LEVEL)
    return difference, interval, n


def _welch(a: Mapping[str, Any], b: Mapping[str, Any], difference: float) -> Interval:
    """Difference of two independent estimates from their standard errors, Welch and Satterthwaite's."""
    errors = [each.get("standard_error") for each in (a, b)]
    counts = [each.get("n") or 0 for each in (a, b)]
    if None in errors or min(counts) < 2:
        return undefined_interval(LEVEL, "welch", "too_few" if None not in errors else "no_standard_error")
    squares = [float(each) ** 2 for each in errors if each is not None]
    total = sum(squares)
    if total == 0:
        return Interval(low=difference, high=difference, level=LEVEL, method="welch", reason="degenerate")
    freedom = total**2 / sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
    reach = float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(total)
    return Interval(low=difference - reach, high=difference + reach, level=LEVEL, method="welch")


# ---- provenance ---------------------------------------------------------------------------------


def _changes(a: Side, b: Side) -> list[dict[str, Any]]:
    """Every entry of the two records that is not the same, by its dotted path."""
    first, second = (dict(_flat("", each.provenance)) for each in (a, b))
    return [
        {"key": key, "a": first.get(key), "b": second.get(key), "machine": key.split(".")[0] == "machine"}
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key)
    ]


def _flat(prefix: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [
            pair
            for key, inner in value.items()
            for pair in _flat(f"{prefix}.{key}" if prefix else str(key), inner)
        ]
    if isinstance(value, list | tuple):
        return [(prefix, ", ".join(map(str, value)))]
    return [(prefix, str(value))]
