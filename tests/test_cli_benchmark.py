"""`assay benchmark discovery`: tables, files, what a quick run says, what is refused."""

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, invoke
from type_checks import no_type_checks

import assay
from assay.analyses.benchmark import DiscoveryBenchmark


PLANTED = "induction/gpt2/bare"
SMALL = ("--methods", "random,eap", "--n", "6", "--quiet")


def run(*arguments: str | Path, code: int = 0) -> Outcome:
    with no_type_checks():  # the parts are checked in their own tests
        result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result


def document(*arguments: str | Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return parsed


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The working directory, in which the results are stored."""
    with contextlib.chdir(tmp_path_factory.mktemp("working")):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Everything that one benchmark writes."""
    folder = tmp_path_factory.mktemp("benchmark")
    result = run(
        "benchmark", "discovery", *SMALL,
        "--out", folder / "out", "--export", folder / "sent", "--scores-dir", folder / "scores",
    )  # fmt: skip
    return folder, result


def test_a_benchmark_prints_quality_cost_and_the_order(made: tuple[Path, Outcome]) -> None:
    text = made[1].stdout
    assert "mini, ioi: 1,519 edges; scores from 6 examples, circuits judged on 6 other examples" in text
    assert "passes" in text
    assert "eap ≤ eap-ig-inputs" in text
    assert "not measured: eap-ig-inputs did not compete" in text


def test_a_benchmark_writes_json_csv_and_pictures(made: tuple[Path, Outcome]) -> None:
    folder = made[0] / "out"
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv", ".json", ".png", ".svg"]
    loaded = DiscoveryBenchmark.load(folder / "benchmark.json")
    assert [row.name for row in loaded.rows] == ["random", "eap"]
    with (folder / "benchmark.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["random", "eap"]
    assert float(rows[1]["forward_equivalents"]) > 0


def test_scores_are_kept_exported_and_read_again(made: tuple[Path, Outcome]) -> None:
    folder = made[0]
    kept = assay.load_scores(folder / "scores" / "eap.safetensors")
    assert kept.provenance["method"] == "eap"
    again = document(
        "benchmark", "discovery", "--methods", "random", "--n", "6", "--quiet",
        "--import", folder / "scores" / "eap.safetensors",
    )  # fmt: skip
    first = DiscoveryBenchmark.load(folder / "out" / "benchmark.json").row("eap")
    second = DiscoveryBenchmark.from_dict(again).row("eap")
    assert second.signed == first.signed
    assert second.method is None
    sent = document(
        "benchmark", "discovery", "--methods", "random", "--n", "6", "--quiet",
        "--import", folder / "sent" / "eap",
    )  # fmt: skip
    assert DiscoveryBenchmark.from_dict(sent).row("eap").signed == first.signed


def test_planted_models_are_judged_by_their_truth() -> None:
    found = document("benchmark", "discovery", "--model", f"planted:{PLANTED}", *SMALL)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["eap"]["truth"]["auroc"] > 0.95
    assert found["settings"]["n_true"] == 5
    assert found["evaluated_on"]["name"] == f"planted:{PLANTED}"


def test_options_of_methods_and_names_of_one_s_own_are_passed_on() -> None:
    found = document(
        "benchmark", "discovery", "--methods", "eap-ig-inputs@two", "--option", "eap-ig-inputs@two.steps=2",
        "--n", "4", "--quiet",
    )  # fmt: skip
    (row,) = found["rows"]
    assert (row["name"], row["options"], row["passes"]["backward"]) == ("eap-ig-inputs@two", {"steps": 2}, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "eap", "--objective", "kl", "--n", "4"), "every method was rejected"),
        (("--methods", ""), "--methods is empty"),
    ],
)
def test_what_leaves_nothing_to_judge_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run("benchmark", "discovery", "--model", f"planted:{PLANTED}", *arguments, code=2)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "eapp"], "unknown method 'eapp'"),
        (["--option", "eap"], "not of the form METHOD.NAME=VALUE"),
        (["--methods", "ugs", "--option", "ugs.x=1"], "unknown ugs option 'x'"),
        (["--methods", "eap", "--task", "ioj"], "unknown task 'ioj'"),
        (["--methods", "eap", "--model", "planted:x"], "planted model 'x'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_there(arguments: list[str], message: str) -> None:
    assert message in run("benchmark", "discovery", *arguments, "--quiet", code=2).stderr


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("benchmark", "discovery", *SMALL, "--out", tmp_path / "file", code=1)
    assert "cannot write to" in result.stderr


def test_two_imports_of_one_name_are_refused(made: tuple[Path, Outcome]) -> None:
    file = made[0] / "scores" / "eap.safetensors"
    result = run("benchmark", "discovery", *SMALL, "--import", file, "--import", file, code=2)
    assert "two imported files are named 'eap'" in result.stderr
