"""The sixteen calibrations on the circuits of two tasks of `mini`: verdicts as JSON, a picture for IOI.

Each circuit is the one that `assay calibrate --task TASK` finds; greater-than and IOI are each other's second
task, so that C17 has something to compare. About a minute per task.

Shown in docs/howto/calibrate.md.

    python experiments/mini_calibrations/run.py
"""

import json
from pathlib import Path

import matplotlib as mpl

from assay.analyses.calibration.page import plot_gates
from assay.models import load_model
from assay.page.draw import PAPER
from assay.pipeline.gates import calibrate_stored, usual_prompts
from assay.pipeline.sizing import runs_of


HERE = Path(__file__).parent
IMAGES = HERE.parent.parent / "docs" / "images"
GROUPS = {"ioi": "object", "greater-than": "century"}


def main() -> None:
    mpl.rc("svg", fonttype="none", hashsalt="gates")
    model = load_model("mini")
    found = {}
    for task in GROUPS:
        runs = runs_of(model, task, None, progress=lambda *step: None)
        found[task] = (usual_prompts(runs.task)[0], runs.circuit)
    results = {}
    for task, groups in GROUPS.items():
        prompts, circuit = found[task]
        others = [pair for name, pair in found.items() if name != task]
        document = calibrate_stored(circuit, model, prompts, against=others, groups=groups).document
        if task == "ioi":
            picture = plot_gates(document["gates"]).figure
            picture.savefig(IMAGES / "gates-ioi.svg", metadata={"Date": None}, facecolor=PAPER)
        results[task] = {
            "circuit": document["circuit"],
            "prompts": document["table"]["n_prompts"],
            "pool": document["table"]["n_pool"],
            "passes": document["table"]["machine"]["passes"],
            "gates": {
                gate["code"]: {
                    "status": gate["verdict"]["status"],
                    "published": gate["verdict"]["published"],
                    "reason": gate["verdict"]["reason"],
                    "values": gate["verdict"]["values"],
                    "interval": gate["verdict"]["interval"],
                }
                for gate in document["gates"]
            },
        }
        print(task, {code: gate["status"] for code, gate in results[task]["gates"].items()})
    (HERE / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
