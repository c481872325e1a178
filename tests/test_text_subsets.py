"""The page on subsets of prompts says what the committed results say, and these follow from the archive."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.copies import unit_codes
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.verdict import SequentialPermutation


REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = REPOSITORY / "experiments" / "text_subsets"
DIGITS = REPOSITORY / "experiments" / "digits_subsets"
DOCS = REPOSITORY / "docs"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    return CorrectnessData.load(EXPERIMENT / "results" / "answers.npz")


@pytest.fixture(scope="module")
def results() -> Any:
    return json.loads((EXPERIMENT / "results" / "selections.json").read_text(encoding="utf-8"))


def test_the_archive_holds_seven_checkpoints_of_every_run(data: CorrectnessData) -> None:
    assert data.n_models == 24 * 7
    assert data.groups is not None
    assert set(np.unique(data.groups, return_counts=True)[1].tolist()) == {7}
    kinds, counts = np.unique(data.meta["attractor"], return_counts=True)
    assert kinds.tolist() == ["congruent", "incongruent"]
    assert counts[0] == counts[1] == data.n_examples / 2
    # The nouns differ in number exactly where the prompt is called incongruent.
    plural = data.meta["noun2"].str.endswith("s")
    irregular = np.isin(data.meta["noun2"], ["children", "women", "men"])
    agree = (plural | irregular) == (data.meta["number"] == "plural")
    np.testing.assert_array_equal(agree, data.meta["attractor"] == "congruent")


def test_every_row_of_the_table_stands_on_the_page(results: Any) -> None:
    page = (DOCS / "text-subsets.md").read_text(encoding="utf-8").splitlines()
    for row in loaded(EXPERIMENT / "run.py").table(results):
        assert row in page, row


def test_the_verdicts_follow_from_their_numbers(results: Any) -> None:
    for found in results.values():
        null = np.array([np.nan if value is None else value for value in found["null"] or ()])
        for row in found["rows"]:
            verdict = row["verdict"]
            assert verdict["n_permutations"] == len(null)
            p = SequentialPermutation.of(99, 0.05).p_value(np.isnan(null) | (null <= verdict["r"]))
            assert verdict["p_value"] == pytest.approx(p, abs=1e-5)
            supported = verdict["r"] < 0 and p <= 0.05
            assert verdict["status"] == ("supported" if supported else "inconclusive")
            assert (verdict["reasons"] == []) == supported
            assert verdict["aotil"] == (supported and verdict["r"] <= -0.3)


def committed_test(models: CorrectnessData) -> np.ndarray:
    """The test models of the committed run, which did not count copies as one: whole runs, at random."""
    runs = unit_codes(models.groups)
    counts, chosen = np.bincount(runs), np.zeros(runs.max() + 1, dtype=bool)
    for run in np.random.default_rng(0).permutation(len(counts)):
        if counts[chosen].sum() < 0.2 * len(runs):
            chosen[run] = True
    return np.flatnonzero(chosen[runs])


def test_the_chosen_prompts_have_the_committed_correlation(data: CorrectnessData, results: Any) -> None:
    for name, (models, _) in loaded(EXPERIMENT / "run.py").analyses(data).items():
        found = results[name]
        assert models.n_models == found["n_models"]
        examples = np.array(found["indices"], dtype=np.int64)
        assert len(np.unique(examples)) == found["headline"]
        test = committed_test(models)
        r = line_correlation(models.id_accuracy[test], models.accuracy(examples)[test])
        row = next(row for row in found["rows"] if row["size"] == found["headline"])
        wanted = row["test"]["r"]
        assert r == pytest.approx(np.nan if wanted is None else wanted, abs=2e-6, nan_ok=True)


def test_the_digits_of_the_guide_are_those_of_the_committed_result() -> None:
    found = json.loads((DIGITS / "results.json").read_text(encoding="utf-8"))
    page = (DOCS / "howto" / "select.md").read_text(encoding="utf-8").splitlines()
    line = loaded(DIGITS / "run.py").line
    assert [row["size"] for row in found["rows"]] == [50, 100, 200]
    for row in found["rows"]:
        assert line(row) in page, row["size"]
    misleads = next(row for row in found["cues"] if row["value"] == "misleads")
    assert (round(100 * misleads["pool"]), round(100 * misleads["selected"])) == (24, 52)
    assert round(found["full"]["test"]["r"], 2) == 0.74
