"""A claim about the embedded model from file to checklist."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from claim_text import CONTENT, changed
from heads_under import logits_under

from assay.analyses.claims import ClaimResult, parse_claim, read_registration, register_claim, run_claim
from assay.analyses.claims.evidence import NO_CONTRADICTION
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.heads.replacing import outside
from assay.discovery.heads.table import MeasurementTable
from assay.models import Model, load_model
from assay.objectives import get_objective
from assay.tasks import load_task


TEXT = """
schema = "assay-claim/1"

[claim]
name = "movers"
statement = "They move the name."
model = "mini"
task = "ioi"
n = 24
seed = 3

[heads]
movers = ["a3.h4", "a3.h6"]
brakes = { heads = ["a1.h4"], sign = -1 }

[[predicts]]
what = "dropping"
of = "movers"
lowers_by_at_least = 0.3

[[predicts]]
what = "dropping"
of = "each head"
lowers_by_at_least = 0

[[predicts]]
what = "dropping"
of = "movers"
on = "gendered-pronoun"
changes_at_most = 0.3

[[predicts]]
what = "keeping"
retains_at_least = 0.8

[[controls]]
of = "movers"
heads = "layer-matched"
draws = 2

[[rivals]]
heads = "magnitude"
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claim")
    (folder / "movers.toml").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def result(model: Model, place: Path) -> ClaimResult:
    return run_claim(place / "movers.toml", model, folder=place / "tables")


def test_a_run_registers_first_and_then_measures(result: ClaimResult, place: Path) -> None:
    assert result.registration is not None
    assert result.registered_before
    kept = read_registration(place / "movers.registered.json")
    assert kept.hash == result.claim.hash
    assert {each["table"] for each in kept.measured} == set(result.tables.values())
    assert all(kept.time < each["time"] for each in kept.measured)


def test_the_numbers_are_those_of_the_heads_replaced(result: ClaimResult, model: Model) -> None:
    task = load_task("ioi", model, n=24, seed=3)
    loss = get_objective("logit_diff")

    def margins(heads: list[tuple[int, int]]) -> np.ndarray:
        logits = logits_under(model, task, "mean", heads).double()
        return -loss(logits, logits, task).numpy()

    full = margins([])
    by_name = {each.name: each for each in result.outcomes}
    dropped = 1 - margins([(3, 4), (3, 6)]).sum() / full.sum()
    assert by_name["1. dropping movers on ioi lowers by at least 0.3"].value == pytest.approx(dropped, 1e-5)
    kept = margins(outside([(1, 4), (3, 4), (3, 6)], model)).sum() / full.sum()
    assert by_name["4. keeping the circuit on ioi retains at least 0.8"].value == pytest.approx(kept, 1e-4)
    one = 1 - margins([(3, 6)]).sum() / full.sum()
    assert by_name["2. dropping a3.h6 on ioi lowers by at least 0"].value == pytest.approx(one, 1e-5)
    # The brake is said to work against the task: dropping it must raise the margin.
    brake = margins([(1, 4)]).sum() / full.sum() - 1
    assert by_name["2. dropping a1.h4 on ioi lowers by at least 0"].value == pytest.approx(brake, 1e-4)


def test_what_three_heads_of_mini_do_and_do_not_do(result: ClaimResult) -> None:
    # Dropped, the two movers cost most of the margin; kept alone with a brake, they retain little of it.
    assert result.state_of_prediction(0) == "held"
    assert result.state_of_prediction(3) == "contradicted"
    assert result.contradicted == (3,)
    assert result.tier == "proposed"
    assert NO_CONTRADICTION in result.lacking
    assert result.checklist["sufficiency"] == "against"
    assert result.multiplicity.values["m"] == len(result.outcomes) == 3 + 3 + 1 + 1


def test_controls_are_drawn_layer_by_layer_outside_the_claim(result: ClaimResult) -> None:
    sets = result.facts["sets"]["control 1"]
    assert len(sets) == 2
    for heads in sets:
        assert [head[:3] for head in heads] == ["a3.", "a3."]
        assert not {"a3.h4", "a3.h6"} & set(heads)
    assert len(result.facts["sets"]["rival 1"][0]) == 3


