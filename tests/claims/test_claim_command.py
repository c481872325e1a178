"""`assay claim`: what it prints, writes and refuses, and how it exits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke


Run = Callable[..., Any]
TEXT = """
schema = "assay-claim/1"

[claim]
name = "movers"
statement = "They move the name."
model = "mini"
task = "ioi"
n = 16
seed = 5

[heads]
movers = ["a3.h4", "a3.h6"]

[[predicts]]
what = "dropping"
lowers_by_at_least = 0.3
"""
OVERCLAIM = """
[[predicts]]
what = "keeping"
retains_at_least = 0.9
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in a directory that holds a claim."""
    monkeypatch.chdir(tmp_path)
    Path("movers.toml").write_text(TEXT)

    def call(*arguments: str) -> Any:
        return invoke("claim", *arguments)

    return call


def test_the_tests_the_checklist_and_the_tier_are_printed(run: Run) -> None:
    result = run("movers.toml", "--quiet", "--out", "out", "--gate", "--tier", "causally suggestive")
    assert result.exit_code == 0, result.stderr
    for piece in (
        "They move the name.",
        "1. dropping the circuit on ioi lowers by at least 0.3",
        "held",
        "necessity",
        "retains_at_least = SHARE",
        "causally suggestive",
        "The next tier needs sufficiency and specificity",
        "out/claim.html",
    ):
        assert piece in result.stdout, piece
    document = json.loads(Path("out/claim.json").read_text())
    assert document["tier"] == "causally suggestive"
    again = json.loads(run("movers.toml", "--json").stdout)
    assert again["passes"]["forward"] == 0
    assert again["tests"] == document["tests"]
    assert sorted(path.name for path in Path("assay-out").iterdir()) == ["tables"]
    streamed = run("movers.toml", "--json", "--store", "streamed", "--device-map", "stream")
    assert streamed.exit_code == 0, streamed.stderr
    assert json.loads(streamed.stdout)["tests"] == document["tests"]


def test_a_contradicted_claim_or_a_tier_out_of_reach_exits_with_3_where_asked(run: Run) -> None:
    assert run("movers.toml", "--gate", "--tier", "triangulated").exit_code == 3
    assert run("movers.toml", "--gate").exit_code == 0
    Path("more.toml").write_text(TEXT + OVERCLAIM)
    result = run("more.toml", "--gate", "--store", "elsewhere")
    assert result.exit_code == 3
    assert "Contradicted: prediction 2" in result.stdout
    assert "The next tier needs that no prediction is contradicted." in result.stdout
    assert run("more.toml", "--store", "elsewhere").exit_code == 0


def test_registering_measures_nothing(run: Run) -> None:
    result = run("movers.toml", "--register")
    assert result.exit_code == 0
    assert result.stdout.startswith("registered ")
    assert not Path("assay-out").exists()
    stored = json.loads(run("movers.toml", "--register", "--json").stdout)
    assert stored["measured"] == stored["earlier"] == []
    assert json.loads(Path("movers.registered.json").read_text())["hash"] == stored["hash"]
    Path("movers.toml").write_text(TEXT.replace("0.3", "0.1"))
    refused = run("movers.toml")
    assert refused.exit_code == 2
    assert "predicts 1.lowers_by_at_least was 0.3 and is 0.1" in refused.stderr
    assert run("movers.toml", "--register", "--register-anew").exit_code == 0
    assert len(json.loads(Path("movers.registered.json").read_text())["earlier"]) == 1


def test_heads_are_checked_before_they_are_registered_where_that_is_cheap(run: Run) -> None:
    Path("movers.toml").write_text(TEXT.replace("a3.h4", "a3.h44"))
    refused = run("movers.toml", "--register")
    assert refused.exit_code == 2
    assert "names a3.h44, which mini does not have: it has 4 layers of 8 heads" in refused.stderr
    assert not Path("movers.registered.json").exists()
    Path("movers.toml").write_text(TEXT)
    assert "is checked" not in run("movers.toml", "--register").stdout
    assert json.loads(run("movers.toml", "--register", "--json").stdout)["heads_checked"] is True
    Path("far.toml").write_text(TEXT.replace('"mini"', '"some/model"').replace("a3.h4", "a3.h44"))
    assert "the claim run checks whether some/model has these heads" in run("far.toml", "--register").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.toml",), 1, "cannot read none.toml"),
        (("movers.toml", "--tier", "validated"), 2, "--tier has no effect without --gate"),
        (("movers.toml", "--gate", "--tier", "valid"), 2, "did you mean 'validated'"),
    ],
)
def test_mistakes_are_refused_before_the_work(
    arguments: tuple[str, ...], code: int, message: str, run: Run
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert not Path("assay-out").exists()
    assert not Path("movers.registered.json").exists()


def test_a_device_map_is_checked_before_anything_is_measured(run: Run) -> None:
    both = run("movers.toml", "--device", "cpu", "--device-map", "auto")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "device='cpu' and device_map='auto' both say where the model goes" in both.stderr
    assert run("movers.toml", "--device-map", "spread").exit_code == 2
