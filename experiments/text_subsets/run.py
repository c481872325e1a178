"""Select prompts by `assay select`, four times as the protocol says; writes `results/selections.json`.

python experiments/text_subsets/run.py [--permutations 99] [--workers 1]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.subsets import CorrectnessData


RESULTS = Path(__file__).resolve().parent / "results"
SIZES = "10,20,50,100,250,500"
BEFORE_THE_RULE = 0.95
MIDDLE = "-step-100"
# Lists of plain values go on one line.
PLAIN_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
SHOWN = {
    "test": ("r", "low", "high", "spearman", "n", "n_units", "frac_clipped"),
    "verdict": ("status", "aotil", "r", "low", "high", "p_value", "n_permutations", "reasons", "notes"),
    "random": ("r", "low", "high"),
    "hard": ("r", "low", "high"),
    "marginal": ("r", "low", "high"),
}
FACTS = ("attribute", "value", "selected", "pool", "q_value", "significant")


def analyses(data: CorrectnessData) -> dict[str, tuple[CorrectnessData, tuple[str, ...]]]:
    """The models and the options of each analysis of the protocol."""
    early = np.flatnonzero(data.id_accuracy <= BEFORE_THE_RULE)
    middle = np.flatnonzero([name.endswith(MIDDLE) for name in data.model_ids])
    return {
        "main": (data, ()),
        "fixed mix": (data, ("--strata", "attractor")),
        "before the rule": (data.take(models=early), ()),
        "one model per run": (data.take(models=middle), ()),
    }


def rounded(value: Any) -> Any:
    """Finite JSON with few digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def short(document: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a document of `assay select`."""
    of_kind = {(row["kind"], row["size"]): row for row in document["baselines"]}
    headline = next(each for each in document["subsets"] if each["size"] == document["size"])
    rows = []
    for subset in document["subsets"]:
        size = subset["size"]
        parts = {"test": subset["correlation"]["test"], "verdict": subset["verdict"]}
        parts |= {kind: of_kind[kind, size] for kind in ("random", "hard", "marginal")}
        shown = {part: {name: parts[part][name] for name in names} for part, names in SHOWN.items()}
        rows.append({"size": size, **shown})
    return {
        "n_models": document["contents"]["data"]["n_models"],
        "n_runs": document["contents"]["description"]["training runs"],
        "full": headline["full"],
        "rows": rows,
        "headline": document["size"],
        "indices": headline["indices"],
        "null": headline["verdict"]["null"],
        "facts": [
            {name: row[name] for name in FACTS}
            for row in document["contents"]["prevalence"]
            if row["attribute"] in ("attractor", "number", "prep")
        ],
    }


def table(results: dict[str, Any]) -> Iterator[str]:
    """The table of `docs/text-subsets.md`."""

    def number(value: float | None, digits: int = 2) -> str:
        return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")

    yield "| analysis | size | verdict | p | R, cross-fitted | R, test | random | hardest | one-pass |"
    yield f"|{' --- |' * 9}"
    for name, found in results.items():
        for row in found["rows"]:
            verdict = row["verdict"]
            ends = f"{number(verdict['r'])} [{number(verdict['low'])}, {number(verdict['high'])}]"
            others = [number(row[kind]["r"]) for kind in ("test", "random", "hard", "marginal")]
            cells = [name, str(row["size"]), verdict["status"], number(verdict["p_value"], 3), ends, *others]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--permutations", type=int, default=99)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    data = CorrectnessData.load(RESULTS / "answers.npz")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (models, options) in analyses(data).items():
            place = Path(folder) / name.replace(" ", "-")
            place.mkdir()
            models.save(place / "answers.npz")
            command = [sys.executable, "-m", "assay", "select", str(place / "answers.npz"), "--sizes", SIZES]
            command += ["--permutations", str(given.permutations), "--workers", str(given.workers), *options]
            command += ["--store", str(place / "store"), "--out", str(place), "--quiet"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found[name] = short(json.loads((place / "selection.json").read_text(encoding="utf-8")))
    text = json.dumps(rounded(found), indent=1, allow_nan=False)
    text = PLAIN_LIST.sub(lambda part: f"[{' '.join(part[1].split())}]", text)
    (RESULTS / "selections.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
