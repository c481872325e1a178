"""How often is a verdict `supported` where models are copies of each other? Writes `results/copies.json`.

Unrelated answers (each right with probability 0.7), or 60 of 600 examples on which better models do worse.
Some models are copies under other names: exact, or with 2 % of the answers altered, in and out of
distribution.

    python experiments/subset_verdicts/copies.py [--sets 100] [--tables-only]
"""

import argparse
import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from run import HERE, interval, write

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.selection import oodselect
from assay.core.errors import InputError
from assay.core.random import stream


RESULTS = HERE / "results" / "copies.json"
N_EXAMPLES, N_ID, TURNED, SIZE = 600, 500, 60, 60
ALTERED = 0.02
# Copies of each original model.
ZOOS = {
    "6 models x 8": (8,) * 6,
    "16 models x 5": (5,) * 16,
    "30 copies of one, 90 others": (30, *(1,) * 90),
    "120 models": (1,) * 120,
}
BEGIN, END = "<!-- begin: written by copies.py -->", "<!-- end: written by copies.py -->"


def draw(zoo: str, altered: float, turned: int, seed: int) -> CorrectnessData:
    """Answers of a zoo: every model a training run of its own, as its names say."""
    rng, original = stream(seed, f"copies {zoo} {altered} {turned}"), np.repeat(*_sizes(zoo))
    skill = rng.uniform(0.6, 0.95, original.max() + 1)
    chance = np.full((len(skill), N_EXAMPLES), 0.7)
    chance[:, :turned] = 1.45 - skill[:, None]
    answers = [rng.random(p.shape) < p for p in (chance, np.repeat(skill[:, None], N_ID, axis=1))]
    ood, within = (each[original] for each in answers)
    ood, within = (each ^ (rng.random(each.shape) < altered) for each in (ood, within))
    order = rng.permutation(len(original))
    return CorrectnessData.of(ood[order], within.mean(axis=1)[order], groups=range(len(order)))


def _sizes(zoo: str) -> tuple[np.ndarray, tuple[int, ...]]:
    return np.arange(len(ZOOS[zoo])), ZOOS[zoo]


def measure(n_sets: int) -> list[dict[str, Any]]:
    """A row per zoo, kind of copy and truth."""
    rows = []
    for zoo, sizes in ZOOS.items():
        for altered in (0.0, ALTERED) if max(sizes) > 1 else (0.0,):
            for turned in (0, TURNED):
                found = supported = 0
                for seed in range(n_sets):
                    data = draw(zoo, altered, turned, seed)
                    found += len(np.unique(data.copies)) == len(sizes)
                    with contextlib.suppress(InputError):  # all training models of one accuracy
                        supported += oodselect(data, size=SIZE, seed=seed).judge(workers=1).supported
                rows.append(
                    {
                        "zoo": zoo,
                        "altered": altered,
                        "turned": turned,
                        "n": n_sets,
                        "all_copies_found": found,
                        "supported": supported,
                        "interval": interval(supported, n_sets),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Shares of the data sets, as Markdown."""
    lines = [
        "| models | copies | turned examples | data sets | copies found in | supported |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        copies = f"{row['altered']:.0%} altered" if row["altered"] else "exact"
        low, high = row["interval"]
        cells = [row["zoo"], copies if max(ZOOS[row["zoo"]]) > 1 else "none", row["turned"], row["n"]]
        cells += [
            f"{row['all_copies_found'] / row['n']:.2f}",
            f"{row['supported'] / row['n']:.2f} ({low:.2f} to {high:.2f})",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=100, help="data sets per row")
    parser.add_argument("--tables-only", action="store_true", help="draw from what has been measured")
    options = parser.parse_args()
    if not options.tables_only:
        write(RESULTS, json.dumps(measure(options.sets), indent=1) + "\n")
    page: Path = HERE / "README.md"
    before, rest = page.read_text().split(BEGIN, 1)
    write(
        page, "\n\n".join((before + BEGIN, table(json.loads(RESULTS.read_text())), END + rest.split(END)[1]))
    )


if __name__ == "__main__":
    main()
