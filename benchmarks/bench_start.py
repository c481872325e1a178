"""Time of what runs no model: starting, and statistics of a million pairs; prints one JSON document.

python benchmarks/bench_start.py
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from assay.core.random import stream
from assay.stats import cell_tests, certificate


REPETITIONS = 5


def best(function: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return round(min(seconds), 4)


def fresh(code: str) -> Callable[[], object]:
    """Run code in an interpreter of its own."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def main() -> None:
    """Measure and print."""
    rng = stream(0, "speed")
    pairs = rng.gamma(2.0, size=(1000, 1)) + rng.gamma(2.0, size=(1000, 1000))
    exceeds = pairs > np.quantile(pairs, 0.99)
    place = np.arange(1000)
    interpreter = best(fresh("pass"))
    document = {
        "benchmark": "start",
        "seconds": {
            "interpreter alone": interpreter,
            "import assay, beyond it": round(best(fresh("import assay")) - interpreter, 4),
            "assay --help": best(
                fresh("import sys; sys.argv = ['assay', '--help']; from assay.app.cli import main; main()")
            ),
            "field tests of a million pairs": best(
                lambda: cell_tests(exceeds, place[:, None] % 120, place[None] % 97)
            ),
            "certificates of a million pairs": best(lambda: certificate(pairs, 0.99)),
        },
        "goal": {"import assay, beyond it": 0.3, "assay --help": 0.5},
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
