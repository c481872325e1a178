"""Every discovery method judged: tables and pictures of docs/theory/planted.md and docs/howto/benchmark.md.

    python experiments/discovery_benchmark/run.py truth [--methods ...] [--models ...]
    python experiments/discovery_benchmark/run.py targets [--targets ...] [--methods ...] [--work DIR]
    python experiments/discovery_benchmark/run.py docs

One CPU thread, so that times are processor times. `truth` with some methods or models adds them to what
`truth.json` holds. `targets` runs the methods that have no file in the work folder yet, and judges all that
have one on the same examples; other rows of the results stay. The published models are those of `make real`,
and take hours. Results are `truth.json` and `TARGET.json` beside this file; `docs` (also the end of every
other step) writes from them the tables in `docs/tables` and the pictures in `docs/images`.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import truth as truth_tables
from matplotlib.axes import Axes
from targets import TARGETS, results, steps_table, targets_tables
from targets import run as run_target

from assay.analyses.benchmark import page as benchmark_tables
from assay.app.options import parse_options
from assay.discovery.edges import METHODS
from assay.models.planted import planted_names
from assay.page import draw
from assay.page.blocks import Table
from assay.page.text import plain_text


HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
TRUTH_N, SEED = 32, 0
WORK = Path.home() / ".cache" / "assay-discovery-benchmark"
CELL = ["model", "method", "objective"]
# Learned masks on planted models: their few edges need fewer updates.
TRUTH_OPTIONS: dict[str, dict[str, Any]] = {name: {"updates": 300} for name in ("nested", "ugs")}

# Cheapest first, as pages list them; others come last.
ORDER = (
    "random", "ifr", "eap", "relp", "gim", "clean-corrupted", "eap-ig-inputs", "two-target",
    "eap-ig-activations", "acdc", "exact", "nested", "ugs",
)  # fmt: skip


def progress(stage: str, done: int, total: int) -> None:
    print(f"{time.strftime('%H:%M:%S')} {done}/{total} {stage}", file=sys.stderr, flush=True)


def options_of(names: Sequence[str], given: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The options of those that compete."""
    return {name: own for name, own in given.items() if name in names}


def truth(
    methods: Sequence[str] | None, models: Sequence[str] | None, options: dict[str, dict[str, Any]]
) -> None:
    names = list(methods or METHODS)
    chosen = [each for each in planted_names() if models is None or each.startswith(tuple(models))]
    path = HERE / "truth.json"
    for model in chosen:  # saved model by model: a run that is stopped keeps what it has
        asked = options_of(names, TRUTH_OPTIONS | options)
        found = truth_tables.measure_truth(model, names, options=asked, n=TRUTH_N, seed=SEED)
        if path.exists():
            found = pd.concat([read_truth(path), found]).drop_duplicates(CELL, keep="last")
        document = {"n": TRUTH_N, "seed": SEED, "rows": json.loads(in_order(found).to_json(orient="records"))}
        path.write_text(json.dumps(document, indent=1) + "\n")


def read_truth(path: Path) -> pd.DataFrame:
    """What `truth` wrote."""
    return pd.DataFrame(json.loads(path.read_text())["rows"])


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of the planted models and of `ORDER`."""
    models = {name: place for place, name in enumerate(planted_names())}
    methods = {name: place for place, name in enumerate(dict.fromkeys((*ORDER, *table.method)))}
    return table.sort_values(
        ["model", "method"], key=lambda names: names.map(models | methods), kind="stable", ignore_index=True
    )


def docs() -> None:
    tables, images = DOCS / "tables", DOCS / "images"
    tables.mkdir(exist_ok=True)
    path = HERE / "truth.json"
    if path.exists():
        table = read_truth(path)
        (tables / "truth-methods.inc").write_text(markdown_table(truth_tables.methods_table(table)))
        (tables / "truth-misses.inc").write_text(bullets(truth_tables.misses(table)))
        facts = truth_tables.facts(table, json.loads(path.read_text()))
        (tables / "truth-facts.inc").write_text(facts)
        write_picture(images / "truth-map.svg", truth_tables.plot_truth(table))
    judged = results(HERE)
    parts = targets_tables(judged, ORDER) if judged else []
    text = "\n".join(f"**{heading}**\n\n{markdown_table(table)}" for heading, table in parts)
    (tables / "targets.inc").write_text(text)
    (tables / "mini-steps.inc").write_text(markdown_table(steps_table(judged)))
    if benchmark := judged.get("mini-ioi"):
        quality = markdown_table(benchmark_tables.quality_table(benchmark))
        (tables / "mini-ioi-quality.inc").write_text(f"{benchmark_tables.heading(benchmark)}.\n\n{quality}")
        write_picture(images / "benchmark-mini-ioi.svg", benchmark.plot())


def write_picture(path: Path, ax: Axes) -> None:
    text = draw.to_svg(ax, label=path.stem, key=path.stem)
    text = re.sub(r"var\(--(\w+)\)", lambda name: str(getattr(draw, name[1].upper())), text)
    own = r'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" width="\1" style="background:#fdfcf8"'
    path.write_text(re.sub(r'style="max-width:(\d+)px"', own, text, count=1) + "\n")


def markdown_table(table: Table) -> str:
    """A table of pipes; numbers are set flush right."""
    names = [plain_text(column.name) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = ([cell.replace("|", "\\|") for cell in cells] for cells in (names, rules, *table.texts()))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("truth", "targets", "docs"))
    parser.add_argument("--methods", nargs="*", help="default: all; none: judge what was run")
    parser.add_argument("--models", nargs="+", help="of truth: beginnings of names")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--option", nargs="+", default=[], help="METHOD.NAME=VALUE")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of unfinished targets")
    parser.add_argument("--real", type=Path, default=DOCS.parent / ".real", help="what `make real` made")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = parse_options(arguments.option)
    if arguments.step == "truth":
        truth(arguments.methods, arguments.models, options)
    elif arguments.step == "targets":
        places = {"real": arguments.real, "work": arguments.work, "results": HERE}
        methods = ORDER if arguments.methods is None else arguments.methods
        for name in arguments.targets:
            run_target(name, methods, options, ORDER, places=places, seed=SEED, progress=progress)
    docs()


if __name__ == "__main__":
    main()
