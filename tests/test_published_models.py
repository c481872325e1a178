"""Two published models: frozen numbers, and accuracies beside transformers alone.

    python tests/test_published_models.py [NAME ...]     # makes tests/golden/published_models again

All of SmolLM2 but a few tasks runs in .ci/run; the rest is slow.
"""

import functools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thorough import one_of

import assay
from assay.tasks import TASKS


ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("ASSAY_REAL", ROOT / ".real"))
GOLDEN = ROOT / "tests/golden/published_models"
KEPT = {"smollm2-135m": (1024, 8192), "gemma3-270m": (256, 1024)}  # strongest edges of two circuits
METHODS = ("eap-ig-inputs", "eap", "relp")
METRICS = ("faithfulness", "faithfulness-norm", "kl")
STRONGEST = 40
PROMPTS = (
    "When Mary and John went to the store, John gave a drink to",
    "The capital of France is",
    "The war lasted from the year 1745 to the year 17",
    "def add(a, b):\n    return a +",
    "Water boils at 100 degrees",
    "The keys to the cabinet",
    "Once upon a time",
    "Der Himmel ist",
)
# Other processors, threads and batches move float32 numbers by less.
CLOSE: dict[str, float] = {"rtol": 2e-3, "atol": 2e-3}
FOLLOWS = 0.01  # for numbers of a circuit, whose last edges may be others

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:.*dropped:assay.core.errors.AssayWarning"),  # words of several tokens
    pytest.mark.parametrize("name", one_of(KEPT)),
]


@functools.cache
def load(name: str) -> Any:
    return assay.load_model(FOLDER / name, dtype=torch.float32, device="cpu")


@pytest.fixture
def model(name: str) -> Any:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{FOLDER / name} is absent; make real lays it there")
    return load(name)


@pytest.fixture
def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


# ---- frozen numbers -----------------------------------------------------------------------------


def next_logits(model: Any) -> tuple[list[list[int]], torch.Tensor]:
    """Token ids of the prompts, and the logits behind them."""
    rows = [model.tokenizer(text)["input_ids"] for text in PROMPTS]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    task = assay.PairTask(
        clean=ids, corrupted=ids, answers=ids[:, :1], lengths=torch.tensor([len(row) for row in rows])
    )
    return rows, assay.run_circuit(circuit=assay.Circuit.full(model.graph), model=model, task=task)


def edge_scores(model: Any, method: str) -> tuple[Any, dict[str, float]]:
    """Scores of a method on eight prompts, and the same by edge, strongest first."""
    scores = assay.discover(model, assay.load_task("ioi", model, n=8), method)
    frame = scores.to_frame()
    return scores, dict(zip(frame["source"] + "->" + frame["target"], frame["score"], strict=True))


def circuit_numbers(model: Any, scores: Any, kept: int) -> dict[str, float]:
    """A circuit and its metrics on eight other prompts."""
    circuit, task = scores.top(kept).connected(), assay.load_task("ioi", model, n=8, seed=1)
    values = {metric: float(assay.measure(circuit, model, task, metric).value) for metric in METRICS}
    return {"edges": len(circuit.edges()), **values}


def task_margins(model: Any, key: str) -> tuple[Any, np.ndarray]:
    """A task and the margin of each of its prompts."""
    task = assay.load_task(key, model, n=60)
    return task, assay.CircuitRuns(model, task, assay.Circuit.full(model.graph)).margins("full")


def rounded(numbers: Mapping[Any, float]) -> dict[Any, float]:
    return {key: float(f"{value:.6g}") for key, value in numbers.items()}


