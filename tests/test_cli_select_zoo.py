"""`assay select` on a zoo: predictions are computed once, and plans ask no model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, invoke
from tiny_classifier import tiny_classifier
from type_checks import no_type_checks

from assay.models import Model
from assay.tasks import SHAPE_CLASSES
from assay.zoo import Zoo, ZooEntry


N_MODELS = 20


def tiny_zoo(folder: Path, n_models: int = N_MODELS) -> Path:
    """Random classifiers of shapes with accuracies that differ."""
    entries = []
    for number in range(n_models):
        key = f"model-{number:02d}"
        tiny_classifier(folder / key, layers=1, seed=number, patch=16)
        entries.append(ZooEntry(key=key, path=key, id_accuracy=0.4 + 0.02 * number))
    Zoo(path=folder, name="tiny", entries=tuple(entries), classes=tuple(SHAPE_CLASSES)).save()
    return folder


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the models that are loaded."""
    keys: list[str] = []
    load: Callable[..., Model] = Zoo.load

    def counted(self: Zoo, key: str, **options: Any) -> Model:
        keys.append(key)
        return load(self, key, **options)

    monkeypatch.setattr(Zoo, "load", counted)
    return keys


def run(zoo: Path, *arguments: str | Path) -> Outcome:
    given = ("--images", "shapes:sketch", "--size", "30", "--permutations", "0", "--quiet")
    with no_type_checks():
        return invoke("select", zoo, *given, *arguments)


def test_a_zoo_is_predicted_once(tmp_path: Path, loaded: list[str]) -> None:
    zoo, store = tiny_zoo(tmp_path / "zoo"), ("--store", tmp_path / "store")
    known = ("--id-images", "shapes:flat")
    first = run(zoo, *store, "--save", tmp_path / "first.json")
    assert first.exit_code == 0, first.output
    assert sorted(set(loaded)) == sorted(Zoo.open(zoo).keys)
    loaded.clear()
    again = run(zoo, "--store", tmp_path / "other", "--save", tmp_path / "again.json")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "first.json").read_bytes()
    assert loaded == []
    assert run(zoo, *store, *known).exit_code == 0  # one more domain, of which none is known
    assert len(loaded) == 20


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_models_that_are_left(
    tmp_path: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo, store = tiny_zoo(tmp_path / "zoo"), ("--store", tmp_path / "store")
    counted = Zoo.load

    def stopped(self: Zoo, key: str, **options: Any) -> Model:
        if key == "model-07":
            raise KeyboardInterrupt
        return counted(self, key, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Zoo, "load", stopped)
        assert run(zoo, *store).exit_code == 130
    loaded.clear()
    assert run(zoo, *store).exit_code == 0
    assert loaded == [f"model-{number:02d}" for number in range(7, 20)]


@pytest.mark.parametrize(
    ("n_models", "message"),
    [
        (3, "has 3 trained models, but this needs at least 4; train or add more"),
        (12, "the validation part holds 3 models; each part needs at least 4"),
    ],
)
def test_too_few_models_are_refused(tmp_path: Path, loaded: list[str], n_models: int, message: str) -> None:
    zoo = tiny_zoo(tmp_path / "zoo", n_models)
    found = run(zoo, "--store", tmp_path / "store")
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert loaded == [] or n_models >= 4
