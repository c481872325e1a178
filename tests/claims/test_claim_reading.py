"""What makes a claim, and what each malformed one is told; no model is loaded here."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from claim_text import CONTENT, changed

from assay.analyses.claims import Claim, load_claim, parse_claim
from assay.core.errors import FileFormatError, InputError, UnknownNameError


def test_a_claim_has_its_heads_roles_and_predictions() -> None:
    claim = parse_claim(CONTENT)
    assert claim.heads == ((1, 4), (3, 4), (3, 6))
    assert claim.roles["movers"].heads == ((3, 4), (3, 6))
    assert claim.sign_of == {(1, 4): -1, (3, 4): 1, (3, 6): 1}
    assert claim.ablation == "mean"
    assert claim.tasks == ("ioi", "gendered-pronoun")
    assert [each.on for each in claim.predictions] == ["ioi", "ioi", "ioi", "gendered-pronoun"]
    assert claim.predictions[0].text == "dropping movers on ioi lowers by at least 0.3"
    assert [each.draws for each in claim.controls] == [2, 1]
    assert [each.name for each in claim.rivals] == ["magnitude", "others"]


def test_the_content_of_a_claim_makes_it_again() -> None:
    claim = parse_claim(CONTENT)
    again = parse_claim(json.loads(json.dumps(claim.to_dict())))
    assert again.to_dict() == claim.to_dict()
    assert again.hash == claim.hash


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("predicts", 0, "lowers_by_at_least"), 0.31),
        (("heads", "movers"), ["a3.h4"]),
        (("claim", "seed"), 4),
        (("controls", 0, "draws"), 3),
        (("rivals", 1, "heads"), ["a2.h0", "a2.h1", "a2.h3"]),
        (("claim", "statement"), "They copy the name."),
    ],
)
def test_every_part_of_the_content_enters_the_hash(path: tuple[str | int, ...], value: Any) -> None:
    assert parse_claim(changed(*path, to=value)).hash != parse_claim(CONTENT).hash


def test_what_means_the_same_has_the_same_hash() -> None:
    same = changed("heads", "movers", to=[[3, 6], "a3.h4"])
    same["predicts"][0] |= {"on": "ioi", "unit": "share", "lowers_by_at_least": 0.30}
    same["claim"]["ablation"] = "mean"
    assert parse_claim(same).hash == parse_claim(CONTENT).hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("claim", "modle", to="mini"), r"\[claim\]: unknown key 'modle'; did you mean 'model'"),
        (changed("predict", to=[]), r"the claim: unknown key 'predict'; did you mean 'predicts'"),
        (changed("heads", without=True), r"lacks \[heads\]"),
        (changed("heads", to={}), "has no heads"),
        (changed("heads", "movers", to=[]), "key 'movers': expected a list of heads"),
        (changed("heads", "movers", to=["a3h4"]), "key 'movers': 'a3h4' is not a head; write 'a3.h4'"),
        (changed("heads", "movers", to=[[3, True]]), "is not a head"),
        (changed("heads", "movers", to=["a3.h4", [3, 4]]), "a3.h4 is listed twice"),
        (changed("heads", "brakes", to=["a3.h4"]), "key 'brakes': a3.h4 already has the role 'movers'"),
        (changed("heads", "brakes", "sign", to=0), "key 'sign': expected 1, or -1"),
        (changed("heads", "circuit", to=["a0.h0"]), "means all heads"),
        (
            changed("claim", "task", to="iio"),
            r"\[claim\], key 'task': unknown task 'iio'; did you mean 'ioi'",
        ),
        (changed("claim", "task", to="no.jsonl"), "task file .* does not exist"),
        (changed("claim", "ablation", to="maen"), "key 'ablation': unknown ablation of heads 'maen'"),
        (changed("claim", "n", to=4), "key 'n': expected a whole number of at least 5"),
        (changed("claim", "seed", to=1.0), "key 'seed': expected a whole number"),
        (changed("claim", "name", to=" "), "key 'name': expected text"),
        (changed("claim", "name", without=True), "key 'name': is missing"),
        (changed("predicts", to=[]), "has no predictions"),
        (changed("predicts", to={"what": "dropping"}), r"write each as its own table, \[\[predicts\]\]"),
        (changed("predicts", 1, "what", to="removing"), r"\[\[predicts\]\] 2, key 'what': unknown what"),
        (
            changed("predicts", 1, "of", to="mover"),
            "key 'of': unknown head set 'mover'; did you mean 'movers'",
        ),
        (changed("predicts", 1, "lowers_by_at_least", without=True), "has no size; give one of lowers"),
        (
            changed("predicts", 0, "changes_at_most", to=1.0),
            "lowers_by_at_least and changes_at_most; give one",
        ),
        (changed("predicts", 0, "lowers_by_at_least", to=-0.1), "expected a number of at least 0, got -0.1"),
        (changed("predicts", 0, "lowers_by_at_least", to=float("nan")), "a number of at least 0"),
        (changed("predicts", 0, "lowers_by_at_least", to=True), "a number of at least 0"),
        (changed("predicts", 3, "changes_at_most", to=0), "give a size above 0"),
        (changed("predicts", 0, "lowers_by_at_least", to=30), r"30 is 3000 % of the model's own mean margin"),
        (
            changed("predicts", 0, "what", to="keeping"),
            "does not apply to keeping; keeping allows changes_at",
        ),
        (
            changed("predicts", 2, to={"what": "keeping", "of": "each head", "retains_at_least": 1}),
            "each head by itself can be dropped, not kept",
        ),
        (changed("predicts", 0, "unit", to="logits"), "key 'unit': unknown unit 'logits'"),
        (changed("predicts", 1, to=dict(CONTENT["predicts"][0])), r"2 repeats \[\[predicts\]\] 1"),
        (
            changed("controls", 0, "heads", to="rand"),
            r"\[\[controls\]\] 1, key 'heads': unknown kind of control",
        ),
        (changed("controls", 0, "of", to="brakes"), "no prediction is about 'brakes' on ioi"),
        (changed("controls", 1, "draws", to=2), "listed heads are not drawn"),
        (changed("controls", 1, "heads", to=["a3.h4", "a2.h0"]), "a3.h4 belongs to 'movers'"),
        (changed("controls", 1, "heads", to=["a2.h0"]), "1 heads cannot control for the 2 of 'movers'"),
        (changed("controls", 1, to=dict(CONTENT["controls"][0])), "a control is listed twice"),
        (changed("rivals", 1, "heads", to="size"), r"\[\[rivals\]\] 2, key 'heads': unknown kind of rival"),
        (changed("rivals", 1, "heads", without=True), "has no heads; give one of heads, file"),
        (changed("rivals", 1, "name", without=True), "key 'name': is missing"),
        (changed("rivals", 1, "name", to="magnitude"), "two rivals are named 'magnitude'"),
        (changed("rivals", 1, "heads", to=["a1.h4", "a3.h4", "a3.h6"]), "has the heads of the claim itself"),
        (changed("rivals", 1, to={"published": "ioi"}), "unknown head circuit 'ioi'"),
    ],
)
def test_the_place_of_a_mistake_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_claim(content)


def test_margins_may_be_of_any_size_and_shares_up_to_five() -> None:
    margin = changed("predicts", 0, to={"what": "dropping", "raises_by_at_least": 30, "unit": "margin"})
    assert parse_claim({**margin, "controls": []}).predictions[0].size == 30
    assert parse_claim(changed("predicts", 0, "lowers_by_at_least", to=5)).predictions[0].size == 5


def test_unknown_names_are_errors_of_their_own_kind() -> None:
    with pytest.raises(UnknownNameError):
        parse_claim(changed("predicts", 1, "of", to="mover"))


def test_a_published_circuit_and_a_file_can_be_rivals(tmp_path: Path) -> None:
    content = {
        "schema": "head_circuit/1",
        "id": "early",
        "index_base": 0,
        "model": {"n_layers": 4, "n_heads": 8},
        "heads": [[0, 1], [0, 2]],
    }
    (tmp_path / "early.json").write_text(json.dumps(content))
    rivals = [{"published": "ioi_gpt2_wang26"}, {"file": "early.json"}, {"file": "early.json", "name": "b"}]
    claim = parse_claim(changed("rivals", to=rivals), folder=tmp_path)
    assert [each.name for each in claim.rivals] == ["ioi_gpt2_wang26", "early", "b"]
    assert claim.rivals[1].heads == ((0, 1), (0, 2))
    assert len(claim.rivals[0].heads) == 26


def test_the_content_of_a_task_file_enters_the_hash_and_its_folder_does_not(tmp_path: Path) -> None:
    def made(folder: str, line: str) -> Claim:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "own.jsonl").write_text(line)
        return parse_claim(changed("claim", "task", to="own.jsonl"), folder=tmp_path / folder)

    assert made("a", "{}").hash == made("b", "{}").hash
    assert made("a", "{}").hash != made("a", "{ }").hash


def test_the_shipped_example_is_the_claim_of_its_page() -> None:
    repository = Path(__file__).resolve().parents[2]
    found = load_claim(repository / "examples" / "ioi_claim.toml")
    assert (found.model, found.task, len(found.predictions)) == ("mini", "ioi", 3)
    page = (repository / "docs" / "howto" / "claims.md").read_text(encoding="utf-8")
    written = page.partition('write_text("""')[2].partition('""")')[0]
    assert parse_claim(tomllib.loads(written)).hash == found.hash
    assert found.hash[:16] in page


def test_files_that_are_no_claims(tmp_path: Path) -> None:
    path = tmp_path / "claim.toml"
    with pytest.raises(FileFormatError, match=r"cannot read .*claim\.toml: No such file"):
        load_claim(path)
    path.write_text("schema = ")
    with pytest.raises(FileFormatError, match="is not a TOML file"):
        load_claim(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="is not a TOML file"):
        load_claim(path)
    path.write_text('schema = "assay-claim/2"')
    with pytest.raises(FileFormatError, match=r"claim\.toml has schema 'assay-claim/2'; a claim begins with"):
        load_claim(path)
