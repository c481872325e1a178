"""Registrations: made once, never changed silently."""

import json
from pathlib import Path

import pytest

from assay.analyses.claims import load_claim, read_registration, register_claim
from assay.analyses.claims.registration import difference, note_measured, registration_path
from assay.analyses.claims.sets import known_shape
from assay.core.errors import FileFormatError, InputError


TEXT = """
schema = "assay-claim/1"

[claim]
name = "movers"
statement = "They move the name."
model = "mini"
task = "ioi"

[heads]
movers = ["a3.h4"]

[[predicts]]
what = "dropping"
lowers_by_at_least = 0.3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "movers.toml"
    file.write_text(TEXT)
    return file


def test_a_claim_is_registered_once(path: Path) -> None:
    first = register_claim(path)
    assert first.path == path.with_name("movers.registered.json")
    assert first.hash == load_claim(path).hash
    written = first.path.read_bytes()
    path.write_text(TEXT.replace("[heads]", "# the same\n[heads]").replace("0.3", "0.30"))
    again = register_claim(path)
    assert (again.time, again.hash) == (first.time, first.hash)
    assert first.path.read_bytes() == written


def test_heads_that_a_local_model_does_not_have_are_not_registered(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    small = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 12}
    (folder / "config.json").write_text(json.dumps(small))
    for source, shape in ((str(folder), "2 layers of 3 heads"), ("mini", "4 layers of 8 heads")):
        path.write_text(TEXT.replace('"mini"', json.dumps(source)).replace("a3.h4", "a3.h8"))
        with pytest.raises(InputError, match=f"role 'movers' names a3.h8, .* it has {shape}"):
            register_claim(path)
        assert not registration_path(path).exists()
    (folder / "config.json").write_text("{}")
    assert known_shape(str(folder)) is None
    assert known_shape("some/model") is None


def test_other_predictions_are_refused_and_the_first_difference_is_named(path: Path) -> None:
    first = register_claim(path)
    path.write_text(TEXT.replace("0.3", "0.2"))
    with pytest.raises(InputError, match=r"predicts 1\.lowers_by_at_least was 0\.3 and is 0\.2") as caught:
        register_claim(path)
    assert first.time in str(caught.value)
    assert read_registration(first.path).hash == first.hash


def test_registered_anew_the_earlier_registration_stays_listed(path: Path) -> None:
    first = note_measured(register_claim(path), table="t", prompts="p", weights="w")
    path.write_text(TEXT.replace("0.3", "0.2"))
    second = register_claim(path, anew=True)
    assert second.hash != first.hash
    assert second.time > first.time
    assert [each["hash"] for each in second.earlier] == [first.hash]
    assert second.earlier[0]["content"] == first.content
    assert second.first_look("p", "w") == first.first_look("p", "w") is not None
    assert second.first_look("q", "w") is None
    assert read_registration(second.path).to_dict() == second.to_dict()


def test_a_look_is_noted_once_and_leaves_the_registration_as_it_was(path: Path) -> None:
    first = register_claim(path)
    noted = note_measured(first, table="t", prompts="p", weights="w")
    again = note_measured(noted, table="t", prompts="p", weights="w")
    assert len(again.measured) == 1
    assert again.first_look("p", "w") == noted.first_look("p", "w")
    found = read_registration(first.path)
    assert (found.hash, found.time, found.content) == (first.hash, first.time, first.content)


def test_a_registration_that_was_edited_is_refused(path: Path) -> None:
    made = register_claim(path)
    stored = json.loads(made.path.read_text())
    stored["content"]["predicts"][0]["lowers_by_at_least"] = 0.2
    made.path.write_text(json.dumps(stored))
    with pytest.raises(FileFormatError, match="was changed after it was written"):
        register_claim(path)
    made.path.write_text(json.dumps(stored | {"hash": "0"}))
    with pytest.raises(FileFormatError, match="does not match its hash 0"):
        register_claim(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not the registration of a claim"),
        ("{}", "is not the registration of a claim"),
        ("[]", "is not the registration of a claim"),
        ('{"schema": "assay-registration/9"}', "schema is 'assay-registration/9'"),
    ],
)
def test_files_that_are_no_registrations(path: Path, text: str, message: str) -> None:
    place = path.with_name("movers.registered.json")
    place.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        register_claim(path)
    assert place.read_text() == text


def test_differences_are_found_where_they_are() -> None:
    assert difference({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3]}) == "b 2 was 2 and is 3"
    assert difference({"b": [1]}, {"b": [1, 3]}) == "b had 1 entries and has 2"
    assert difference({"a": {"x": 1}}, {"a": {}}) == "a.x was 1 and is None"
    assert difference({}, {"a": "text"}) == "a was None and is 'text'"
