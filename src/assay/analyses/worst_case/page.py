"""A worst case as a page: how far, how often, what is guaranteed, which prompts and pairs are bad."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from assay.analyses.worst_case.page_fields import field_blocks
from assay.analyses.worst_case.page_pairs import missing_edges, searched_pairs, worst_pairs
from assay.analyses.worst_case.page_words import (
    METHODS,
    Percentile,
    ablation_sentence,
    certificate_note,
    count,
    counted,
    divergence_name,
    draws,
    kind,
    no_certificate,
    noun,
    percentiles,
    protocol_sentence,
    second,
    significant,
    single,
    tail_caveats,
    tail_verdict,
    title,
    unit_of,
    worst_pair,
)
from assay.analyses.worst_case.plots import plot_tail
from assay.page.blocks import Block, Cell, Figure, Note, Page, Row, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import Text, code, model_text, number, percent, quiet, task_text


DASH = "\N{EN DASH}"
Document = Mapping[str, Any]


def worst_case_page(document: Document) -> Page:
    """Everything that is shown of a worst case.

    Args:
        document: What `WorstCase.to_dict` gave.
    """
    circuit, unit = document["circuit"], unit_of(document)
    of, search, explanation = kind(document), document.get("search"), document.get("explanation")
    extras = [searched_pairs(search, document, unit)] if search else []
    extras += [missing_edges(explanation, unit)] if explanation else []
    read = ", at the position that predicts the answer" if of == "prompt" else ""
    return Page(
        kind="worst case",
        title=title(document),
        verdict=tail_verdict(document),
        remark=worst_pair(document),
        caveats=tail_caveats(document),
        lede=f"The circuit keeps {number(circuit['n_edges'])} of {number(circuit['n_graph_edges'])} edges. "
        f"{protocol_sentence(document)} {ablation_sentence(document)} The divergence is the "
        f"{divergence_name(document)}{read}; 0 means no difference.",
        sections=[
            Section(title="How far, and how often", blocks=[_tail(document, unit)]),
            Section(title="What is guaranteed", blocks=[_certificates(document, unit)]),
            Section(
                title=f"Which {of}s are hard",
                blocks=field_blocks(document.get("fields") or {}, unit, noun(document), of),
            ),
            Section(title=f"The worst {noun(document)}", blocks=worst_pairs(document, unit)),
            *extras,
        ],
        facts=list(_facts(document)),
        records=[folded_record("Provenance", document.get("provenance") or {})],
        style="worst",
    )


def _tail(document: Document, unit: str) -> Figure:
    """The distribution beside its percentiles."""
    counts, summary = document["histogram"]["counts"], document["summary"]
    share = counts[0] / max(sum(counts), 1)
    first_bin = (
        f"; {percent(share)} of the circuit’s {noun(document)} are in the first bin" if share > 0.5 else ""
    )
    rows: list[list[Cell | Text]] = [_percentile_row(each) for each in percentiles(document)]
    if summary.get("argmax_differs") is not None:
        answer = "token" if kind(document) == "prompt" else "class"
        rows.append([f"first {answer} differs", percent(summary["argmax_differs"]), "", "", ""])
    rows += [
        [f"above {significant(float(each['threshold']))}", percent(each["share"]), "", "", ""]
        for each in summary.get("above") or ()
    ]
    return Figure(
        draw=partial(plot_tail, document),
        label="Histogram of the divergence of circuit and empty circuit, with percentiles; the numbers are "
        "in the table.",
        note=f"Blue: the circuit; grey: the empty circuit on the same {noun(document)}; the model would be "
        "at 0. "
        f"{noun(document).capitalize()} per bin are on a logarithmic axis{first_bin}.",
        blocks=[
            Table(
                columns=columns(unit) + columns("circuit", "z", "certified", "empty circuit", numeric=True),
                rows=rows,
                style="percentiles",
            )
        ],
        caption=f"{count(document, 'pairs')} distinct {noun(document)}. Percentiles are those of the sample; "
        "a certified bound is one on the percentile of the distribution it was drawn from."
        f"{_anchor_sentences(document.get('anchor') or {}, noun(document))}",
        beside=True,
        style="tail",
        name="tail",
    )


def _percentile_row(row: Percentile) -> list[Cell | Text]:
    bound: Text = "" if row.n_needed is None else quiet("none")
    if row.bound is not None:
        bound = f"\N{LESS-THAN OR EQUAL TO}\N{NO-BREAK SPACE}{significant(row.bound)}"
    return [
        row.name,
        significant(row.value),
        Cell(text="" if row.z is None else number(row.z, 1), style="quiet"),
        bound,
        "" if row.anchor is None else significant(row.anchor),
    ]


def _anchor_sentences(anchor: Document, what: str) -> str:
    """How circuit and empty circuit compare, pair by pair and on the whole."""
    share, ratio, spearman = (anchor.get(name) for name in ("share_above", "ratio_of_means", "spearman"))
    sentences = [
        f" On {percent(share)} of the {what} the circuit is further from the model than the empty circuit "
        "is.",
        f" Ratio of means {significant(ratio)}.",
        f" Rank correlation of the two over {what}: {number(spearman)}.",
    ]
    values = (share, ratio, spearman)
    return "".join(sentence for sentence, value in zip(sentences, values, strict=True) if value is not None)


def _certificates(document: Document, unit: str) -> Block:
    """The bounds that were asked for, sound ones and others."""
    if not document["certificates"]:
        return Note(text=f"Nothing: {no_certificate(document)}.")
    of, shared = counted(document), document["protocol"] == "all"
    what, single_input = noun(document), kind(document)
    caption = f"Upper bounds on percentiles over all {what} of this kind, not only these {what}. "
    if shared:
        caption += (
            f"Pairs share {single_input}s, so the smaller number of {single_input}s on a side is what "
            "counts. "
        )
    caption += (
        "Each row holds by itself with its confidence; several rows together hold with less. They cover "
        f"only {single_input}s drawn in the same way. "
    )
    exceedance = document.get("maximum_exceedance")
    if exceedance is not None:
        caption += (
            "With confidence 0.95, a new "
            f"{f'pair of new {single_input}s' if shared else what.removesuffix('s')} "
            f"exceeds the worst one here with probability at most {percent(exceedance)}."
        )
    return Table(
        columns=[
            *columns("percentile", "certificate"),
            *columns(f"at most, {unit}", "with confidence", "rank of the bound", numeric=True),
            *columns(f"independent {of}", numeric=True),
            *columns("remark"),
        ],
        rows=[
            Row(
                cells=[
                    f"{100 * each['percentile']:g}",
                    (
                        METHODS.get(each["method"], each["method"]).replace("pairs", what),
                        quiet(" theorem") if each["rigorous"] else "",
                    ),
                    DASH if each["bound"] is None else significant(each["bound"]),
                    DASH if each["bound"] is None else percent(each["confidence"]),
                    "" if each["order"] is None else f"{number(each['order'])} of {number(each['n_values'])}",
                    number(each["n"]),
                    certificate_note(each, of),
                ],
                style="sound" if each["rigorous"] else "unsound",
            )
            for each in document["certificates"]
        ],
        caption=caption,
        style="certificates",
    )


def _facts(document: Document) -> Iterator[tuple[str, Text]]:
    circuit, model, task = document["circuit"], document["model"], document["task"]
    if "id" in document:
        yield "result", code(document["id"])
    edges = f"{number(circuit['n_edges'])} of {number(circuit['n_graph_edges'])} edges"
    yield "circuit", (f"{circuit.get('name') or ''} ", quiet(edges), " ", code(circuit["hash"]))
    yield "model", model_text(model)
    drawn = f"{noun(document)} drawn with seed {document['seed']}" if "seed" in document else ""
    yield "task", task_text(task, drawn)
    prompts: list[Text] = [*_prompts(document, "clean", "clean")]
    if not single(document):
        prompts += [", ", *_prompts(document, "corrupted", second(document))]
    yield f"{kind(document)}s", tuple(prompts)
    ablation = f"{document.get('ablation', 'resample')} ablation, {document['divergence']}"
    yield "protocol", (f"{document['protocol']} ", quiet(ablation))
    if document.get("seconds") is not None:
        yield "took", f"{number(float(document['seconds']), 1)} s"


def _prompts(document: Document, side: str, name: str) -> Iterator[Text]:
    yield f"{count(document, side)} distinct {name}"
    if repeated := draws(document, side):
        yield quiet(f" {repeated}")


PAGES.add(
    "worst_case",
    PageForm(noun="worst case", schema="assay-worst-case/1", again="`assay attack`", make=worst_case_page),
)
