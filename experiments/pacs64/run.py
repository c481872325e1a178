"""The whole experiment, from images to tables and pictures; about 35 minutes of one CPU core.

    python experiments/pacs64/run.py --data DIR --work DIR

Each stage leaves what is already in WORK as it is, so a stopped run goes on where it was.
"""

import subprocess
import sys

from pacs import HERE, arguments


STAGES = (
    ("pretrain.py", "--start", "shapes"),
    ("pretrain.py", "--start", "mae"),
    ("train.py", "--batch", "64"),
    ("measure.py",),
    ("monitor.py",),
    ("analyse.py",),
    ("motif_domains.py",),
    ("dynamics.py",),
    ("figures.py",),
)


def main() -> None:
    given = arguments(__doc__).parse_args()
    folders = ("--data", str(given.data.resolve()), "--work", str(given.work.resolve()))
    for script, *options in STAGES:
        subprocess.run([sys.executable, str(HERE / script), *folders, *options], check=True)


if __name__ == "__main__":
    main()
