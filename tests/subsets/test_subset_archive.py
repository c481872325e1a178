"""Archives of correctness data: what is written is read back, and what cannot be meant is refused by name."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.analyses.subsets import _contents, archive, parquet
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.core.errors import (
    FileFormatError,
    InputError,
    MissingExtraError,
    OutputError,
    ShapeError,
    UnsafeFileError,
)
from assay.zoo.records import Correctness


CORRECT = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=np.uint8)
ACCURACY = np.array([0.9, 0.5, 0.8, 0.25, 0.7])
SUFFIXES = ("npz", "parquet")


def full_data(correct: Any = CORRECT) -> CorrectnessData:
    """Data with every field, and facts of every type."""
    return CorrectnessData.of(
        correct,
        ACCURACY,
        groups=["run a", "run a", "run b", "run c", "run d"],
        families=["conv", "conv", "vit", "vit", "mlp"],
        model_ids=["a/1", "a/2", "b", "c", "Größe"],
        example_ids=["x", "y", "z"],
        n_id=[100, 100, 50, 50, 10],
        labels=[0, 2, 1],
        label_names=("cat", "dog", "é"),
        meta={
            "hospital": np.array(["north", "", "south"]),
            "age": np.array([40.5, np.nan, 61.0]),
            "year": np.array([2001, 2002, 2003]),
            "scanned": np.array([True, False, True]),
        },
        embedding=np.arange(6.0).reshape(3, 2),
        id_embedding=np.arange(8.0).reshape(4, 2),
        images=np.arange(3 * 2 * 2 * 3).reshape(3, 2, 2, 3).astype(np.uint8),
        source={"kind": "test", "seed": 3, "share": 0.1},
    )


def dense(data: CorrectnessData) -> np.ndarray:
    return data.columns(np.arange(data.n_examples))


def assert_same(one: CorrectnessData, other: CorrectnessData) -> None:
    assert np.array_equal(dense(one), dense(other))
    assert one.hash == other.hash
    assert set(one.meta) == set(other.meta)
    for name, column in one.meta.items():
        assert column.dtype.kind == other.meta[name].dtype.kind, name
        np.testing.assert_array_equal(column, other.meta[name])
    for name in ("model_ids", "groups", "families", "label_names", "source"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("id_accuracy", "example_ids", "n_id", "labels", "embedding", "id_embedding", "images"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype.kind == right.dtype.kind, name
            np.testing.assert_array_equal(left, right)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ----------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_everything_is_read_back(tmp_path: Path, suffix: str, storage: str) -> None:
    data = full_data(CORRECT if storage == "dense" else PackedMatrix.pack(CORRECT))
    path = CorrectnessData.save(data, tmp_path / f"data.{suffix}")
    assert_same(data, CorrectnessData.load(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_not_known_stays_unknown(tmp_path: Path, suffix: str) -> None:
    data = CorrectnessData.of(CORRECT, ACCURACY)
    data.save(tmp_path / f"data.{suffix}")
    read = CorrectnessData.load(tmp_path / f"data.{suffix}")
    assert_same(data, read)
    assert read.groups is None
    assert read.labels is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_grey_images_are_read_back(tmp_path: Path, suffix: str) -> None:
    images = np.arange(3 * 4 * 5).reshape(3, 4, 5).astype(np.uint8)
    data = CorrectnessData.of(CORRECT, ACCURACY, images=images)
    read = CorrectnessData.load(CorrectnessData.save(data, tmp_path / f"data.{suffix}"))
    assert read.images is not None
    np.testing.assert_array_equal(read.images, images)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    correct=hnp.arrays(
        np.uint8, st.tuples(st.integers(4, 20), st.integers(1, 12)), elements=st.integers(0, 1)
    ),
    packed=st.booleans(),
    draw=st.data(),
)
def test_any_npz_is_read_back(tmp_path: Path, correct: np.ndarray, packed: bool, draw: st.DataObject) -> None:
    m, n = correct.shape
    shares = st.floats(0, 1, allow_subnormal=False)
    words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
    data = CorrectnessData.of(
        PackedMatrix.pack(correct) if packed else correct,
        draw.draw(st.lists(shares, min_size=m, max_size=m)),
        groups=draw.draw(st.none() | st.lists(words, min_size=m, max_size=m)),
        example_ids=draw.draw(st.none() | st.lists(words, min_size=n, max_size=n, unique=True)),
        labels=draw.draw(st.none() | st.lists(st.integers(0, 9), min_size=n, max_size=n)),
        meta=draw.draw(st.dictionaries(words, st.lists(words, min_size=n, max_size=n), max_size=2)),
        n_id=draw.draw(st.none() | st.integers(1, 10**6)),
    )
    assert_same(data, CorrectnessData.load(CorrectnessData.save(data, tmp_path / "data.npz")))


def test_bits_are_models_with_the_least_significant_first(tmp_path: Path) -> None:
    # Column 0 of CORRECT read upwards is 1 0 1 0 1: 1 + 4 + 16.
    CorrectnessData.save(full_data(PackedMatrix.pack(CORRECT)), tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as file:
        assert file["X_bits"].tolist() == [[21, 4, 7]]
        assert file["shape"].tolist() == [5, 3]
        assert "X" not in file


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_of_any_number_type_and_order_is_read(tmp_path: Path, dtype: type, order: Any) -> None:
    path = write(tmp_path / "data.npz", X=np.asarray(CORRECT, dtype=dtype, order=order), y=ACCURACY)
    data = CorrectnessData.load(path)
    assert data.correct.dtype == np.uint8
    np.testing.assert_array_equal(data.correct, CORRECT)
    assert data.source == {"kind": "archive", "file": "data.npz"}


def test_what_a_zoo_writes_is_read(tmp_path: Path) -> None:
    of_zoo = Correctness(
        correct=CORRECT,
        id_accuracy=ACCURACY,
        keys=("a", "b", "c", "d", "e"),
        families=("x", "x", "x", "y", "y"),
        ids=np.array([7, 8, 9]),
        labels=np.array([1, 0, 1]),
        domain="sketch",
        n_id=40,
    )
    data = CorrectnessData.load(of_zoo.save(tmp_path / "zoo.npz"))
    assert data.example_ids.tolist() == ["sketch/7", "sketch/8", "sketch/9"]
    assert data.groups == ("a", "b", "c", "d", "e")
    assert data.families == ("x", "x", "x", "y", "y")
    assert data.n_id is not None
    assert data.n_id.tolist() == [40] * 5
    assert data.meta["id"].tolist() == [7, 8, 9]


def test_a_zoo_that_does_not_know_how_many_images_it_was_measured_on(tmp_path: Path) -> None:
    file = write(tmp_path / "z.npz", X=CORRECT, y=ACCURACY, n_id=np.array(0))
    assert CorrectnessData.load(file).n_id is None


def test_constant_rows_and_columns_are_read_and_counted(tmp_path: Path) -> None:
    data = CorrectnessData.of(np.vstack([CORRECT, [[1, 1, 1]]]) | [[0, 0, 1]], [*ACCURACY, 0.95])
    quality = CorrectnessData.load(CorrectnessData.save(data, tmp_path / "data.npz")).quality()
    assert quality.n_all_right == 1
    assert quality.n_constant_models == 2


# ----------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("block", [1, 300, 1 << 26])
def test_a_matrix_too_large_for_memory_is_packed_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, block: int
) -> None:
    rng = np.random.default_rng(0)
    data = CorrectnessData.of(rng.integers(0, 2, size=(203, 37), dtype=np.uint8), rng.random(203))
    CorrectnessData.save(data, tmp_path / f"data.{suffix}")
    monkeypatch.setattr(archive, "_BLOCK", block)
    monkeypatch.setattr(_contents, "free_memory", lambda: 203 * 37 * 2 - 1)
    read = CorrectnessData.load(tmp_path / f"data.{suffix}")
    assert isinstance(read.correct, PackedMatrix)
    assert read.hash == data.hash
    assert "packed_while_read" in read.source


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_matrix_that_does_not_fit_even_packed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    data = CorrectnessData.of(np.tile(CORRECT, (40, 120)), np.tile(ACCURACY, 40))
    CorrectnessData.save(data, tmp_path / f"data.{suffix}")
    monkeypatch.setattr(_contents, "free_memory", lambda: 15_000)
    with pytest.raises(InputError, match="200 models and 360 examples does not fit into memory: even packed"):
        CorrectnessData.load(tmp_path / f"data.{suffix}")


def test_a_matrix_too_large_in_column_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path / "data.npz", X=np.asfortranarray(np.tile(CORRECT, (40, 40))), y=np.tile(ACCURACY, 40)
    )
    monkeypatch.setattr(_contents, "free_memory", lambda: 40_000)
    monkeypatch.setattr(archive, "free_memory", lambda: 40_000)
    with pytest.raises(InputError, match="row order, or X_bits"):
        CorrectnessData.load(path)


def test_a_large_matrix_is_written_as_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_DENSE_SAVED", 10)
    data = full_data()
    read = CorrectnessData.load(CorrectnessData.save(data, tmp_path / "data.npz"))
    assert isinstance(read.correct, PackedMatrix)
    assert_same(data, read)


# ----------------------------------------------------------------------------------------------- bad files


BAD_CONTENT = {
    "an entry of 2": (
        {"X": CORRECT * 2, "y": ACCURACY},
        InputError,
        r"X\[0, 0\] is 2; every entry must be 0",
    ),
    "a missing answer": (
        {"X": np.where(CORRECT == 1, 1.0, np.nan), "y": ACCURACY},
        InputError,
        r"X\[0, 1\] is nan",
    ),
    "NaN accuracy": (
        {"X": CORRECT, "y": ACCURACY * np.nan},
        InputError,
        r"array 'y': id_accuracy\[0\] is nan",
    ),
    "accuracy in per cent": (
        {"X": CORRECT, "y": 100 * ACCURACY},
        InputError,
        r"array 'y': id_accuracy\[0\] is 90.0.*divide them by 100",
    ),
    "too few accuracies": ({"X": CORRECT, "y": ACCURACY[:3]}, ShapeError, r"array 'y': .*shape \(3,\)"),
    "accuracies as text": ({"X": CORRECT, "y": ACCURACY.astype(str)}, FileFormatError, "'y' holds <U"),
    "too many labels": (
        {"X": CORRECT, "y": ACCURACY, "label": np.zeros(4, int)},
        ShapeError,
        r"array 'label': labels has shape \(4,\), but correct holds 3 examples",
    ),
    "unknown label": (
        {"X": CORRECT, "y": ACCURACY, "label": np.array([0, -1, 1])},
        InputError,
        "array 'label': labels holds -1",
    ),
    "ids that repeat": (
        {"X": CORRECT, "y": ACCURACY, "example_id": np.array(["a", "b", "a"])},
        InputError,
        "array 'example_id': example_ids holds 'a' 2 times",
    ),
    "a group too few": (
        {"X": CORRECT, "y": ACCURACY, "group": np.array(["a"])},
        ShapeError,
        "array 'group': groups holds 1 names",
    ),
    "a column too short": (
        {"X": CORRECT, "y": ACCURACY, "meta_site": np.zeros(2)},
        ShapeError,
        r"meta\['site'\] has shape \(2,\)",
    ),
    "too few models": ({"X": CORRECT[:3], "y": ACCURACY[:3]}, InputError, "3 models; expected at least 4"),
    "not hold any example": ({"X": CORRECT[:, :0], "y": ACCURACY}, InputError, "not hold any example"),
    "no y": ({"X": CORRECT}, FileFormatError, "lacks the array 'y'"),
    "no X": ({"y": ACCURACY}, FileFormatError, "neither 'X' nor 'X_bits'"),
    "both": (
        {"y": ACCURACY, "X": CORRECT, "X_bits": np.zeros((1, 3), np.uint8)},
        FileFormatError,
        "both 'X' and 'X_bits'",
    ),
    "bits without shape": (
        {"y": ACCURACY, "X_bits": np.zeros((1, 3), np.uint8)},
        FileFormatError,
        "lacks the array 'shape'",
    ),
    "bits of another shape": (
        {"y": ACCURACY, "X_bits": np.zeros((2, 3), np.uint8), "shape": np.array([5, 3])},
        FileFormatError,
        r"'X_bits' is uint8 of shape \(2, 3\); .* uint8 of shape \(1, 3\)",
    ),
    "bits beyond the last model": (
        {"y": ACCURACY, "X_bits": np.full((1, 3), 255, np.uint8), "shape": np.array([5, 3])},
        InputError,
        "array 'X_bits': the last row of bits",
    ),
    "a shape of text": (
        {"y": ACCURACY, "X_bits": np.zeros((1, 3), np.uint8), "shape": np.array(["5", "3"])},
        FileFormatError,
        "'shape' is",
    ),
    "X of one axis": ({"X": CORRECT[0], "y": ACCURACY}, FileFormatError, r"'X' holds uint8 of shape \(3,\)"),
    "X of text": ({"X": CORRECT.astype(str), "y": ACCURACY}, FileFormatError, "'X' holds <U"),
    "a name misspelt": (
        {"X": CORRECT, "y": ACCURACY, "families": np.array(["a"] * 5)},
        FileFormatError,
        "unknown array 'families'; did you mean 'family'",
    ),
    "a foreign array": ({"X": CORRECT, "y": ACCURACY, "qqqqq": ACCURACY}, FileFormatError, "known: X, y"),
    "a source that is not JSON": (
        {"X": CORRECT, "y": ACCURACY, "source": np.array("{")},
        FileFormatError,
        "'source' is not JSON",
    ),
    "a source that is a list": (
        {"X": CORRECT, "y": ACCURACY, "source": np.array("[]")},
        FileFormatError,
        "'source' holds a list",
    ),
}


@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content_is_refused_with_the_name_of_the_array(tmp_path: Path, case: str) -> None:
    arrays, error, message = BAD_CONTENT[case]
    path = write(tmp_path / "bad.npz", **arrays)
    with pytest.raises(error, match=message) as caught:
        CorrectnessData.load(path)
    assert "bad.npz" in str(caught.value)


@pytest.mark.parametrize("key", ["X", "model_id"])
def test_pickled_objects_are_not_read(tmp_path: Path, key: str) -> None:
    arrays: dict[str, Any] = {"X": CORRECT, "y": ACCURACY, key: np.array([1, "a", None], dtype=object)}
    path = write(tmp_path / "objects.npz", **arrays)
    with pytest.raises(UnsafeFileError, match=f"the array '{key}' holds pickled objects"):
        CorrectnessData.load(path)


def test_an_array_named_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.npz", X=CORRECT, y=np.linspace(0, 1, len(CORRECT)))
    buffer = io.BytesIO()
    np.save(buffer, 1 - CORRECT)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("X", buffer.getvalue())
    with pytest.raises(FileFormatError, match="holds the array 'X' twice"):
        CorrectnessData.load(path)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(pickle.dumps({"X": CORRECT}))
    with pytest.raises(UnsafeFileError, match="is a pickle"):
        CorrectnessData.load(path)


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, CORRECT)
    with pytest.raises(FileFormatError, match="a single array"):
        CorrectnessData.load(tmp_path / "data.npz")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_cut_off_is_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = CorrectnessData.save(full_data(), tmp_path / f"data.{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FileFormatError, match="data"):
        CorrectnessData.load(path)


def test_a_damaged_matrix_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.npz", X=CORRECT, y=ACCURACY)
    content = bytearray(path.read_bytes())
    content[content.index(CORRECT.tobytes()) + 1] ^= 1  # still 0 or 1: only the checksum tells
    path.write_bytes(bytes(content))
    with pytest.raises(FileFormatError, match="damaged"):
        CorrectnessData.load(path)


def test_a_matrix_shorter_than_it_says_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, CORRECT)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        file.writestr("X.npy", buffer.getvalue()[:-4])
    with pytest.raises(FileFormatError, match="'X' is truncated"):
        CorrectnessData.load(tmp_path / "data.npz")


@pytest.mark.parametrize("name", ["missing.npz", "missing.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match=f"{name} is not a file"):
        CorrectnessData.load(tmp_path / name)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in '\.csv'"):
        CorrectnessData.load(tmp_path / "data.csv")
    with pytest.raises(InputError, match=r"ends in ''"):
        CorrectnessData.save(full_data(), tmp_path / "data")


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        CorrectnessData.save(full_data(), tmp_path / "nowhere" / "data.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_column_of_objects_is_not_written(tmp_path: Path) -> None:
    data = CorrectnessData.of(CORRECT, ACCURACY, meta={"site": np.array(["a", None, 3], dtype=object)})
    for suffix in SUFFIXES:
        with pytest.raises(InputError, match=r"meta\['site'\] holds mixed objects"):
            CorrectnessData.save(data, tmp_path / f"data.{suffix}")


# ----------------------------------------------------------------------------------------------- Parquet


def test_a_parquet_file_has_a_row_per_example_and_a_column_per_model(tmp_path: Path) -> None:
    import pandas as pd

    CorrectnessData.save(full_data(), tmp_path / "data.parquet")
    frame = pd.read_parquet(tmp_path / "data.parquet")
    assert frame["example_id"].tolist() == ["x", "y", "z"]
    assert frame["correct:b"].tolist() == [True, True, True]
    assert frame["meta_hospital"].tolist() == ["north", "", "south"]
    assert len([name for name in frame.columns if name.startswith("correct:")]) == 5


def test_a_foreign_parquet_file_is_refused_with_a_way_to_read_it(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(FileFormatError, match=r"no table of models.*from_frame"):
        CorrectnessData.load(tmp_path / "data.parquet")


def rewritten(path: Path, change: Any) -> Path:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    return path


def test_a_parquet_file_without_the_column_of_a_model_is_refused(tmp_path: Path) -> None:
    path = CorrectnessData.save(full_data(), tmp_path / "data.parquet")
    rewritten(path, lambda table: table.drop_columns(["correct:b"]))
    with pytest.raises(FileFormatError, match="lacks the column 'correct:b'"):
        CorrectnessData.load(path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("correct:b", [True, None, True], "'correct:b' has 1 missing"),
        ("correct:b", [1, 1, 7], "row 2 of the column 'correct:b' is 7"),
        ("example_id", ["a", None, "b"], "'example_id' has 1 missing"),
        ("example_id", ["a", "b", "a"], "array 'example_id': example_ids holds 'a' 2 times"),
    ],
)
def test_a_bad_parquet_column_is_named(tmp_path: Path, column: str, values: list[Any], message: str) -> None:
    import pyarrow as pa

    path = CorrectnessData.save(full_data(), tmp_path / "data.parquet")
    rewritten(
        path,
        lambda table: table.set_column(table.schema.get_field_index(column), column, pa.array(values)),
    )
    with pytest.raises(InputError, match=message):
        CorrectnessData.load(path)


def test_models_of_one_name_are_refused_before_they_could_be_columns() -> None:
    with pytest.raises(InputError, match="'a' more than once"):
        CorrectnessData.of(CORRECT, ACCURACY, model_ids=["a"] * 5)


def test_an_embedding_too_large_for_parquet_metadata_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_LARGEST_METADATA", 100)
    with pytest.raises(InputError, match=r"save as \.npz"):
        CorrectnessData.save(full_data(), tmp_path / "data.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("assay.analyses.subsets.parquet.importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'circuit-assay\[parquet\]'"):
        CorrectnessData.save(full_data(), tmp_path / "data.parquet")
