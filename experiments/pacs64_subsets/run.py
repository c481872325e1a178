"""The whole experiment, from images to numbers and pictures; about an hour of one CPU core.

    python experiments/pacs64_subsets/run.py --data DIR --published FILE --work DIR

Training leaves the models that are already in WORK as they are, so a stopped run goes on where it was.
"""

import argparse
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .npz files")
    parser.add_argument("--published", type=Path, required=True, help="released selections of PACS, .npz")
    parser.add_argument("--work", type=Path, required=True, help="features and predictions; not committed")
    given = parser.parse_args()
    data, work = ("--data", str(given.data.resolve())), ("--work", str(given.work.resolve()))
    stages = (
        ("train.py", *data, *work),
        ("collect.py", *data, *work),
        ("analyse.py",),
        ("embed.py", *data),
        ("compare.py",),
        ("answers.py", *work),
        ("replicate.py", "--published", str(given.published.resolve())),
        ("figures.py", *data, "--published", str(given.published.resolve())),
    )
    for script, *options in stages:
        subprocess.run([sys.executable, str(HERE / script), *options], check=True)


if __name__ == "__main__":
    main()
