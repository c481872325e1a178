"""The authors' released selections: their overlap, and what the corrected lists show."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets.composition import class_composition
from assay.analyses.subsets.prevalence import prevalence_shift
from assay.analyses.subsets.published import PublishedSelections, load_published
from assay.core.errors import AssayWarning, FileFormatError, InputError


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "oodselect" / "jaccard_published.json"
Shared = Callable[[str], Path]
PUBLISHED = {
    # mean, mean of neighbours, lowest, its sizes: section 5.6 of the specification
    "PACS": (0.958, 0.94, 0.12, (50, 3750)),
    "VLCS": (0.954, 0.93, 0.41, None),
    "TerraIncognita": (0.868, 0.84, 0.27, None),
}


def published(shared: Shared, name: str) -> PublishedSelections:
    path = shared(f"data/oodselect_published/{name}.npz")
    if name == "PACS":
        return load_published(path)
    with pytest.warns(
        AssayWarning, match=f"{name}.npz holds no corrected_of_published.*only for set operations"
    ):
        return load_published(path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_overlap_over_sizes_is_as_published(shared: Shared, name: str) -> None:
    found = published(shared, name)
    golden = json.loads(GOLDEN.read_text())[name]
    ours = found.consistency()
    assert found.n_examples == golden["universe"]
    assert ours.sizes.tolist() == golden["sizes"] == found.sizes.tolist()
    for key, theirs in (("jaccard", "jaccard"), ("expected", "expected_random"), ("maximum", "maximum")):
        np.testing.assert_allclose(getattr(ours, key), golden[theirs], atol=1e-11)
    np.testing.assert_allclose(ours.normalised, golden["normalised"], atol=1e-10)
    assert ours.mean == pytest.approx(golden["mean_offdiag"], abs=1e-12)
    assert ours.mean_adjacent == pytest.approx(golden["mean_adjacent"], abs=1e-12)
    assert ours.lowest == pytest.approx(golden["min_offdiag"], abs=1e-12)
    mean, adjacent, lowest, sizes = PUBLISHED[name]
    assert round(ours.mean, 3) == mean
    assert round(ours.mean_adjacent, 2) == adjacent
    assert round(ours.lowest, 2) == lowest
    if sizes is not None:
        assert ours.lowest_pair is not None
        assert tuple(ours.sizes[list(ours.lowest_pair)]) == sizes


def test_large_published_selections_of_pacs_agree_more(shared: Shared) -> None:
    found = published(shared, "PACS").consistency()
    large = np.flatnonzero(found.sizes >= 250)
    block = found.normalised[np.ix_(large, large)]
    assert round(float(block[np.triu_indices(len(large), 1)].mean()), 3) == 0.980


def test_corrected_selections_of_pacs_are_dogs_first(shared: Shared) -> None:
    found = published(shared, "PACS")
    assert found.corrected
    dog = found.label_names.index("dog")
    for size in (100, 250, 500):
        assert (found.labels[found.ranking(size)] == dog).all()
    assert np.count_nonzero(found.labels[found.ranking(1000)] == dog) == 767
    assert all(str(each).startswith("dog/") for each in found.ids[found.ranking(500)])


def test_the_class_composition_of_pacs_tells_so(shared: Shared) -> None:
    found = published(shared, "PACS")
    mix = class_composition(found.rankings, found.labels, found.label_names)
    assert mix.names == found.label_names
    place = found.sizes.tolist().index(500)
    assert mix.shares[place, mix.names.index("dog")] == 1.0
    assert mix.largest_ratio[place] == pytest.approx(3929 / 772)
    assert "class 'dog' makes up 100% of the selection and 20% of the pool" in (mix.notice(place) or "")
    shift = prevalence_shift(
        found.ranking(500), labels=found.labels, label_names=found.label_names, n_resamples=200
    )
    assert shift.notice == mix.notice(place)
    assert {row.value for row in shift.significant} == set(found.label_names)
    assert shift.significant[0].value == "dog"


def test_as_published_the_classes_of_pacs_look_drawn_at_random(shared: Shared) -> None:
    path = shared("data/oodselect_published/PACS.npz")
    with pytest.warns(AssayWarning, match="corrected=False: the published ids"):
        found = load_published(path, corrected=False)
    assert not found.corrected
    shift = prevalence_shift(
        found.ranking(1000), labels=found.labels, label_names=found.label_names, n_resamples=200
    )
    assert shift.significant == ()
    assert shift.notice is None
    # Set algebra does not see the permutation.
    np.testing.assert_array_equal(
        found.consistency().normalised, published(shared, "PACS").consistency().normalised
    )


def test_a_size_that_was_not_published_is_refused(shared: Shared) -> None:
    with pytest.raises(InputError, match="PACS has no published selection of 123 examples; sizes: 10, 20"):
        published(shared, "PACS").ranking(123)


def small(path: Path, **changed: np.ndarray | None) -> Path:
    arrays: dict[str, np.ndarray | None] = {
        "ids": np.array(["cat/a", "cat/b", "dog/c", "dog/d"]),
        "labels": np.array([0, 0, 2, 2], dtype=np.uint8),
        "sizes": np.array([1, 3], dtype=np.int32),
        "index": np.array([0, 0, 1, 3], dtype=np.uint16),
        "offsets": np.array([0, 1, 4]),
        "score": np.array([0.9, 0.9, 0.8, 0.7], dtype=np.float32),
        "universe": np.array(5),
        "corrected_of_published": np.array([3, 2, 1, 0], dtype=np.uint16),
    }
    np.savez(path, **{name: each for name, each in (arrays | changed).items() if each is not None})
    return path


def test_a_small_file_by_hand(tmp_path: Path) -> None:
    found = load_published(small(tmp_path / "toy.npz"))
    assert found.name == "toy"
    assert [each.tolist() for each in found.rankings] == [[3], [3, 2, 0]]
    assert [len(each) for each in found.scores] == [1, 3]
    assert found.label_names == ("cat", "class 1", "dog")
    assert found.n_examples == 5
    assert found.ids[found.ranking(1)].tolist() == ["dog/d"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": None}, "lacks labels; published selections hold ids, index"),
        ({"offsets": np.array([0, 2, 4])}, "sizes, offsets, index and score disagree"),
        ({"index": np.array([0, 0, 1, 4])}, "index runs from 0 to 4, but there are 4 ids"),
        ({"universe": np.array(3)}, "4 ids, 4 labels, a universe of 3"),
        ({"corrected_of_published": np.array([0, 0, 1, 2])}, "is not a permutation of the 4 ids"),
        ({"labels": np.array([0, 1, 1, 1])}, "more than one folder"),
    ],
)
def test_a_file_whose_parts_contradict_each_other_is_refused(
    tmp_path: Path, changed: dict[str, np.ndarray | None], message: str
) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_published(small(tmp_path / "toy.npz", **changed))


def test_something_else_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    path.write_text("not an archive")
    with pytest.raises(FileFormatError, match=re.escape(f"{path} is not an archive of arrays")):
        load_published(path)


POOL = ["cat/a", "dog/c", "cat/b", "dog/d", "elk/e", "dog/f"]


def release(folder: Path, selected: dict[int, list[str]]) -> Path:
    """Files as the authors write them: rows are shuffled, and column k is given the name of row k."""
    folder.mkdir()
    columns = pd.Series(POOL).sample(frac=1, random_state=0).tolist()
    for size, names in selected.items():
        published = [POOL[columns.index(name)] for name in names]
        rows = [
            f"{rank},toy/{name},{['cat', 'dog', 'elk'].index(name[:3])},0.9,toy,0-1,2,{size}"
            for rank, name in enumerate(published, 1)
        ]
        header = "rank,file_path,label,selection_score,dataset,train_idxs,test_idx,num_ood_samples"
        (folder / f"selected_files_toy_0-1_2_{size}.csv").write_text("\n".join([header, *rows, ""]))
    return folder


def test_released_files_name_the_selected_examples_once_the_shuffle_is_undone(tmp_path: Path) -> None:
    selected = {1: ["dog/f"], 10: ["dog/f", "cat/a", "elk/e"]}
    folder = release(tmp_path / "toy", selected)
    found = load_published(folder, pool=POOL)
    assert [found.ids[each].tolist() for each in found.rankings] == list(selected.values())
    assert found.corrected
    assert found.n_examples == 6
    assert found.label_names[:2] == ("cat", "dog")
    with pytest.warns(AssayWarning, match="corrected_of_published.*only for set operations"):
        raw = load_published(folder, n_examples=6)
    assert [len(each) for each in raw.rankings] == [1, 3]
    assert raw.consistency().normalised.tolist() == found.consistency().normalised.tolist()
    with pytest.raises(InputError, match="give pool or n_examples"):
        load_published(folder)
    more = [*POOL, "ape/g", "fox/h", "ape/i"]  # classes of which nothing was selected
    wider = load_published(folder, pool=more)
    assert wider.label_names == ("cat", "dog", "elk", "ape", "fox")
    assert wider.labels.tolist() == [0, 1, 0, 1, 2, 1, 3, 4, 3]
    with pytest.raises(InputError, match="pool names 'cat/a' more than once"):
        load_published(folder, pool=[*POOL, "cat/a"])
    with pytest.raises(InputError, match="pool lacks"):
        load_published(folder, pool=POOL[:3])
    with pytest.raises(FileFormatError, match=r"holds no selected_files_\*_SIZE.csv"):
        load_published(tmp_path, pool=POOL)


def test_the_correction_of_pacs_is_this_shuffle_in_another_order_of_rows(shared: Shared) -> None:
    """Both permutations have the same cycles, as has every one that differs by the order of rows only."""

    def cycles(permutation: np.ndarray) -> list[int]:
        seen, lengths = np.zeros(len(permutation), dtype=bool), []
        for start in range(len(permutation)):
            length = 0
            while not seen[start]:
                seen[start], start, length = True, permutation[start], length + 1
            lengths.append(length)
        return sorted(each for each in lengths if each)

    correction = np.load(shared("data/oodselect_published/PACS.npz"))["corrected_of_published"].astype(int)
    shuffle = pd.Series(range(len(correction))).sample(frac=1, random_state=0).to_numpy()
    assert cycles(correction) == cycles(shuffle) == [4, 11, 255, 316, 1503, 1840]
