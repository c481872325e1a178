"""The numbers of whole documents stay what they were when the documents were frozen."""

import json
import re

import pytest
from frozen.cases import CASES, FOLDER, PAIRED, SINGLE_PRECISION, TIED, arithmetic, run
from frozen.compare import ELSEWHERE, EXACT, PAIRS, SINGLE, TIES, differences
from type_checks import no_type_checks


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_a_document_is_the_frozen_one(name: str) -> None:
    same = arithmetic() == (FOLDER / "arithmetic.txt").read_text().strip()
    if name in SINGLE_PRECISION and not same:
        pytest.skip("this machine rounds float32 otherwise than the one that froze the document")
    with no_type_checks():  # the parts are checked in their own tests
        found = run(name)
    frozen = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    relative = SINGLE if name in SINGLE_PRECISION else EXACT if same else ELSEWHERE
    relative = PAIRS if name in PAIRED else relative
    lines = list(differences(frozen, found, relative=relative))
    if name in TIED:
        lines = [each for each in lines if not re.search(r"\.(cmd|cpr)\.(low|high): was", each)]
        lines += differences(frozen, found, relative=TIES)
    assert not lines, "\n".join([f"{len(lines)} differences, the first ones:", *lines[:20]])


@pytest.mark.parametrize(
    ("frozen", "new", "line"),
    [
        ({"value": 1.0}, {"value": 1.0 + 1e-9}, "$.value: was 1.0"),
        ({"n": 3}, {"n": 4}, "$.n: was 3, is 4"),
        ({"status": "pass"}, {"status": "fail"}, "$.status: was 'pass'"),
        ([1.0, 2.0], [1.0], "$: was a list of 2, is 1"),
        ([{"a": 1e-9}, {"a": 1.0}], [{"a": 2e-9}, {"a": 1.0}], "$[0].a"),
        ({"kept": True}, {"kept": 1}, "$.kept: was True"),
    ],
)
def test_a_change_is_named_by_its_place(frozen: object, new: object, line: str) -> None:
    found = list(differences(frozen, new, relative=EXACT))
    assert len(found) == 1
    assert found[0].startswith(line)


@pytest.mark.parametrize(
    ("frozen", "new"),
    [
        ({"id": "a1"}, {"id": "b2", "more": 1}),
        ({"note": "as it was"}, {"note": "in new words"}),
        ({"hash": "0123456789abcdef"}, {}),
        ([1.0, 1e-20], [1.0, 2e-20]),
    ],
)
def test_identities_sentences_and_new_keys_are_free(frozen: object, new: object) -> None:
    assert not list(differences(frozen, new, relative=EXACT))
