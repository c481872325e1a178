"""`assay select` without an argument, and what the documentation shows of it; writes `results.json`.

python experiments/digits_subsets/run.py [--from SELECTION.json]

Trains 320 classifiers of digits and tests three sizes: a minute or two of processor time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent


def line(row: dict[str, Any]) -> str:
    """A row of the table of `docs/howto/select.md`; a test compares them."""
    verdict = row["verdict"]
    ends = f"{verdict['r']:.2f} [{verdict['low']:.2f}, {verdict['high']:.2f}]"
    cells = [str(row["size"]), verdict["status"], f"{verdict['p_value']:.3f}", ends]
    cells += [f"{row[kind]['r']:.2f}" for kind in ("test", "random", "hard", "marginal")]
    return f"| {' | '.join(cells)} |".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, help="a document that `assay select` saved")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = given.source or Path(folder) / "selection.json"
        if given.source is None:
            command = [sys.executable, "-m", "assay", "select", "--out", folder, "--store", f"{folder}/store"]
            subprocess.run(command, check=True)
        document = json.loads(source.read_text(encoding="utf-8"))
    of_kind = {(row["kind"], row["size"]): row for row in document["baselines"]}
    headline = next(each for each in document["subsets"] if each["size"] == document["size"])
    rows = [
        {"size": each["size"], "verdict": each["verdict"], "test": each["correlation"]["test"]}
        | {kind: of_kind[kind, each["size"]] for kind in ("random", "hard", "marginal")}
        for each in document["subsets"]
    ]
    kept = {name: document[name] for name in ("id", "size", "largest")}
    kept |= {"rows": rows, "full": headline["full"], "example_ids": headline["example_ids"]}
    kept["cues"] = [row for row in document["contents"]["prevalence"] if row["attribute"] == "cue"]
    (HERE / "results.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print("\n".join(map(line, rows)))


if __name__ == "__main__":
    main()
