"""Subsets of many sizes."""

import json

import numpy as np
import pytest
from planted_subsets import planted_matrix
from type_checks import no_type_checks

import assay
from assay.analyses.subsets import default_sizes
from assay.analyses.subsets.problem import PATHS
from assay.core.errors import InputError


@pytest.fixture(scope="module")
def planted():
    return planted_matrix(120, 400, planted=0.2, slope=0.6, n_families=12, seed=5)


@pytest.fixture(scope="module")
def found(planted):
    return assay.selection_path(
        planted.correct, planted.id_accuracy, [150, 40, 80, 400], families=planted.families, baselines=False
    )


def test_the_usual_grid():
    assert default_sizes(30) == (10, 20, 30)
    assert default_sizes(10) == (10,)
    assert default_sizes(10_001) == (10, 20, 50, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000, 10_001)
    assert default_sizes(72_000)[-6:] == (40_000, 45_000, 50_000, 60_000, 70_000, 72_000)


def test_each_size_is_what_it_is_alone(planted, found):
    assert found.sizes == (40, 80, 150, 400)
    for size in found.sizes:
        alone = assay.oodselect(planted.correct, planted.id_accuracy, size, families=planted.families)
        np.testing.assert_array_equal(found[size].indices, alone.indices)
        assert found[size].correlation["test"] == alone.correlation["test"]
    with pytest.raises(InputError, match="not on the path"):
        found[41]
    assert len(found) == 4
    assert found.consistency.normalised.shape == (4, 4)


def test_nested_and_warm_paths(planted, found):
    options = {"families": planted.families, "baselines": False}
    nested = assay.selection_path(
        planted.correct, planted.id_accuracy, [40, 80, 150], path="nested", **options
    )
    for small, large in zip(nested.selections, nested.selections[1:], strict=False):
        assert set(small.indices.tolist()) <= set(large.indices.tolist())
    warm = assay.selection_path(planted.correct, planted.id_accuracy, [40, 80, 150], path="warm", **options)
    for size in warm.sizes:
        assert warm[size].correlation["validation"].r <= found[size].correlation["validation"].r + 1e-12


def test_the_largest_subset_by_each_rule(found):
    for rule in ("val", "ci", "paper"):
        coarse = found.largest_aotil(rule, refine=False)
        fine = found.largest_aotil(rule)
        assert coarse.size in found.sizes
        assert fine.size >= coarse.size
        test, validation = (fine.selection.correlation[part] for part in ("test", "validation"))
        if rule == "paper":
            assert test.r <= -0.3
        else:
            assert validation.r <= -0.3
        if rule == "ci":
            assert test.high <= -0.3
        assert json.dumps(fine.to_dict(), allow_nan=False)
    assert found.headline.size == found.largest_aotil("val", refine=False).size
    # Sizes between the largest that qualifies and the next are tried until they differ by 5 %.
    refined = found.largest_aotil("val")
    above = min(size for size in refined.sizes if size > refined.size)
    assert above - refined.size <= max(1, 0.05 * refined.size)


def test_the_weakest_correlation_is_shown_first_where_it_was_selected_for(planted, tmp_path):
    from assay.pipeline.subsets import select_stored

    data = assay.CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)
    given = {"sizes": [100, 150, 400], "objective": "r2", "clip": "half", "seed": 1}
    found = assay.selection_path(data, **given, baselines=False)
    r = [each.correlation["validation"].r for each in found]
    weakest = found.sizes[np.argmin(np.square(r))]
    assert weakest != found.sizes[np.argmin(r)]  # so that the order matters
    assert found.headline.size == weakest
    for refused in (found.largest_aotil, found.refined, found.judge, found[150].judge):
        with pytest.raises(InputError, match="selects the weakest correlation"):
            refused()
    assert (found[150].verdict.status, found[150].verdict.sizes) == ("inconclusive", found.sizes)
    assert found.verdicts[0].reasons[0].startswith("not tested: ")
    with pytest.raises(InputError, match="n_permutations=19"):
        select_stored(data, **given, n_permutations=19)
    document = select_stored(data, **given, n_permutations=0).document
    assert (document["size"], document["largest"]) == (weakest, None)
    text = assay.save_report(tmp_path / "page.html", document).read_text()
    assert "chosen for the weakest correlation" in text
    assert "chosen against better models" not in text
    assert "solver swap; weakest correlation (objective r2); accuracies clipped at half an example." in text


