"""Correctness of models on examples from whatever holds it: archives, tables, prediction files, zoos."""

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.encoder import Encoder, embed_examples, with_embedding
from assay.analyses.subsets.header import ROLES, lying
from assay.analyses.subsets.line import MIN_MODELS
from assay.analyses.subsets.parquet import is_archive
from assay.analyses.subsets.predictions import PATTERN
from assay.analyses.subsets.table_files import read_answers, read_table
from assay.core.errors import AssayWarning, FileFormatError, InputError, check_name
from assay.core.record import canonical_json, library_version
from assay.core.untrusted import malformed
from assay.pipeline.checks import check_writable
from assay.pipeline.stage import Progress


if TYPE_CHECKING:
    from assay.tasks import DomainSource, ImageSet

DIGITS_SIZES = (50, 100, 200)
DIGITS_MODELS = 320
FOLDER = "select"  # of a store: data that were expensive to make
EACH_MODEL = "model"  # of --groups or --families: every model is one of its own


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
    columns: str | None = None,
    id_accuracy: str | None = None,
    orientation: str | None = None,
    cells: str | None = None,
    scores: str | None = None,
    missing: str | None = None,
    id_envs: str | None = None,
    ood_env: str | None = None,
    checkpoints: str = "last",
    facts: Sequence[str] = (),
    examples: Path | None = None,
    images: str | None = None,
    id_images: str | None = None,
    encoder: Encoder | None = None,
    text: str | None = None,
    digits_models: int | None = None,
    at_least: int = MIN_MODELS,
    device: str | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> GivenData:
    """The data that a path stands for.

    Args:
        source: Archive, table, folder of prediction CSVs, of tables or of sample logs, or zoo; None:
            classifiers of digits, trained now.
        groups: Training run of each model: a column of a table, a CSV file of model and run, or `model`.
        families: Family of each model, likewise.
        columns: Of a table: its columns by role, as `model=run,example=uid`.
        id_accuracy: Of a table: a column, or a file of model and accuracy.
        orientation: Of a table: `long`, `wide` or `transposed`, if not found out.
        cells: Of a table: `correct`, `prediction` or `score`, if not found out.
        scores: Of a table of scores: their worse and better end, as `5,0`.
        missing: Of a table: what to do with missing cells.
        id_envs: Of prediction CSVs, a column `domain` or sample logs: what is in distribution.
        ood_env: Of the same: what is out of distribution.
        checkpoints: Of a folder of CSVs: `last`, `all`, or steps.
        facts: Of a table: columns that say something of the example.
        examples: Of a table: a file of what is known of the examples, their names first.
        images: Of a zoo: labelled images out of distribution.
        id_images: Of a zoo: labelled images in distribution that no model was trained on.
        encoder: Embeds the images of a zoo at its own size, the images of an archive, or texts.
        text: Column with the text of each example.
        digits_models: Without a source: classifiers to train.
        at_least: Of a table or a zoo: models that are needed; 1 for models that select nothing, which need no
            accuracies in distribution in a table either.
        device: Of the models of a zoo.
        seed: Root seed of the digits.
        folder: A store; trained digits, and predictions of the embedded zoo, are kept in its folder `select`.
        progress: Told of models trained or run.

    Raises:
        InputError: For an option that the source has no use for, or lacks.
        FileFormatError: If nothing is there, or nothing that can be read.
    """
    domains: dict[str, object] = {"id-envs": id_envs, "ood-env": ood_env}
    of_csvs: dict[str, object] = {"checkpoints": None if checkpoints == "last" else checkpoints}
    of_zoo: dict[str, object] = {"images": images, "id-images": id_images}
    of_table: dict[str, object] = {
        "facts": facts or None,
        "examples": examples,
        "columns": columns,
        "id-accuracy": id_accuracy,
        "orientation": orientation,
        "cells": cells,
        "scores": scores,
        "missing": missing,
    }
    if source is None:
        _refuse("the built-in digits", domains | of_zoo | of_table | of_csvs)
        data = _digits(digits_models or DIGITS_MODELS, seed, folder, progress)
        data = _told(_with_units(data, groups, families), None, encoder, text)
        return GivenData(data=data, sizes=DIGITS_SIZES)
    if digits_models is not None:
        raise InputError(f"--digits-models is for the built-in data, but {source} is given; remove one")
    if not source.exists():
        raise FileFormatError(
            f"{source} does not exist; give a correctness archive, a table, or a folder of prediction CSVs, "
            "tables, sample logs or models"
        )
    if source.is_dir() and (images is not None or id_images is not None):
        _refuse("a zoo", domains | of_table | of_csvs)
        data = _from_zoo(
            source,
            images,
            id_images,
            encoder=encoder,
            seed=seed,
            folder=folder,
            options={"at_least": at_least, "device": device, "progress": progress},
        )
        encoder = None  # the images are embedded as they lie there, not at the size of the models
    elif source.is_dir() and next(source.rglob(PATTERN), None) is not None:
        _refuse("a folder of prediction CSVs", of_table)
        data = _from_folder(source, id_envs, ood_env, checkpoints, progress)
    elif source.suffix == ".npz" or (source.suffix == ".parquet" and is_archive(source)):
        _refuse("an archive", domains | of_zoo | of_table | of_csvs)
        data = CorrectnessData.load(source)
    else:
        _refuse("a table", of_zoo | of_csvs)
        data = _from_table(source, {"group": groups, "family": families}, of_table, domains, at_least)
        return GivenData(data=_told(data, source, encoder, text))
    return GivenData(data=_told(_with_units(data, groups, families), source, encoder, text))