def test_a_rival_with_the_heads_of_the_claim_is_said_to_be_none(model: Model, tmp_path: Path) -> None:
    """The two heads of the largest activations are claimed, so that their rival by magnitude is the claim."""
    task = load_task("ioi", model, n=24, seed=3)
    table = MeasurementTable(model, task, Circuit.from_heads(model.graph, [(0, 0)]), ablation="mean", seed=3)
    largest = np.argsort(-table.column("magnitude").mean(axis=0), kind="stable")[:2].tolist()
    names = ", ".join(f'"a{place // model.n_heads}.h{place % model.n_heads}"' for place in largest)
    alone = TEXT.partition("[heads]")[0] + (
        f'[heads]\nlargest = [{names}]\n\n[[predicts]]\nwhat = "dropping"\nlowers_by_at_least = 0.1\n\n'
        '[[rivals]]\nheads = "magnitude"\n'
    )
    other = '\n[[rivals]]\nname = "other"\nheads = ["a0.h0", "a1.h1"]\n'
    for text, state, n_tests in ((alone, "missing", 1), (alone + other, "missing", 2)):
        path = tmp_path / f"claim{n_tests}.toml"
        path.write_text(text)
        found = run_claim(path, model)
        assert found.facts["sets"]["rival 1"][0] == sorted(
            f"a{place // model.n_heads}.h{place % model.n_heads}" for place in largest
        )
        (line,) = [each for each in found.evidence if each.source == "rival 1"]
        assert (line.state, line.required) == (state, n_tests == 1)
        assert "has the heads of the claim itself" in line.finding
        assert found.multiplicity.values["m"] == len(found.outcomes) == n_tests
        assert not [each for each in found.outcomes if each.name.startswith("rival 1")]


def test_fresh_prompts_are_others(result: ClaimResult) -> None:
    first = [each for each in result.outcomes if each.kind == "prediction"]
    assert [each.name for each in result.replication] == [each.name for each in first]
    pairs = [(a.value, b.value) for a, b in zip(first, result.replication, strict=True)]
    assert all(a != b for a, b in pairs)
    assert all(abs(a - b) < 0.3 for a, b in pairs)
    (line,) = [each for each in result.evidence if each.kind == "replication"]
    assert line.state == "against"


def test_gates_belong_to_what_the_claim_speaks_of(result: ClaimResult) -> None:
    codes = set(result.gates)
    for score in ("completeness", "faithfulness"):
        assert {f"C11.{score}", f"C30.{score}", f"M98.{score}", f"C16.test_retest.{score}"} <= codes
    assert {"E1b.faithfulness", "M3b", "C12", "F59", "C17", "S3", "C16.split_half"} <= codes
    assert result.gates["C30.completeness"].details["n_prompts"] == 120
    assert result.gates["M3b"].values["share_certified"] is not None


def test_the_document_is_finite_json_and_no_score(result: ClaimResult) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["schema"] == "assay-claim-result/1"
    assert document["hash"] == result.claim.hash
    assert document["registration"]["registered"] == result.registration.time
    assert document["registered_before"] is True
    assert set(document["checklist"]) == {
        "necessity",
        "sufficiency",
        "specificity",
        "consistency",
        "reliability",
        "replication",
    }
    assert not any("score" in key for key in document)


def test_a_second_run_takes_the_tables_and_finds_the_same(
    result: ClaimResult, model: Model, place: Path
) -> None:
    again = run_claim(place / "movers.toml", model, folder=place / "tables")
    assert again.passes["forward"] == 0
    assert again.registered_before
    first, second = result.to_dict(), again.to_dict()
    assert second["tests"] == first["tests"]
    assert second["evidence"] == first["evidence"]


def test_predictions_made_after_the_look_stay_proposed(
    result: ClaimResult, model: Model, place: Path, tmp_path: Path
) -> None:
    late = tmp_path / "movers.toml"
    late.write_text(TEXT.replace("retains_at_least = 0.8", "retains_at_most = 0.5"))
    # The earlier registration of the file knows that its prompts have been measured.
    (tmp_path / "movers.registered.json").write_bytes((place / "movers.registered.json").read_bytes())
    with pytest.raises(InputError, match="differs from its registration"):
        run_claim(late, model)
    found = run_claim(late, model, folder=place / "tables", register_anew=True)
    assert not found.registered_before
    assert not found.contradicted
    assert (found.tier, found.lacking[0]) == ("proposed", "registration")
    assert len(found.to_dict()["registration"]) == 4
    assert found.to_dict()["registration"]["earlier"] == 1