def document(model: Any, kept: tuple[int, ...]) -> dict[str, Any]:
    """All frozen numbers of a model."""
    rows, logits = next_logits(model)
    spread = range(0, logits.shape[1], -(-logits.shape[1] // 16))
    found = {method: edge_scores(model, method) for method in METHODS}
    scores = found[METHODS[0]][0]
    margins = {key: task_margins(model, key)[1] for key in TASKS}
    return {
        "prompts": [
            {
                "text": text,
                "ids": row,
                "logits": rounded({i: float(of[i]) for i in [*of.topk(5).indices.tolist(), *spread]}),
            }
            for text, row, of in zip(PROMPTS, rows, logits, strict=True)
        ],
        "edges": {
            method: rounded(dict(list(edges.items())[:STRONGEST])) for method, (_, edges) in found.items()
        },
        "circuits": {size: rounded(circuit_numbers(model, scores, size)) for size in kept},
        "tasks": {
            key: {"n": len(each), "right": int((each > 0).sum()), **rounded({"margin": float(each.mean())})}
            for key, each in margins.items()
        },
    }


def test_logits_are_the_frozen_ones(model: Any, golden: Any) -> None:
    rows, logits = next_logits(model)
    for text, row, found, frozen in zip(PROMPTS, rows, logits, golden["prompts"], strict=True):
        assert (text, row) == (frozen["text"], frozen["ids"])
        expected = list(frozen["logits"].values())
        np.testing.assert_allclose(found[[int(i) for i in frozen["logits"]]], expected, **CLOSE)
        assert found.max() <= max(expected) + CLOSE["atol"] + CLOSE["rtol"] * abs(max(expected))


@pytest.mark.parametrize("method", METHODS)
def test_edges_and_circuits_are_the_frozen_ones(name: str, method: str, model: Any, golden: Any) -> None:
    frozen = golden["edges"][method]
    scores, edges = edge_scores(model, method)
    np.testing.assert_allclose([edges[edge] for edge in frozen], list(frozen.values()), **CLOSE)
    assert len(frozen.keys() & list(edges)[:STRONGEST]) >= STRONGEST - 2
    if method == METHODS[0]:
        for kept in KEPT[name]:
            expected = golden["circuits"][str(kept)]
            found = circuit_numbers(model, scores, kept)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert found[key] == pytest.approx(value, rel=FOLLOWS, abs=FOLLOWS), (kept, key)


# ---- accuracies ---------------------------------------------------------------------------------


def of_years(fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Right and wrong continuations of a prompt of years, where each digit is a token."""
    tens = int(fields["year"][2])
    return [str(d) for d in range(tens + 1, 10)], [str(d) for d in range(tens)]


@functools.cache
def load_alone(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module: Any = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32)
    return module.eval(), AutoTokenizer.from_pretrained(FOLDER / name)


@torch.no_grad()
def alone_margin(
    model: Any, objective: str, ids: list[int], right: list[int], wrong: list[int]
) -> torch.Tensor:
    logits = model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].double()
    if objective == "prob_diff":
        return logits.softmax(0)[right].sum() - logits.softmax(0)[wrong].sum()
    others = logits[wrong]
    return logits[right].mean() - (others.max() if objective == "logit_diff_max" else others.mean())


@pytest.mark.parametrize("key", one_of(TASKS, "capital-country", "greater-than", "gendered-pronoun", "sva"))
def test_accuracies_are_the_frozen_ones_and_those_of_transformers_alone(
    name: str, key: str, model: Any, golden: Any
) -> None:
    assert golden["tasks"].keys() == set(TASKS)
    frozen = golden["tasks"][key]
    task, found = task_margins(model, key)
    assert task.n == frozen["n"]
    np.testing.assert_allclose(found.mean(), frozen["margin"], **CLOSE)
    near = CLOSE["atol"]  # a margin so near 0 may change its sign
    assert (found > near).sum() <= frozen["right"] <= (found > -near).sum()

    alone, tokenizer = load_alone(name)
    assert task.wrong is not None
    rows: list[list[Any]] = []
    for row in range(task.n):
        sides = [[i for i in ids[row].tolist() if i >= 0] for ids in (task.answers, task.wrong)]
        if task.texts is None:  # induction: ids behind what the tokenizer begins with
            bos = tokenizer("")["input_ids"]
            rows.append([bos + task.clean[row, len(bos) : int(task.lengths[row])].tolist(), *sides])
            continue
        text, pieces = task.texts[row], [[tokenizer.decode([i]) for i in side] for side in sides]
        if key == "greater-than":
            pieces = list(of_years({name: each[row] for name, each in task.fields.items()}))
        ids = tokenizer(text)["input_ids"]
        whole = [[tokenizer(text + piece)["input_ids"] for piece in side] for side in pieces]
        assert all(each[:-1] == ids for side in whole for each in side)
        rows.append([ids, *([each[-1] for each in side] for side in whole)])
    expected = torch.stack([alone_margin(alone, task.objective, *row) for row in rows]).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert (found > 0).mean() == (expected > 0).mean()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or KEPT:
        path = GOLDEN / f"{each}.json"
        path.write_text(json.dumps(document(load(each), KEPT[each]), indent=1) + "\n", encoding="utf-8")
        print(path)
