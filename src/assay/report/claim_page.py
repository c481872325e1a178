"""A claim as a page: the tier, the checklist of evidence, the tests behind it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.core.record import plain
from assay.page import text as words


KIND, SCHEMA = "claim", "assay-claim-result/1"
REQUIRED = (
    "claim",
    "hash",
    "registration",
    "tests",
    "replication",
    "evidence",
    "checklist",
    "tier",
    "tables",
)
Document = Mapping[str, Any]

# State -> class of the style sheet, mark.
_STATES: Mapping[str, tuple[str, str]] = {
    "present": ("pass", "\N{HEAVY CHECK MARK}"),
    "against": ("fail", "\N{MULTIPLICATION X}"),
    "undecided": ("inconclusive", "?"),
    "missing": ("missing", "\N{WHITE CIRCLE}"),
}
_OUTCOMES: Mapping[str, str] = {"held": "pass", "contradicted": "fail"}


def is_claim(document: object) -> bool:
    """Whether a document is the result of a claim."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def claim_view(document: Document, key: str) -> dict[str, Any]:
    """Everything the template of a claim needs.

    Args:
        document: What `ClaimResult.to_dict` gave.
        key: Identifier of the article.

    Raises:
        InputError: For another schema, or a document that lacks a part.
    """
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this result of a claim has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay claim` again to make it"
        )
    missing = [name for name in REQUIRED if name not in document]
    if missing:
        raise InputError(f"the document of the claim lacks {', '.join(missing)}; it is incomplete")
    facts = document["claim"]["claim"]
    return {
        "key": key,
        "claim": document,
        "title": facts["statement"],
        "verdict": _verdict(document),
        "caveats": _caveats(document),
        "groups": [_group(document, kind, state) for kind, state in document["checklist"].items()],
        "tests": [_test(each) for each in document["tests"]],
        "fresh": [_test(each) for each in document["replication"]],
        "registered": _registered(document),
        "record": json.dumps(plain(document["claim"]), indent=2),
    }


def _verdict(document: Document) -> str:
    """The tier, and what the next one needs."""
    lacking = document.get("lacking") or []
    following = f" The next tier needs {in_a_row(lacking)}." if lacking else ""
    return f"The evidence licenses the tier “{document['tier']}”.{following}"


def _caveats(document: Document) -> list[str]:
    notes = []
    if contradicted := document.get("contradicted"):
        listed = ", ".join(str(number + 1) for number in contradicted)
        notes.append(f"Contradicted: prediction {listed}.")
    if document["registration"] is None:
        notes.append("The claim was not registered.")
    elif not document.get("registered_before"):
        notes.append("Registered after its prompts had been measured: its predictions predict nothing.")
    return notes


def _registered(document: Document) -> str:
    found = document["registration"]
    if found is None:
        return "not registered"
    time = found["registered"]
    when = "before" if document.get("registered_before") else "after"
    return f"{time[:10]} {time[11:19]} UTC, {when} its prompts were measured"


def _group(document: Document, kind: str, state: str) -> dict[str, Any]:
    """A kind of evidence with its lines."""
    lines = [
        {**each, "class": _STATES[each["state"]][0], "mark": _STATES[each["state"]][1]}
        for each in document["evidence"]
        if each["kind"] == kind
    ]
    style, mark = _STATES[state]
    return {"kind": kind, "state": state, "class": style, "mark": mark, "lines": lines}


def _test(test: Document) -> dict[str, Any]:
    """A row of the table of tests."""
    low, high = test["interval"]["low"], test["interval"]["high"]
    defined = low is not None and high is not None
    return {
        "name": test["name"],
        "value": "n/a" if test["value"] is None else words.rounded(test["value"]),
        "interval": f"[{words.rounded(low)}, {words.rounded(high)}]" if defined else test["reason"] or "",
        "p": p_value(test["p"]),
        "q": p_value(test["q"]),
        "state": test["state"],
        "class": _OUTCOMES.get(test["state"], "inconclusive"),
    }


def in_a_row(needs: Sequence[str]) -> str:
    """What a tier needs, for the end of a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(needs[:-1]), *needs[-1:]) if part)


def p_value(value: float | None) -> str:
    """A p-value for reading; empty where undefined."""
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"
