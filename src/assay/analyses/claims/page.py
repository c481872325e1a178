"""A claim as a page: the tier, the checklist of evidence, the tests behind it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.core.record import plain
from assay.page.blocks import Block, Cell, Code, Details, Page, Section, Table, columns
from assay.page.form import PAGES, PageForm
from assay.page.text import NARROW, Text, bold, code, interval, listed, number, p_value, quiet, rounded


# State of a kind of evidence -> mark.
MARKS: Mapping[str, str] = {
    "present": "\N{HEAVY CHECK MARK}",
    "against": "\N{MULTIPLICATION X}",
    "undecided": "?",
    "missing": "\N{WHITE CIRCLE}",
}
Document = Mapping[str, Any]


def claim_page(document: Document) -> Page:
    """Everything that is shown of a claim.

    Args:
        document: What `ClaimResult.to_dict` gave.
    """
    claim = document["claim"]["claim"]
    tests: list[Block] = [
        _tests(
            document["tests"],
            caption=f"Directed tests on {number(claim['n'])} prompts of each task. Found: share of the "
            "model’s mean margin, or margin units if the prediction uses them. q: p after "
            "Benjamini-Hochberg over all rows. Held: p and q at most 0.05. Contradicted: the opposite holds "
            "after Holm’s correction.",
        )
    ]
    if document["replication"]:
        fresh = _tests(document["replication"])
        tests.append(Details(summary="The predictions on fresh prompts", blocks=[fresh]))
    return Page(
        kind="claim",
        title=claim["statement"],
        verdict=_verdict(document),
        caveats=list(_caveats(document)),
        lede="The following lists the evidence that the claim has and the evidence that it lacks. It is not "
        "a score: a kind of evidence counts only if it is complete, and one kind does not compensate for "
        "another.",
        sections=[
            Section(title="Evidence", blocks=[_checklist(document)]),
            Section(title="Predictions and results", blocks=tests),
        ],
        facts=list(_facts(document)),
        records=[
            Details(
                summary="The claim as it was registered",
                blocks=[Code(text=json.dumps(plain(document["claim"]), indent=2, ensure_ascii=False))],
            )
        ],
        style="claim",
    )


def _verdict(document: Document) -> str:
    """The tier, and what the next one needs."""
    lacking = document.get("lacking")
    following = f" The next tier needs {listed(lacking)}." if lacking else ""
    return f"The evidence licenses the tier “{document['tier']}”.{following}"


def _caveats(document: Document) -> Iterator[str]:
    if contradicted := document.get("contradicted"):
        yield f"Contradicted: prediction {', '.join(str(place + 1) for place in contradicted)}."
    if document["registration"] is None:
        yield "The claim was not registered."
    elif not document.get("registered_before"):
        yield "Registered after its prompts had been measured, so its predictions were not made in advance."


def _checklist(document: Document) -> Table:
    """A line for each kind of evidence, and one for each thing that speaks for or against it."""
    rows: list[list[Cell | Text]] = []
    for kind, state in document["checklist"].items():
        rows.append([bold(kind), "", _state(state), "", ""])
        rows += [
            [
                "",
                (line["source"], "" if line["required"] else (" ", quiet("beside"))),
                _state(line["state"]),
                line["finding"],
                Cell(text=line["supply"], style="quiet"),
            ]
            for line in document["evidence"]
            if line["kind"] == kind
        ]
    return Table(
        columns=columns("evidence", "from", "state", "finding", "what would supply it"),
        rows=rows,
        caption="Lines marked “beside” are shown but do not count. A gate is present if it passes with "
        "confidence.",
        style="gate-parts",
    )


def _state(state: str) -> Cell:
    return Cell(status=state, mark=MARKS[state])


def _tests(tests: Sequence[Document], caption: str = "") -> Table:
    return Table(
        columns=[
            *columns("test"),
            *columns("found", f"90{NARROW}% interval", "p", "q", numeric=True),
            *columns("outcome"),
        ],
        rows=[
            [
                test["name"],
                "n/a" if test["value"] is None else rounded(test["value"]),
                _interval(test),
                p_value(test["p"]),
                p_value(test["q"]),
                Cell(status=test["state"]),
            ]
            for test in tests
        ],
        caption=caption,
        style="gate-parts",
    )


def _interval(test: Document) -> str:
    low, high = test["interval"]["low"], test["interval"]["high"]
    if low is None or high is None:
        return test["reason"] or ""
    return interval(low, high)


def _facts(document: Document) -> Iterator[tuple[str, Text]]:
    claim, registration = document["claim"]["claim"], document["registration"]
    yield "claim", code(document["hash"][:16])
    registered = "not registered"
    if registration is not None:
        time, when = registration["registered"], "before" if document.get("registered_before") else "after"
        registered = f"{time[:10]} {time[11:19]} UTC, {when} its prompts were measured"
    yield "registered", registered
    yield "model", claim["model"]
    yield "task", (f"{claim['task']} ", quiet(f"seed {claim['seed']}, ablation {claim['ablation']}"))
    for name, digest in document["tables"].items():
        yield "table", (f"{name} ", code(digest))


PAGES.add(
    "claim",
    PageForm(noun="result of a claim", schema="assay-claim-result/1", again="`assay claim`", make=claim_page),
)
