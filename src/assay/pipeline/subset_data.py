"""Correctness of models on examples from whatever holds it: archives, tables, prediction files, zoos."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.line import MIN_MODELS
from assay.analyses.subsets.parquet import is_archive, pyarrow_modules
from assay.core.errors import FileFormatError, InputError, MissingExtraError
from assay.core.record import canonical_json, library_version
from assay.core.untrusted import MALFORMED, check_rows, malformed, parquet_table
from assay.pipeline.checks import check_writable
from assay.pipeline.stage import Progress


if TYPE_CHECKING:
    import pandas as pd

    from assay.tasks import ImageSet

DIGITS_SIZES = (50, 100, 200)
DIGITS_MODELS = 320
FOLDER = "select"  # of a store: data that were expensive to make
EXAMPLE = "example_id"
EACH_MODEL = "model"  # of --groups: every model is a run of its own


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenData:
    """Data to select from.

    Attributes:
        data: Models by examples.
        sizes: Sizes that suit them; None: the usual grid.
    """

    data: CorrectnessData
    sizes: tuple[int, ...] | None = None


def read_data(
    source: Path | None = None,
    *,
    groups: str | None = None,
    families: str | None = None,
    id_envs: str | None = None,
    ood_env: str | None = None,
    checkpoints: str = "last",
    facts: Sequence[str] = (),
    examples: Path | None = None,
    images: str | None = None,
    id_images: str | None = None,
    digits_models: int | None = None,
    device: str | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
    at_least: int = MIN_MODELS,
) -> GivenData:
    """The data that a path stands for.

    Args:
        source: Archive, table, folder of prediction CSVs, or zoo; None: classifiers of digits, trained now.
        groups: Training run of each model: a column of a table, a CSV file of model and run, or `model`.
        families: Family of each model: a column of a table, or a CSV file of model and family.
        id_envs: Of a folder of CSVs: environments trained on.
        ood_env: Of a folder of CSVs: the environment out of distribution, or several.
        checkpoints: Of a folder of CSVs: `last`, `all`, or steps.
        facts: Of a table with a row per model and example: columns that say something of the example.
        examples: Of a table: a CSV file of what is known of the examples, their names first.
        images: Of a zoo: labelled images out of distribution.
        id_images: Of a zoo: labelled images in distribution that no model was trained on.
        digits_models: Without a source: classifiers to train.
        device: Of the models of a zoo.
        seed: Root seed of the digits.
        folder: A store; trained digits are kept in its folder `select`.
        progress: Told of models trained or run.
        at_least: Of a table: models that are needed; 1 for models that select nothing.

    Raises:
        InputError: For an option that the source has no use for, or lacks.
        FileFormatError: If nothing is there, or nothing that can be read.
    """
    of_folder: dict[str, object] = {"id-envs": id_envs, "ood-env": ood_env}
    of_zoo: dict[str, object] = {"images": images, "id-images": id_images}
    of_table: dict[str, object] = {"facts": facts or None, "examples": examples}
    if source is None:
        _refuse("the built-in digits", of_folder | of_zoo | of_table)
        data = _digits(digits_models or DIGITS_MODELS, seed, folder, progress)
        return GivenData(data=_with_units(data, groups, families), sizes=DIGITS_SIZES)
    if digits_models is not None:
        raise InputError(f"--digits-models is for the built-in data, but {source} is given; remove one")
    if not source.exists():
        raise FileFormatError(
            f"{source} does not exist; give a correctness archive, a table, or a folder of prediction CSVs "
            "or of models"
        )
    if source.is_dir():
        _refuse("a folder", of_table)
        if images is not None or id_images is not None:
            _refuse("a zoo", of_folder)
            data = _from_zoo(source, images, id_images, device=device, seed=seed, progress=progress)
        else:
            data = _from_folder(source, id_envs, ood_env, checkpoints, progress)
        return GivenData(data=_with_units(data, groups, families))
    _refuse("a file", of_folder | of_zoo)
    if source.suffix == ".npz" or (source.suffix == ".parquet" and is_archive(source)):
        _refuse("an archive", of_table)
        return GivenData(data=_with_units(CorrectnessData.load(source), groups, families))
    if source.suffix in (".csv", ".parquet"):
        return GivenData(data=_from_table(source, groups, families, facts, examples, at_least))
    raise FileFormatError(
        f"{source} ends in {source.suffix!r}; give an .npz or .parquet archive, a .csv or .parquet table, "
        "or a folder"
    )


def _refuse(kind: str, given: Mapping[str, object]) -> None:
    """Refuse options that a source has no use for."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} has no effect for {kind}; remove it")


