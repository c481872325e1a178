"""Golden values of independent implementations; see tests/golden/README.md."""

import json
from pathlib import Path
from typing import Any

import numpy as np


FOLDER = Path(__file__).resolve().parent.parent / "golden" / "oodselect"
SMALL = ("small_101", "small_102")


def values(name: str) -> dict[str, Any]:
    """The expected outputs of one input."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def arrays(name: str) -> dict[str, np.ndarray]:
    """One input."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file}
