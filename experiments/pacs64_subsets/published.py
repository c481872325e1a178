"""The authors' released selections: for each size, examples by name, most harmful first."""

from pathlib import Path

import numpy as np

from assay.core.untrusted import load_npz


def load_published(path: Path) -> dict[int, np.ndarray]:
    """Names `class/file` of the selected examples, by size.

    The released file names do not belong to the selected examples: rows were shuffled on loading and not put
    back on export. `corrected_of_published` maps positions to the selected examples.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884; repository olawalesalaudeen/OODSELECT.
    """
    arrays = load_npz(path)
    selected = arrays["ids"][arrays["corrected_of_published"][arrays["index"]]]
    rankings = np.split(selected, arrays["offsets"][1:-1])
    return dict(zip(arrays["sizes"].tolist(), rankings, strict=True))