def test_steps_try_every_size_in_between_and_bisection_few(found):
    steps = found.refined(25)
    largest = found.largest_aotil("val", refine=False).size
    above = min(size for size in found.sizes if size > largest)
    assert set(steps.sizes) - set(found.sizes) == set(range(largest + 25, above, 25)) - {above}
    for size in steps.sizes:
        assert steps[size].sweep == steps.sizes
        assert not steps[size].judged
    bisected = found.refined()
    assert 0 < len(bisected.sizes) - len(found.sizes) < 10
    with no_type_checks():
        for by, message in ((-1, "step is -1"), (2.5, "refine is 2.5; expected True"), (False, "step is 0")):
            with pytest.raises(InputError, match=message):
                found.refined(by)
        assert found.refined(np.int64(25)).sizes == steps.sizes
        assert found.refined(np.True_).sizes == bisected.sizes


def test_a_path_that_cannot_be_refined_says_so(planted, tmp_path):
    from assay.pipeline.subsets import select_stored

    data = assay.CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)
    warm = assay.selection_path(data, sizes=[40, 80], path="warm", baselines=False)
    assert warm.largest_aotil().sizes == (40, 80)
    with pytest.raises(InputError, match="path is 'warm'"):
        warm.largest_aotil(refine=True)
    one = assay.selection_path(data, sizes=[40], baselines=False)
    assert one.largest_aotil().size == 40
    with pytest.raises(InputError, match="40 is the only one"):
        one.refined()
    for sizes, step, message in (
        ([20, 40], 5, "the largest, 40, is on the inverse line"),
        ([399, 400], 1, "on none of them"),
        ([40, 400], 900, "the step leaves none between 40"),
    ):
        document = select_stored(data, sizes, n_permutations=0, refine=step).document
        assert message in document["unrefined"]
        assert document["unrefined"] in assay.save_report(tmp_path / "page.html", document).read_text()
    assert "unrefined" not in select_stored(data, [40, 400], n_permutations=0, refine=180).document


def test_default_sizes_are_those_that_the_settings_allow(planted):
    from assay.analyses.subsets.problem import make_problem

    data = assay.CorrectnessData.of(
        planted.correct,
        planted.id_accuracy,
        families=planted.families,
        labels=np.where(np.arange(400) % 3 == 0, "dog", "cat"),
    )
    assert make_problem(data, strata=np.arange(400) % 12).grid() == (20, 50, 100, 250, 400)
    dogs = np.arange(0, 36, 3)  # 12 of them; a third of the examples
    classes = make_problem(data, strata="label", must_include=dogs)
    assert classes.grid() == (50, 100, 250, 400)
    with pytest.raises(InputError, match="12 examples of stratum 'dog', whose quota at size 20 is 7"):
        classes.grid([20, 50])
    with pytest.raises(InputError, match="allowed excludes"):
        make_problem(data, allowed=np.arange(10, 400), must_include=[3]).grid()


def test_options_given_as_they_are_by_default_are_the_same_job(planted):
    from assay.pipeline.subsets import job_record

    data = assay.CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)

    def record(**options):
        return job_record(data, [40], n_permutations=0, **options)

    adam = record(solver="adam")
    assert record(solver="adam", trials=20, epochs=3000, patience=500, penalty="softplus") == adam
    assert record(solver="adam", penalty="squared") != adam
    assert record(folds=4) == record()


def test_a_wave_holds_as_many_reruns_as_run_side_by_side(planted):
    from assay.analyses.subsets.crossfit import FoldRuns, plan_folds
    from assay.analyses.subsets.settings import Settings

    data = assay.CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)
    splits, sizes = plan_folds(data).splits, tuple(range(10, 100, 10))
    waves = {path: FoldRuns(data, splits, sizes, Settings(), path=path).wave for path in PATHS}
    assert waves == {"independent": 3, "warm": 9, "nested": 9}


