"""Pictures of the documentation that come from the embedded models; writes them to docs/images.

Every picture is drawn from a run made here, except one that draws a rule. A few minutes on two cores.

    python experiments/pictures/run.py [NAME ...]
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import classifiers
import explained
import texts
from matplotlib import rc_context
from matplotlib.figure import Figure


IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES: dict[str, Callable[[], Figure]] = {**texts.PICTURES, **classifiers.PICTURES, **explained.PICTURES}


def save(name: str, figure: Figure) -> None:
    """Write a picture; the same drawing gives the same bytes."""
    path = IMAGES / name
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        if path.suffix == ".svg":
            figure.savefig(path, metadata={"Date": None})
        else:
            figure.savefig(path, dpi=110, metadata={"Software": None})
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    for name in names:
        save(name, PICTURES[name]())


if __name__ == "__main__":
    main()
