"""The circuits of `colour-digits` for the digit and for the colour, and how far they are the same.

    python experiments/colour_digits/circuits.py

Two tasks on the same 200 test images, colour and label independent (agreement 0.5). `digit`: the counterpart
is a digit of the other class in the same colour, right is its class. `colour`: the counterpart is the same
digit in the other colour, right is the colour's class. A circuit is the smallest list of top edges by |score|
(EAP-IG, inputs) with a faithfulness of at least 0.9 on 200 other images. Writes `circuits.json`.
"""

import json
from pathlib import Path

import torch
from scipy.stats import spearmanr

from assay import discover, load_model
from assay.circuits import Circuit, EdgeScores
from assay.metrics import faithfulness_curve
from assay.models import Model
from assay.tasks import ImageTask, digits_task


HERE = Path(__file__).parent
N, TARGET = 200, 0.9
ANSWERS = {"digit": "label", "colour": "colour"}
SIZES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 130, 160, 200, 240)


def task_of(model: Model, cue: str, start: int) -> ImageTask:
    """Images whose counterparts differ in one cue, judged by that cue."""
    return digits_task(model, N, swap=cue, answer=ANSWERS[cue], agreement=0.5, start=start)


def faithfulness(scores: EdgeScores, model: Model, task: ImageTask, sizes: tuple[int, ...]) -> list[float]:
    """F of the top edges by |score|, one per size."""
    fractions = [(size + 0.5) / model.graph.n_edges for size in sizes]  # int() of the product gives the size
    return [point.value for point in faithfulness_curve(scores, model, task, fractions=fractions).points]


def strongest(scores: EdgeScores, circuit: Circuit, n: int) -> list[dict[str, object]]:
    """The n edges of largest |score| in a circuit."""
    found = [(name, float(scores.values[scores.graph.edge_index(name)])) for name in circuit.edges()]
    found.sort(key=lambda pair: -abs(pair[1]))
    return [{"edge": name, "score": round(score, 4)} for name, score in found[:n]]


def main() -> None:
    """Discover, choose sizes, compare, write."""
    torch.set_num_threads(1)
    model = load_model("colour-digits")
    found, held, scores, circuits = {}, {}, {}, {}
    for cue in ANSWERS:
        task, held[cue] = task_of(model, cue, 0), task_of(model, cue, N)
        scores[cue] = discover(model, task, "eap-ig-inputs")
        other_half = discover(model, held[cue], "eap-ig-inputs")
        exact = discover(model, task, "exact")
        valid = model.graph.valid
        curve = faithfulness(scores[cue], model, held[cue], SIZES)
        size = next(size for size, value in zip(SIZES, curve, strict=True) if value >= TARGET)
        circuits[cue] = scores[cue].top(size).connected()
        found[cue] = {
            "size": size,
            "n_edges_connected": circuits[cue].n_edges,
            "faithfulness": dict(zip(map(str, SIZES), [round(value, 3) for value in curve], strict=True)),
            "spearman_with_exact": float(
                spearmanr(scores[cue].values[valid].abs(), exact.values[valid].abs()).statistic
            ),
            "jaccard_with_other_images": circuits[cue].jaccard(other_half.top(size).connected()),
            "strongest": strongest(scores[cue], circuits[cue], 10),
            "nodes": list(circuits[cue].nodes()),
        }
    digit, colour = circuits["digit"], circuits["colour"]
    both = Circuit.from_edges(model.graph, sorted(set(digit.edges()) & set(colour.edges())))
    crossed = {
        f"{made}_circuit_on_{run}": dict(
            zip(
                map(str, SIZES),
                [round(value, 3) for value in faithfulness(scores[made], model, held[run], SIZES)],
                strict=True,
            )
        )
        for made in ANSWERS
        for run in ANSWERS
        if made != run
    }
    equal = {str(k): scores["digit"].top(k).jaccard(scores["colour"].top(k)) for k in (10, 20, 40, 80)}
    results = {
        "n": N,
        "n_edges": model.graph.n_edges,
        "weight_hash": model.weight_hash,
        "cues": found,
        "shared_edges": both.n_edges,
        "jaccard": digit.jaccard(colour),
        "jaccard_at_equal_size": equal,
        "faithfulness_crossed": crossed,
    }
    (HERE / "circuits.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