def _told(
    data: CorrectnessData, read_from: Path | None, encoder: Encoder | None, text: str | None
) -> CorrectnessData:
    """The data with file and column of texts named in their source, and embeddings by an encoder."""
    if read_from is not None:  # not part of the identity: a renamed file is the same data
        named = {"read_from": Path(os.path.abspath(read_from)).name}
        data = dataclasses.replace(data, source=named | dict(data.source))
    if text is not None:
        check_name("column of the examples", text, data.meta)
        data = dataclasses.replace(data, source={**data.source, "text": text})
    return data if encoder is None else embed_examples(data, encoder)


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
    encoder: Encoder | None,
    seed: int,
    folder: Path | None,
    options: dict[str, Any],
) -> CorrectnessData:
    """The answers of the models of a zoo, each image at their geometry; `options` are those of `ask_zoo`."""
    from assay.pipeline.targets import FIRST_KNOWN, FIRST_TARGET, N_SHAPES
    from assay.tasks import EvalTransform, ImageStream, ReadOptions, find_domains, one_domain
    from assay.zoo import Zoo
    from assay.zoo.archive import missing_text
    from assay.zoo.records import image_reading

    if images is None:
        raise InputError("--id-images rates the models of a zoo; give --images too, those to select from")
    zoo = Zoo.open(source)
    zoo.check_done(options["at_least"])
    if zoo.missing:
        warnings.warn(f"{zoo.path}: {missing_text(zoo.missing, len(zoo.keys))}", AssayWarning, stacklevel=3)
    keep = None if zoo.keeps_records or folder is None else folder / FOLDER / zoo.name
    reading = image_reading(zoo, zoo.keys[0], keep=keep)
    transform, classes = EvalTransform.for_model(reading), zoo.classes or reading.classes

    def domain(given: str, start: int) -> "DomainSource":
        return one_domain(
            {each.name: each for each in find_domains(given, start=start, drawn=N_SHAPES)}, given
        )

    def stream(given: str, start: int, prepared: EvalTransform) -> ImageStream:
        return domain(given, start).stream(ReadOptions(transform=prepared, seed=seed), classes)

    def read(given: str, start: int) -> "ImageSet":
        return domain(given, start).read(ReadOptions(transform=transform, seed=seed), classes)

    data = CorrectnessData.from_zoo(
        zoo,
        read(images, FIRST_TARGET),
        id_images=None if id_images is None else read(id_images, FIRST_KNOWN),
        keep=keep,
        **options,
    )
    if encoder is None:
        return data
    known, embedded = None, encoder.embedding_of_images(stream(images, FIRST_TARGET, encoder.transform))
    if id_images is not None:
        known = encoder.embedding_of_images(stream(id_images, FIRST_KNOWN, encoder.transform))
    return with_embedding(data, encoder, embedded, known)


# --------------------------------------------------------------------------------------------- tables