def test_refined_sizes_have_baselines_too(planted):
    options = {"families": planted.families}
    coarse = assay.selection_path(planted.correct, planted.id_accuracy, [40, 400], **options)
    fine = coarse.refined(90)
    assert fine.sizes == (40, 130, 220, 310, 400)
    whole = assay.selection_path(planted.correct, planted.id_accuracy, fine.sizes, **options)
    assert fine.baselines == whole.baselines
    assert fine.provenance == whole.provenance
    assert [each.to_dict() for each in fine] == [each.to_dict() for each in whole]


def test_a_member_of_a_sweep_is_judged_with_all_of_it(unchecked, found, tmp_path):
    alone = found[80].judge(n_permutations=3, folds=3, workers=1)
    assert alone.sizes == found.sizes
    (_, of_path, _, _) = found.judge(n_permutations=3, folds=3, workers=1)
    assert alone.to_dict() == of_path.to_dict()
    # A file knows the sweep too, and a refined size was looked at beside all others.
    again = assay.load_subset(found[80].save(tmp_path / "subset.json"), found.data)
    assert again.sweep == found.sizes
    refined = found.largest_aotil("val")
    assert refined.size in refined.selection.sweep
    assert len(refined.selection.sweep) >= len(found.sizes)


def test_nested_sets_keep_strata_whose_quota_shrinks():
    # Largest remainders: of 10 in 57 : 4 : 11 the quotas are 8, 1, 1; of 11 they are 9, 0, 2.
    planted = planted_matrix(60, 72, planted=0.3, slope=0.6, n_families=12, seed=1)
    strata = np.repeat([0, 1, 2], [57, 4, 11])
    nested = assay.selection_path(
        planted.correct,
        planted.id_accuracy,
        [10, 11],
        path="nested",
        strata=strata,
        families=planted.families,
        baselines=False,
    )
    small, large = nested.selections
    assert np.bincount(strata[small.indices]).tolist() == [8, 1, 1]
    assert set(small.indices.tolist()) <= set(large.indices.tolist())
    assert large.size == 11


def test_the_default_grid_fits_what_may_be_selected(planted):
    options = {"families": planted.families, "baselines": False}
    few = assay.selection_path(planted.correct, planted.id_accuracy, allowed=np.arange(60), **options)
    assert few.sizes == (10, 20, 50, 60)
    many = assay.selection_path(
        planted.correct, planted.id_accuracy, allowed=np.arange(60), must_include=np.arange(30), **options
    )
    assert many.sizes == (50, 60)
    with pytest.raises(InputError, match="use solver='swap'"):
        assay.selection_path(planted.correct, planted.id_accuracy, [5, 9], path="warm", solver="adam")


def test_none_is_reported_where_no_size_qualifies():
    rng = np.random.default_rng(0)
    skill = np.linspace(0.6, 0.95, 60)
    correct = rng.uniform(size=(60, 100)) < skill[:, None]
    found = assay.selection_path(correct, skill, [90, 100], groups=range(60), baselines=False)
    assert found.largest_aotil("val").size is None
    lowest = min(found.selections, key=lambda each: each.correlation["validation"].r)
    assert found.headline is lowest


def test_bad_sizes_are_named(planted):
    for sizes, message in (
        ([], "empty"),
        ([5, 5], "5 is given more than once"),
        ([401], "expected 1 to 400"),
    ):
        with pytest.raises(InputError, match=message):
            assay.selection_path(planted.correct, planted.id_accuracy, sizes, families=planted.families)
    with pytest.raises(InputError, match="kind of path"):
        assay.selection_path(planted.correct, planted.id_accuracy, [5], path="wram")


def test_progress_is_told(planted):
    seen = []
    assay.selection_path(
        planted.correct,
        planted.id_accuracy,
        [10, 20],
        families=planted.families,
        baselines=False,
        progress=lambda *each: seen.append(each),
    )
    assert seen == [("select", 0, 2), ("select", 2, 2)]  # side by side


def test_a_path_is_finite_json(found):
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["sizes"] == [40, 80, 150, 400]
