"""Depth bias and accuracy along the training of the first model of the embedded zoo.

    python experiments/finetune_shapes/dynamics.py

Writes training_dynamics.json beside this file and the picture of the documentation.
"""

import json
from pathlib import Path

from assay.analyses.generalization import training_dynamics
from assay.tasks import draw_shapes
from assay.zoo import Zoo


HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "docs" / "images" / "training-dynamics.svg"

if __name__ == "__main__":
    zoo = Zoo.embedded()
    found = training_dynamics(
        zoo.path / zoo.entries[0].path,
        draw_shapes("flat", 200, start=5000),
        watch={
            style: draw_shapes(style, 300, start=6000) for style in ("flat", "sketch", "stripes", "relief")
        },
    )
    (HERE / "training_dynamics.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    found.plot()[0].figure.savefig(PICTURE, metadata={"Date": None})
