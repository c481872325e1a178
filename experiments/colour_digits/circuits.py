"""The circuits of `colour-digits` for the digit and for the colour, and how far they are the same.

    python experiments/colour_digits/circuits.py

Two tasks on the same 200 test images, colour and label independent (agreement 0.5). `digit`: the counterpart
is a digit of the other class in the same colour, right is its class. `colour`: the counterpart is the same
digit in the other colour, right is the colour's class. A circuit is the smallest list of top edges by |score|
(EAP-IG, inputs) with a faithfulness of at least 0.9 on 200 other images. By exact patching: sums over the
edges from `input` into keys and values of block 0, and the strongest edges. The completeness gap of EAP-IG is
that on 64 images by the number of steps. Writes `circuits.json`.
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
STEPS, N_STEPS = (5, 20, 60), 64
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


def against(scores: EdgeScores, n: int) -> list[dict[str, object]]:
    """Edges of negative score among the best n."""
    return [edge for edge in strongest(scores, scores.top(n), n) if float(str(edge["score"])) < 0]


def first_block(scores: EdgeScores, kind: str) -> float:
    """Sum over the edges from `input` into one kind of target of block 0: q, k or v."""
    graph = scores.graph
    inside = [
        (row, column)
        for row, column in graph.valid.nonzero().tolist()
        if (name := graph.edge_name(row, column)).startswith("input->a0.") and name.endswith(f".{kind}")
    ]
    return round(sum(float(scores.values[place]) for place in inside), 4)


def gaps(model: Model) -> dict[str, dict[str, float]]:
    """Completeness gap of EAP-IG by cue and steps; `both` cues swap on images as in training."""
    tasks = {
        cue: digits_task(model, N_STEPS, swap=cue, answer=ANSWERS.get(cue, "label"), agreement=agreement)
        for cue, agreement in (("both", 0.9), ("digit", 0.5), ("colour", 0.5))
    }
    return {
        cue: {
            str(steps): round(
                float(discover(model, task, "eap-ig-inputs", steps=steps).details["completeness_gap"]), 5
            )
            for steps in STEPS
        }
        for cue, task in tasks.items()
    }


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
            "exact_from_input_into_block_0": {kind: first_block(exact, kind) for kind in "qkv"},
            "strongest_by_exact": strongest(exact, exact.top(10), 10),
            "against_the_answer": against(scores[cue], 50),
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
        "completeness_gap": {"n": N_STEPS, "steps": gaps(model)},
    }
    (HERE / "circuits.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