# --------------------------------------------------------------------------------------------- folders


def _from_folder(
    source: Path, id_envs: str | None, ood_env: str | None, checkpoints: str, progress: Progress | None
) -> CorrectnessData:
    """Prediction CSVs, one per checkpoint."""
    if ood_env is None:
        raise InputError(
            f"{source} is a folder. For prediction CSVs give --ood-env, the environment to select from; for "
            "a zoo give --images"
        )
    options: dict[str, Any] = {} if id_envs is None else {"id_envs": _numbers("id-envs", id_envs)}
    return CorrectnessData.from_predictions(
        source,
        ood_env=_numbers("ood-env", ood_env),
        checkpoints=checkpoints if checkpoints in ("last", "all") else _numbers("checkpoints", checkpoints),
        progress=progress,
        **options,
    )


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        words = ", or last, or all" if option == "checkpoints" else ""
        raise InputError(f"--{option} is {text!r}; give numbers separated by commas{words}") from None


def _from_zoo(
    source: Path,
    images: str | None,
    id_images: str | None,
    *,
    device: str | None,
    seed: int,
    progress: Progress | None,
) -> CorrectnessData:
    """The answers of the models of a zoo, each image at their geometry."""
    from assay.pipeline.targets import FIRST_KNOWN, FIRST_TARGET, N_SHAPES
    from assay.tasks import EvalTransform, ReadOptions, one_domain, read_source
    from assay.zoo import Zoo

    if images is None:
        raise InputError("--id-images rates the models of a zoo; give --images too, those to select from")
    zoo = Zoo.open(source)
    zoo.check_done()
    first = zoo.load(zoo.keys[0])
    transform = EvalTransform.for_model(first)

    def read(given: str, start: int) -> "ImageSet":
        sets = read_source(
            given,
            transform=transform,
            classes=zoo.classes or first.classes,
            options=ReadOptions(seed=seed),
            start=start,
            drawn=N_SHAPES,
        )
        return one_domain(sets, given)

    return CorrectnessData.from_zoo(
        zoo,
        read(images, FIRST_TARGET),
        id_images=None if id_images is None else read(id_images, FIRST_KNOWN),
        device=device,
        progress=progress,
    )


# --------------------------------------------------------------------------------------------- tables


def _from_table(
    source: Path,
    groups: str | None,
    families: str | None,
    facts: Sequence[str],
    examples: Path | None,
    at_least: int,
) -> CorrectnessData:
    """A table with a row per model and example, or with a row per model and a column per example."""
    frame = _table(source, "model", EXAMPLE, groups, families)
    arguments: dict[str, Any] = {name: name for name in ("id_accuracy", "n_id") if name in frame.columns}
    arguments["at_least"] = at_least
    units = {"group": groups, "family": families}
    for name, unit in units.items():
        if unit is not None and unit != EACH_MODEL and unit in frame.columns:
            arguments[name], units[name] = unit, None
    if EXAMPLE not in frame.columns:  # wide
        if facts:
            raise InputError(
                f"--facts {','.join(facts)}: {source} has a row per model and a column per example; give "
                "facts of the examples in a separate table, --examples FILE"
            )
        names = "model" if "model" in frame.columns else frame.columns[0]
        frame = frame.set_index(names)
    elif facts:
        arguments["meta"] = list(facts)
    if examples is not None:
        known = _table(examples, 0)
        arguments["examples"] = known.set_index(known.columns[0])
    with malformed(source, "a table of answers"):
        data = CorrectnessData.from_frame(frame, **arguments)
    return _with_units(data, units["group"], units["family"])