def test_a_folder_of_older_tables_counts_as_a_look(
    result: ClaimResult, model: Model, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "movers.toml").write_text(TEXT)
    found = run_claim(tmp_path / "movers.toml", model, folder=place / "tables")
    assert not found.registered_before
    for record in (place / "tables").glob("*/table.json"):
        os.utime(record, (4e9, 4e9))  # begun, as it were, in the future
    assert run_claim(tmp_path / "movers.toml", model, folder=place / "tables").registered_before


def test_a_claim_in_no_file_counts_as_not_registered(model: Model) -> None:
    small = changed("predicts", to=[CONTENT["predicts"][0]])
    small["rivals"] = []
    found = run_claim(parse_claim(small), model)
    assert found.registration is None
    assert not found.registered_before
    assert found.to_dict()["registration"] is None
    assert found.checklist["consistency"] == "against"  # the methods of C12 disagree on mini
    assert "C17" not in found.gates
    assert "M98.faithfulness" not in found.gates


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("heads", "movers"), ["a4.h0", "a3.h1"], r"role 'movers' names a4\.h0, which mini does not have"),
        (("controls", 1, "heads"), ["a2.h0", "a2.h8"], r"\[\[controls\]\] 2 names a2\.h8"),
        (("rivals", 1, "heads"), [[9, 9]], r"\[\[rivals\]\] 2 names a9\.h9"),
        (
            ("heads", "brakes"),
            [[3, h] for h in (0, 1, 2, 3, 5, 7)],
            "layer-matched needs 2 heads of one layer",
        ),
    ],
)
def test_heads_that_a_model_does_not_have(
    path: tuple[str, ...], value: object, message: str, model: Model, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run_claim(parse_claim(changed(*path, to=value)), model, folder=tmp_path / "tables")
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"a3.h6"]', '"a3.h66"]', r"names a3\.h66, which mini does not have"),
        ('task = "ioi"', 'task = "own.jsonl"', r"own\.jsonl has 12 prompts"),
    ],
)
def test_a_mistake_that_only_the_model_shows_can_still_be_corrected(
    right: str, wrong: str, message: str, model: Model, tmp_path: Path
) -> None:
    own_task(tmp_path, model, 12)
    file = tmp_path / "movers.toml"
    file.write_text(TEXT.replace(right, wrong))
    with pytest.raises(InputError, match=message):
        run_claim(file, model)
    assert not file.with_suffix(".registered.json").exists()
    file.write_text(TEXT)
    assert register_claim(file).earlier == ()


def test_another_content_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "movers.toml"
    file.write_text(TEXT.replace('"mini"', '"no/such-model"'))
    register_claim(file)
    file.write_text(file.read_text().replace("0.8", "0.7"))
    with pytest.raises(InputError, match=r"predicts 4\.retains_at_least was 0\.8 and is 0\.7"):
        run_claim(file)


def own_task(folder: Path, model: Model, n: int) -> Path:
    """Prompts of the task as a file of token ids."""
    task = load_task("ioi", model, n=n, seed=9)
    lines = [
        json.dumps({"clean": clean, "corrupted": corrupted, "answers": answers, "wrong": wrong})
        for clean, corrupted, answers, wrong in zip(
            task.clean.tolist(),
            task.corrupted.tolist(),
            task.answers.tolist(),
            task.wrong.tolist() if task.wrong is not None else [],
            strict=True,
        )
    ]
    path = folder / "own.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(("n", "state"), [(12, "missing"), (20, "against")])
def test_a_task_file_gives_the_fresh_prompts_that_it_has(
    n: int, state: str, model: Model, tmp_path: Path
) -> None:
    own_task(tmp_path, model, n)
    content = {
        "schema": "assay-claim/1",
        "claim": {"name": "x", "statement": "x", "model": "mini", "task": "own.jsonl", "n": 12},
        "heads": {"movers": ["a3.h4", "a3.h6"]},
        "predicts": [
            {"what": "dropping", "lowers_by_at_least": 0.3},
            {"what": "dropping", "of": "each head", "raises_by_at_least": 0.1},
        ],
    }
    found = run_claim(parse_claim(content, folder=tmp_path), model)
    (line,) = [each for each in found.evidence if each.kind == "replication"]
    assert line.state == state
    assert found.gates["C30.completeness"].reason == "pool_too_small"
    with pytest.raises(InputError, match=r"own\.jsonl has \d+ prompts, but the claim needs n = 24"):
        run_claim(
            parse_claim({**content, "claim": {**content["claim"], "n": 24}}, folder=tmp_path),
            model,
        )
