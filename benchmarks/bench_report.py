"""How long a page over a store of 100,000 results takes to open, and how large it is; one JSON document.

    python benchmarks/bench_report.py [--results 100000] [--repeats 3]

`page` reads the store, `drawing` draws, both in a process that has its libraries loaded; `served` is the
answer of `assay serve` to the same question. Seconds are the median of the repeats.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from assay.app.site.web import create_app
from assay.pipeline.compare import compare_page
from assay.report.save import render
from assay.store import Store


sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_store import fill


LIMIT_SECONDS = 2.0


def median_seconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median time of a call, and what it gave."""
    found, seconds = None, []
    for _ in range(repeats):
        started = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), found


def opened(make: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """A page from the store: time to make it and to draw it, and its size."""
    reading, page = median_seconds(make, repeats)
    drawing, text = median_seconds(lambda: render(page), repeats)
    return {
        "page_seconds": round(reading, 3),
        "drawing_seconds": round(drawing, 3),
        "seconds": round(reading + drawing, 3),
        "share_of_limit": round((reading + drawing) / LIMIT_SECONDS, 3),
        "bytes": len(text.encode()),
    }


def served(client: TestClient, path: str, repeats: int) -> dict[str, Any]:
    """The same from the site."""
    seconds, answer = median_seconds(lambda: client.get(path), repeats)
    assert answer.status_code == 200, answer.text
    return {
        "seconds": round(seconds, 3),
        "share_of_limit": round(seconds / LIMIT_SECONDS, 3),
        "bytes": len(answer.content),
    }


def main() -> None:
    """Fill a store, open pages, print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        filling = fill(store, options.results)
        pair = [each.id for each in store.query("measurement", metric="kl", limit=2)]
        client = TestClient(create_app(store), base_url="http://127.0.0.1")
        document = {
            "benchmark": "report",
            "results": store.count(),
            "fill_seconds": round(filling, 1),
            "limit_seconds": LIMIT_SECONDS,
            "pages": {
                "comparison": opened(lambda: compare_page(store, *pair), options.repeats),
            },
            "served": {
                path: served(client, path, options.repeats)
                for path in (
                    "/",
                    "/?metric=kl&order=value",
                    "/?metric=kl&order=-value",
                    f"/result/{pair[0]}",
                )
            },
        }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
