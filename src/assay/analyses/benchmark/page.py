"""The page of a benchmark of discovery methods."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from assay.analyses.benchmark import DiscoveryBenchmark, plots, tables
from assay.page.blocks import Figure, Page, Section
from assay.page.form import PAGES, PageForm
from assay.page.text import model_text


def benchmark_page(document: Mapping[str, Any]) -> Page:
    """Everything that is shown of a benchmark, from its document."""
    # The store adds the kind, which the document itself does not name.
    benchmark = DiscoveryBenchmark.from_dict({key: document[key] for key in document if key != "kind"})
    picture = Figure(
        draw=partial(plots.plot_benchmark, benchmark),
        label=plots.benchmark_label(benchmark),
        caption="CPR with its 95 % interval against the cost of the discovery, a point per method.",
    )
    quality = replace(tables.quality_table(benchmark), note=tables.LEGEND)
    return Page(
        kind="benchmark",
        title=f"Discovery methods on {benchmark.task} in {benchmark.model['id']}",
        verdict=tables.finding(benchmark),
        subject=f"{tables.heading(benchmark)}.",
        caveats=tables.notes(benchmark),
        sections=[
            Section(title="Quality and cost", blocks=[picture, quality]),
            Section(title="The published order", blocks=[tables.order_of(benchmark)]),
        ],
        facts=[("model", model_text(benchmark.model))],
    )


SCHEMA = DiscoveryBenchmark.record_header["format"]
PAGES.add("benchmark", PageForm(noun="benchmark", schema=SCHEMA, again="benchmark", make=benchmark_page))