def _table(path: Path, *names: str | int | None) -> "pd.DataFrame":
    """A CSV file with a header, or a Parquet file.

    Args:
        path: The file.
        *names: Columns that name things, by name or place: their cells are text, `00270` is not 270. A first
            column without a known name is one too.
    """
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            with pyarrow_modules()[1].ParquetFile(path) as file:
                check_rows(file.metadata.num_rows, file.metadata.num_columns, path)
                frame: pd.DataFrame = parquet_table(file, path).to_pandas()
                return frame
        columns = pd.read_csv(path, nrows=0).columns.tolist()
        texts = {*names, *(columns[at] for at in names if isinstance(at, int) and at < len(columns))}
        if EXAMPLE not in columns and "model" not in columns:
            texts |= set(columns[:1])
        return pd.read_csv(path, dtype={name: str for name in columns if name in texts})
    except (FileFormatError, MissingExtraError):
        raise
    # Pandas' own are ValueErrors, those of pyarrow RuntimeErrors too.
    except (OSError, MemoryError, *MALFORMED) as error:
        raise FileFormatError(f"cannot read {path} as a table: {error}") from error


# --------------------------------------------------------------------------------------------- digits


def _digits(n_models: int, seed: int, folder: Path | None, progress: Progress | None) -> CorrectnessData:
    """The built-in data; trained once per store."""
    import sklearn

    record = {
        "library": library_version(),
        "scikit-learn": sklearn.__version__,
        "n_models": n_models,
        "seed": seed,
    }
    name = f"digits-{hashlib.sha256(canonical_json(record).encode()).hexdigest()[:16]}.npz"
    kept = None if folder is None else folder / FOLDER / name
    if kept is not None and kept.is_file():
        return CorrectnessData.load(kept)
    data = digits_data(n_models=n_models, seed=seed, progress=progress)
    if kept is not None:
        check_writable(kept.parent, make=True)
        data.save(kept)
    return data


# --------------------------------------------------------------------------------------------- units


def _with_units(data: CorrectnessData, groups: str | None, families: str | None) -> CorrectnessData:
    """The data with training runs and families from files, or with every model as a run."""
    if groups is None and families is None:
        return data
    return CorrectnessData.of(
        data,
        groups=data.model_ids if groups == EACH_MODEL else _names("groups", groups, data),
        families=_names("families", families, data),
    )


def _names(option: str, given: str | None, data: CorrectnessData) -> list[str] | None:
    """The unit of each model, from a CSV file whose first two columns are model and unit."""
    if given is None:
        return None
    path = Path(given)
    if not path.is_file():
        kind = "neither a file nor a column of the table"
        if data.source.get("kind") != "frame":
            kind = "not a file"
        also = ", or model if each model is its own run" if option == "groups" else ""
        raise InputError(
            f"--{option} is {given!r}, which is {kind}; give a CSV file with a line MODEL,UNIT "
            f"per model{also}"
        )
    names = _units(path)
    missing = [name for name in data.model_ids if name not in names]
    if missing:
        raise InputError(
            f"{path} lacks {len(missing)} of the {data.n_models} models, the first is {missing[0]!r}; give "
            "every model a line MODEL,UNIT"
        )
    return [names[name] for name in data.model_ids]


def _units(path: Path) -> Mapping[str, str]:
    frame = _table(path, 0, 1)
    if frame.shape[1] < 2:
        raise FileFormatError(f"{path} has {frame.shape[1]} column; the first two must be model and unit")
    models, units = (frame.iloc[:, place].astype(str) for place in (0, 1))
    if models.duplicated().any():
        raise InputError(f"{path} names the model {models[models.duplicated()].iloc[0]!r} more than once")
    return dict(zip(models, units, strict=True))
