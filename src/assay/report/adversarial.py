"""A worst case as a page: its document made into rows, cells and pictures for the template."""

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from matplotlib import rc_context
from matplotlib.figure import Figure

from assay.core.errors import InputError, OutputError
from assay.core.record import plain
from assay.report import figures, tail_extras, tail_figures, tail_words
from assay.report.tail_cells import SPARSE, heatmap_cells


KIND, SCHEMA = "worst_case", "assay-worst-case/1"
REQUIRED = (
    "protocol",
    "independent",
    "n_pairs",
    "n_clean",
    "n_corrupted",
    "model",
    "task",
    "circuit",
    "unit",
    "divergence",
    "summary",
    "histogram",
    "certificates",
    "worst",
)
# Bounds of the page: what is open, and what is folded away.
OPEN_PAIRS, LISTED_PAIRS = 8, 40
OPEN_TESTS, LISTED_TESTS = 8, 120
Document = Mapping[str, Any]


@runtime_checkable
class HasRecord(Protocol):
    """A result that can write itself down, such as a `WorstCase`."""

    def to_dict(self) -> dict[str, Any]:
        """Its document, plain JSON."""


def is_worst_case(document: object) -> bool:
    """Whether a document is that of a worst case."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def worst_case_document(worst: HasRecord | Document) -> Document:
    """The document of a worst case, complete.

    Args:
        worst: What `assay.worst_case` returned, or what its `to_dict` gave.

    Raises:
        InputError: Something else, or a document that lacks a part.
    """
    document = worst if isinstance(worst, Mapping) else worst.to_dict()
    if not is_worst_case(document):
        raise InputError(
            f"a worst case is needed, as `assay.worst_case` returns it; got kind {document.get('kind')!r}"
        )
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this worst case has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay attack` again to make one"
        )
    missing = [key for key in REQUIRED if key not in document]
    if missing:
        raise InputError(f"the worst-case document lacks {', '.join(missing)}; it is incomplete")
    return document


def save_histogram(path: str | os.PathLike[str], worst: HasRecord | Document) -> Path:
    """Write the histogram of a worst case, with percentiles and certified bounds, as a picture.

    Args:
        path: Ends in `.png` or `.svg`.
        worst: What `assay.worst_case` returned, or its document.

    Returns:
        The path written.

    Raises:
        InputError: Another ending, or something that is not a worst case.
        OutputError: The file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg"):
        raise InputError(f"pictures are written as .png or .svg; got {path.name!r}")
    figure = tail_figures.draw_tail(tail_figures.tail_data(worst_case_document(worst))).get_figure()
    assert isinstance(figure, Figure)
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tail"}):
            figure.savefig(path, dpi=150, facecolor=figures.PAPER, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return path


def worst_case_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a worst case needs."""
    document = worst_case_document(document)
    document = {**document, "unit": tail_words.unit_of(document)}
    fields = document.get("fields") or {}
    tests = list(fields.get("tests") or ())
    pairs = [_pair(each) for each in document["worst"][:LISTED_PAIRS]]
    first, later = _open_tests(tests)
    counts = document["histogram"]["counts"]
    model, task = document["model"].get("id", "a model"), document["task"].get("name", "its task")
    return {
        "key": key,
        "kind": KIND,
        "worst": document,
        "title": f"A circuit of {model} at its worst on {task}",
        "verdict": tail_words.tail_verdict(document),
        "caveats": tail_words.tail_caveats(document),
        "protocol": tail_words.protocol_sentence(document),
        "quantity": tail_words.DIVERGENCES.get(document["divergence"], document["divergence"]),
        "histogram": figures.to_svg(
            tail_figures.draw_tail(tail_figures.tail_data(document)),
            key=f"{key}-tail",
            label="Histogram of the divergence of circuit and empty circuit, with percentiles; the numbers "
            "are in the table.",
        ),
        "first_bin": counts[0] / max(sum(counts), 1),
        "percentiles": _percentile_rows(document),
        "counted": tail_words.counted(document),
        "certificates": [
            _certificate_row(each, tail_words.counted(document)) for each in document["certificates"]
        ],
        "no_certificate": tail_words.no_certificate(document),
        "field_sentence": tail_words.field_sentence(tests),
        "trend_sentence": tail_words.trend_sentence(list(fields.get("trends") or ())),
        "tests": first,
        "more_tests": later,
        "n_tests": len(tests),
        "heatmaps": [heatmap_cells(each) for each in fields.get("heatmaps") or ()],
        "pairs": pairs[:OPEN_PAIRS],
        "more_pairs": pairs[OPEN_PAIRS:],
        "n_pairs_left": max(0, len(document["worst"]) - LISTED_PAIRS),
        "inputs": {side: list(document.get(f"worst_{side}") or ()) for side in ("clean", "corrupted")},
        "extras": [
            {
                "title": title,
                "note": note,
                "sentence": tail_extras.sentence(name, document[name], document["unit"]),
                "parts": tail_extras.parts(name, document[name]),
                "pairs": [_pair(each) for each in tail_extras.pairs(document[name])[:OPEN_PAIRS]],
            }
            for name, title, note in tail_extras.EXTRAS
            if document.get(name)
        ],
        "record": json.dumps(plain(document.get("provenance") or {}), indent=2, sort_keys=True),
    }


# ------------------------------------------------------------------------------------------------- its parts


def _percentile_rows(document: Document) -> list[dict[str, Any]]:
    absolute, z = document["summary"]["absolute"], document["summary"].get("z") or {}
    anchor = (document.get("anchor") or {}).get("absolute") or {}
    names = {"mean": "mean", "std": "standard deviation", "min": "least", "p50": "median", "max": "worst"}
    rows = []
    for name, value in absolute.items():
        # Few pairs resolve no such percentile.
        if name == "count" or (value is None and name.startswith("p")):
            continue
        made = None
        if name.startswith("p"):
            made = tail_figures.sound_certificate(document, float(name[1:]) / 100)
        rows.append(
            {
                "name": names.get(name, f"percentile {name[1:]}"),
                "value": value,
                "z": z.get(name),
                "bound": None if made is None else made["bound"],
                "n_needed": made["n_needed"] if made and made["bound"] is None else None,
                "anchor": anchor.get(name),
            }
        )
    return rows


def _certificate_row(made: Mapping[str, Any], of: str) -> dict[str, Any]:
    return {
        **made,
        "name": f"{100 * made['percentile']:g}",
        "how": tail_words.METHODS.get(made["method"], made["method"]),
        "note": tail_words.certificate_note(made, of),
    }


def _open_tests(tests: list[Mapping[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What is shown at once, the significant values and then those with enough inputs, and what is folded."""
    significant = [each for each in tests if each["significant"]]
    dense = [each for each in tests if not each["significant"] and each["n_inputs"] >= SPARSE]
    first = (significant + dense[: max(0, OPEN_TESTS - len(significant))])[:LISTED_TESTS]
    taken = {id(each) for each in first}
    rest = [each for each in tests if id(each) not in taken]
    filled = max(0, OPEN_TESTS // 2 - len(first))
    return first + rest[:filled], rest[filled : LISTED_TESTS - len(first)]


def _pair(found: Mapping[str, Any]) -> dict[str, Any]:
    """A pair with its prompts aligned token by token and the three distributions side by side."""
    sides = [found["clean"].get("tokens") or [], found["corrupted"].get("tokens") or []]
    columns = []
    for first, second in itertools.zip_longest(*sides, fillvalue=""):
        columns.append((_visible(first), _visible(second), first != second))
    top = found.get("top") or {}
    answer = found.get("answer") or {}
    names = [name for name in ("model", "circuit", "corrupted") if top.get(name)]
    return {
        **found,
        "columns": columns,
        "names": names,
        "lines": [
            [
                (
                    {
                        "token": repr(str(top[name][place].get("token", ""))),
                        "logit": top[name][place].get("logit"),
                        "right": bool(answer) and top[name][place].get("token") == answer.get("text"),
                    }
                    if place < len(top[name])
                    else None
                )
                for name in names
            ]
            for place in range(max((len(top[name]) for name in names), default=0))
        ],
        "answer": answer,
        "answer_token": repr(str(answer.get("text", ""))),
        "following": tail_words.following(top),
    }


def _visible(token: str) -> str:
    """A token in running text: line breaks shown, other white space kept."""
    return str(token).replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")
