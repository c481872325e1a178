"""How fast the circuit viewer answers in Chromium with 5,000 edges; one JSON document.

    python benchmarks/bench_viewer.py [--edges 5000] [--repeats 7] [--save]

`first_paint` is the browser's first contentful paint and `ready` the end of the page's script, in
milliseconds from the start of the navigation. An interaction is timed in the page, from the event to the
second frame after it.
Times are medians of the repeats; `worst` is the largest. `--save` writes `benchmarks/results/viewer.json`.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from assay.circuits import EdgeScores
from assay.graph import build_graph
from assay.page.html import PAGE_LIMIT
from assay.report import circuit_document
from assay.report.save import render


CHROMIUM = os.environ.get("ASSAY_CHROMIUM", "/usr/bin/chromium")
RESULTS = Path(__file__).parent / "results" / "viewer.json"
GOALS = {"first_paint": 1_000, "interaction": 100}
# Interaction -> what it does to the viewer `figure`; each repeat uses another `k`.
ACTS = {
    "filter by weight": """const field = figure.querySelector('[name=minimum]');
      field.value = 100 + 20 * k; field.dispatchEvent(new Event('input'))""",
    "filter by layer": """const field = figure.querySelector('[name=from]');
      field.value = 1 + k % 10; field.dispatchEvent(new Event('input'))""",
    "all edges again": """const field = figure.querySelector('.reset');
      field.disabled = false; field.click()""",
    "search": """const field = figure.querySelector('[name=search]');
      field.value = 'a' + k; field.dispatchEvent(new Event('input'))""",
    "end of search": """const field = figure.querySelector('[name=search]');
      field.value = ''; field.dispatchEvent(new Event('input'))""",
    "hover of a node": """const node = figure.querySelectorAll('.node.on')[10 + k];
      node.dispatchEvent(new MouseEvent('mouseenter'))""",
    "hover of the edges": """const box = figure.querySelector('.stage').getBoundingClientRect();
      figure.querySelector('.graph').dispatchEvent(new MouseEvent('mousemove',
        {bubbles: true, clientX: box.left + 200 + 60 * k, clientY: box.top + 150 + 13 * k}))""",
    "zoom in": "figure.querySelector('.zoom-in').click()",
}
TIMED = """([act, k]) => new Promise((done) => {
  const figure = document.querySelector('.viewer'), start = performance.now();
  %s;
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""


def page_of(n_edges: int) -> str:
    """The page of the strongest edges of random scores in a graph of GPT-2's shape."""
    graph = build_graph(12, 12)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=generator) ** 3
    scores = EdgeScores(graph, values)
    return render(circuit_document(scores.top(n_edges), scores=scores))


def opened(browser: Any, place: Path) -> tuple[Any, dict[str, float]]:
    """A fresh page, and when it painted and was ready."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(place.as_uri())
    page.wait_for_timeout(300)
    script = """() => ({
      first_paint: performance.getEntriesByName('first-contentful-paint')[0].startTime,
      ready: performance.getEntriesByType('navigation')[0].domContentLoadedEventStart})"""
    return page, page.evaluate(script)


def measured(browser: Any, place: Path, repeats: int) -> dict[str, Any]:
    """Opening and every interaction."""
    loads: list[dict[str, float]] = []
    for _ in range(repeats):
        page, load = opened(browser, place)
        loads.append(load)
        page.close()
    page, _ = opened(browser, place)
    frame = page.locator(".viewer").evaluate("figure => ({...figure.dataset})")
    acts = {
        name: [page.evaluate(TIMED % act, ["", k]) for k in range(1, repeats + 1)]
        for name, act in ACTS.items()
    }
    page.close()
    times = {
        "first_paint": [load["first_paint"] for load in loads],
        "ready": [load["ready"] for load in loads],
    }
    return {
        "drawn_one_by_one": int(frame["drawn"]),
        "bundles": int(frame["bundles"]),
        "opening_ms": {name: summary(values) for name, values in times.items()},
        "interaction_ms": {name: summary(values) for name, values in acts.items()},
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median and worst."""
    return {"median": round(statistics.median(values), 1), "worst": round(max(values), 1)}


def main() -> None:
    """Measure, print one JSON document."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    text = page_of(options.edges)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        place = Path(folder) / "page.html"
        place.write_text(text, encoding="utf-8")
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        document = {
            "benchmark": "viewer",
            "edges": options.edges,
            "bytes": len(text.encode()),
            "share_of_page_limit": round(len(text.encode()) / PAGE_LIMIT, 3),
            "browser": browser.version,
            "goals_ms": GOALS,
            "load_average": round(os.getloadavg()[0], 1),
            **measured(browser, place, options.repeats),
        }
        browser.close()
    made = json.dumps(document, indent=1)
    if options.save:
        RESULTS.write_text(made + "\n", encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
