"""The attacks of `test_fuzz_readers.py` for some minutes: `python tests/fuzz/run_long.py --minutes 10`.

Every kind of file gets the same share of the time. Seeds are printed with what they found; `--only NAME
--seed N` repeats one. Exits with 1 if anything but a named error or a value came back.
"""

import argparse
import collections
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random


HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="run this one seed of each kind")
    parser.add_argument("--first", type=int, default=0, help="begin with this seed")
    parser.add_argument("--only", help="kinds of files, separated by commas")
    parser.add_argument("--out", type=Path, help="write the counts as JSON")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    import fuzz_targets

    names = options.only.split(",") if options.only else list(fuzz_targets.TARGETS)
    share = 60 * options.minutes / len(names)
    counts: dict[str, dict[str, int]] = {}
    failures: list[tuple[str, int, str]] = []
    for name in names:
        found: collections.Counter[str] = collections.Counter()
        start, seed = time.monotonic(), options.first
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() - start < share:
                number = seed if options.seed is None else options.seed
                try:
                    found[fuzz_targets.attack(name, Random(number), Path(folder) / "files")] += 1
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - whatever came is what is looked for
                    found["FAILED"] += 1
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    said = f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
                    failures.append((name, number, said))
                    print(f"{name}, seed {number}: {said}", flush=True)
                seed += 1
                if options.seed is not None:
                    break
        counts[name] = dict(sorted(found.items()))
        print(f"{name}: {sum(found.values())} files, {counts[name]}", flush=True)
    total = sum(sum(each.values()) for each in counts.values())
    print(f"{total} damaged files, {len(failures)} failures")
    if options.out is not None:
        content = {"files": total, "failures": failures, "counts": counts}
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
