"""Words and templates of one's own: what is drawn, what is reported, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.outside import outside_grammar, read_words, unused_words
from assay.circuits import Circuit
from assay.core.errors import AssayWarning, FileFormatError, InputError, TokenizationError, UnknownNameError
from assay.models import Model, load_model
from assay.tasks import load_task


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def circuit(mini: Model) -> Circuit:
    return Circuit.random(mini.graph, 300, seed=2)


def test_own_objects_stand_in_their_slot_and_nowhere_else(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(circuit, mini, "ioi", n_clean=12, n_corrupted=9, objects=["book", "ring"])
    sample, ordinary = tried.result.sample, tried.ordinary.sample
    assert set(sample.clean.fields["object"]) == set(sample.corrupted.fields["object"]) == {"book", "ring"}
    assert tried.result.divergence.shape == tried.ordinary.divergence.shape == (12, 9)
    assert "book" not in ordinary.clean.fields["object"]
    known = load_task("ioi", mini, n=1).grammar
    assert known is not None
    assert set(sample.clean.fields["place"]) <= set(known.places)  # type: ignore[attr-defined]


def test_a_row_per_filler_and_side_with_its_pairs(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(circuit, mini, "ioi", n_clean=12, n_corrupted=9, objects=["book", "ring"])
    assert [(row.filler, row.side) for row in tried.fillers] == [
        ("book", "clean"), ("book", "corrupted"), ("ring", "clean"), ("ring", "corrupted")
    ]  # fmt: skip
    assert {row.filler for row in tried.fillers if row.known} == {"ring"}
    for row in tried.fillers:
        side = tried.result.sample.clean if row.side == "clean" else tried.result.sample.corrupted
        rows = [i for i, value in enumerate(side.fields["object"]) if value == row.filler]
        table = tried.result.divergence if row.side == "clean" else tried.result.divergence.T
        values = table[rows]
        assert (row.n_inputs, row.n_pairs) == (len(rows), values.size)
        assert row.mean == pytest.approx(values.mean())
        assert row.max == values.max()
        assert row.p95 == pytest.approx(np.quantile(values, 0.95))


def test_divergences_are_those_of_the_same_protocol(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(circuit, mini, "greater-than", n_clean=5, n_corrupted=4, nouns=["book", "tree"])
    evaluator = PairEvaluator(mini, circuit, tried.result.sample.clean, tried.result.sample.corrupted)
    found = evaluator.table(slice(None), slice(None))
    np.testing.assert_allclose(tried.result.divergence, found.divergence, rtol=1e-4, atol=1e-6)


def test_one_word_is_enough(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(circuit, mini, "ioi", n_clean=3, n_corrupted=3, objects=["book"])
    assert set(tried.result.sample.clean.fields["object"]) == {"book"}


def test_corrupted_inputs_can_stay_ordinary(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(
        circuit, mini, "ioi", n_clean=4, n_corrupted=5, corrupted="ordinary", objects=["book"], seed=3
    )
    assert tried.result.sample.corrupted.texts == tried.ordinary.sample.corrupted.texts
    assert {row.side for row in tried.fillers} == {"clean"}


def test_a_template_of_ones_own_is_a_filler_too(mini: Model, circuit: Circuit) -> None:
    template = "When {name1} and {name2} went to the {place}, {name3} gave a {object} to"
    tried = outside_grammar(circuit, mini, "ioi", n_clean=4, n_corrupted=3, templates=[template])
    assert tried.result.sample.clean.texts is not None
    assert all(text.startswith("When ") for text in tried.result.sample.clean.texts)
    assert [(row.option, row.filler, row.n_pairs) for row in tried.fillers] == [
        ("templates", template, 12)
    ] * 2
    assert not any(row.known for row in tried.fillers)


def test_the_other_options_of_a_task_stay(mini: Model, circuit: Circuit) -> None:
    task = load_task("ioi", mini, n=2, places=["school", "garden"], corruption="s2_rand")
    tried = outside_grammar(circuit, mini, task, n_clean=8, n_corrupted=8, objects=["book"])
    sample = tried.result.sample
    assert set(sample.clean.fields["place"]) == {"school", "garden"}
    assert sample.task["config"]["corruption"] == "s2_rand"


def test_names_of_hidden_choices_are_not_counted(mini: Model, circuit: Circuit) -> None:
    """A docstring draws fifteen names and shows some of them: only prompts that show a name count."""
    names = load_task("docstring", mini, n=1).grammar.arg_names[:16]  # type: ignore[union-attr]
    tried = outside_grammar(circuit, mini, "docstring", n_clean=6, n_corrupted=4, arg_names=list(names))
    for row in tried.fillers:
        side = tried.result.sample.clean if row.side == "clean" else tried.result.sample.corrupted
        assert side.texts is not None
        shown = [text for text in side.texts if f" {row.filler}," in text or f" {row.filler})" in text
                 or f" {row.filler}(" in text or f" {row.filler}:" in text]  # fmt: skip
        assert row.n_inputs == len(shown) > 0


def test_words_that_cannot_be_used_are_left_out_with_a_warning(mini: Model, circuit: Circuit) -> None:
    with pytest.warns(AssayWarning, match="dropped 1 of 3 objects .* 'zebra'"):
        tried = outside_grammar(
            circuit, mini, "ioi", n_clean=3, n_corrupted=2, objects=["book", "tree", "zebra"]
        )
    assert {row.filler for row in tried.fillers} <= {"book", "tree"}
    assert "'zebra'" in tried.warnings[0]
    assert tried.to_dict()["warnings"] == list(tried.warnings)


def test_the_record_is_plain_json_and_apart(mini: Model, circuit: Circuit) -> None:
    tried = outside_grammar(circuit, mini, "ioi", n_clean=4, n_corrupted=3, objects=["book"], seed=1)
    record = json.loads(json.dumps(tried.to_dict(), allow_nan=False))
    assert record["n_pairs"] == record["summary"]["count"] == record["ordinary"]["count"] == 12
    assert record["summary"]["max"] == record["worst"][0]["divergence"] == tried.result.divergence.max()
    assert record["options"] == {"objects": ["book"]}
    assert "certificates" not in record
    assert all(name.startswith("outside:") for name in tried.result.sample.streams.values())
    again = outside_grammar(circuit, mini, "ioi", n_clean=4, n_corrupted=3, objects=["book"], seed=1)
    assert again.to_dict() == tried.to_dict()


def test_words_are_read_from_a_file(mini: Model, circuit: Circuit, tmp_path: Path) -> None:
    path = tmp_path / "objects.txt"
    path.write_text("# things\nbook\n\n  tree  \n")
    assert read_words(path) == ("book", "tree")
    tried = outside_grammar(circuit, mini, "ioi", n_clean=6, n_corrupted=2, objects=path)
    assert set(tried.result.sample.clean.fields["object"]) <= {"book", "tree"}
    assert tried.options == {"objects": ("book", "tree")}


def test_unused_words_are_usable_and_new(mini: Model) -> None:
    task = load_task("ioi", mini, n=1)
    words = unused_words(task)
    assert {"book", "tree"} <= set(words)
    assert not {"ring", "school", "Mary"} & set(words)
    assert len(words) > 500
    ids = [mini.tokenizer(" " + word)["input_ids"] for word in words]
    assert all(len(row) == 1 and row[0] != mini.tokenizer.unk_token_id for row in ids)


def test_what_cannot_be_done_is_refused(mini: Model, circuit: Circuit, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the task is unchanged.* objects=\["):
        outside_grammar(circuit, mini, "ioi")
    with pytest.raises(
        UnknownNameError, match="unknown option of task 'ioi' 'object'; did you mean 'objects'"
    ):
        outside_grammar(circuit, mini, "ioi", object=["book"])
    with pytest.raises(TokenizationError, match=r"0 of 1 objects can be used .* dropped 'zebra'"):
        outside_grammar(circuit, mini, "ioi", objects=["zebra"])
    with pytest.raises(InputError, match="single token count"):
        outside_grammar(
            circuit, mini, "ioi", n_clean=2, n_corrupted=2, corrupted="ordinary",
            templates=["Then, {name1} and {name2} met and {name3} gave a {object} to"],
        )  # fmt: skip
    with pytest.raises(FileFormatError, match="cannot read word list .*no-list.txt"):
        read_words(tmp_path / "no-list.txt")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(FileFormatError, match="is empty; write one word"):
        read_words(tmp_path / "empty.txt")
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"clean": "Then, Mary", "corrupted": "Then, John", "answers": [" and"]}))
    rows = load_task(path, mini)
    for refused in (
        lambda: unused_words(rows),
        lambda: outside_grammar(circuit, mini, rows, objects=["book"]),
    ):
        with pytest.raises(InputError, match="has no grammar"):
            refused()