def _from_table(
    source: Path,
    units: dict[str, str | None],
    given: Mapping[str, Any],
    domains: Mapping[str, Any],
    at_least: int,
) -> CorrectnessData:
    """A table, whichever way it lies, or files that make one."""
    names, examples = _roles(given["columns"]), given["examples"]
    known = None if examples is None else read_table(examples, 0, names.get("example"))
    found = read_answers(source, names, known, *units.values())
    frame, roles = found.frame, dict(found.columns)
    if not roles:
        roles = names
    elif without := set(names) - {"correct", "score", *(roles if found.joined else ())}:
        raise InputError(f"--columns {min(without)}=... has no effect for {found.kind}; remove it")
    arguments: dict[str, Any] = {
        "columns": roles,
        "orientation": given["orientation"] or ("long" if found.columns else None),
        "meta": list(given["facts"] or ()),
        "missing": given["missing"] or "refuse",
        "cells": given["cells"],
        "scores": _ends(given["scores"]),
        "at_least": at_least,
        "unrated": at_least < MIN_MODELS,
    }
    for argument, option in (("id_domains", "id-envs"), ("ood_domains", "ood-env")):
        if (text := domains[option]) is not None:
            arguments[argument] = [each.strip() for each in text.split(",")]
    for name, unit in list(units.items()):
        if unit is not None and unit != EACH_MODEL and unit in frame.columns:
            arguments[name], units[name] = unit, None
    if (rated := given["id-accuracy"]) is not None:
        arguments["id_accuracy"] = rated if rated in frame.columns else _accuracies(Path(rated))
    if known is not None and not found.joined:
        arguments["examples"] = known.set_index(known.columns[0])
    with malformed(source, "a table of answers"):
        data = CorrectnessData.from_frame(frame, **arguments)
    told = {"kind": found.kind, **({"notes": list(found.notes)} if found.notes else {})}
    if "ood_domains" in arguments:
        told["ood_env"] = arguments["ood_domains"]
    data = dataclasses.replace(data, source={**data.source, **told})
    return _with_units(data, units["group"], units["family"])


def _roles(text: str | None) -> dict[str, str]:
    """Columns by role."""
    found = {}
    for each in text.split(",") if text else ():
        role, equals, name = each.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--columns is {text!r}; give ROLE=NAME,..., with roles {', '.join(ROLES)}")
        check_name("role of a column", role.strip(), ROLES)
        found[role.strip()] = name.strip()
    return found


def _ends(text: str | None) -> tuple[float, float] | None:
    """The worse and the better end of scores."""
    if text is None:
        return None
    try:
        worse, better = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--scores is {text!r}; give two numbers, the worse end first, e.g. 5,0") from None
    return worse, better


def _accuracies(path: Path) -> Mapping[str, Any]:
    """In-distribution accuracies by model, from a file whose first two columns are model and accuracy."""
    if not path.is_file():
        raise InputError(
            f"--id-accuracy is {str(path)!r}, which is neither a file nor a column of the table; give a CSV "
            "file with a line MODEL,ACCURACY per model, and a header"
        )
    return _by_model(path, "accuracy")


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
    with lying(data.source.get("orientation")):
        return CorrectnessData.of(
            data,
            groups=data.model_ids if groups == EACH_MODEL else _names("groups", groups, data),
            families=data.model_ids if families == EACH_MODEL else _names("families", families, data),
        )


def _names(option: str, given: str | None, data: CorrectnessData) -> list[str] | None:
    """The unit of each model, from a CSV file whose first two columns are model and unit."""
    if given is None:
        return None
    path = Path(given)
    if not path.is_file():
        kind = "neither a file nor a column of the table"
        if "orientation" not in data.source:
            kind = "not a file"
        raise InputError(
            f"--{option} is {given!r}, which is {kind}; give a CSV file with a line MODEL,UNIT "
            f"per model, or {EACH_MODEL} if each model is one of its own"
        )
    names = _by_model(path, "unit")
    missing = [name for name in data.model_ids if name not in names]
    if missing:
        raise InputError(
            f"{path} lacks {len(missing)} of the {data.n_models} models, the first is {missing[0]!r}; give "
            "every model a line MODEL,UNIT"
        )
    return [str(names[name]) for name in data.model_ids]


def _by_model(path: Path, what: str) -> Mapping[str, Any]:
    """The second column of a file by the first, the models."""
    frame = read_table(path, 0, *((1,) if what == "unit" else ()))
    if frame.shape[1] < 2:
        raise FileFormatError(f"{path} has {frame.shape[1]} column; the first two must be model and {what}")
    models = frame.iloc[:, 0].astype(str)
    if models.duplicated().any():
        raise InputError(f"{path} names the model {models[models.duplicated()].iloc[0]!r} more than once")
    return dict(zip(models, frame.iloc[:, 1], strict=True))
