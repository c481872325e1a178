"""A chosen subset for other programs: ids, tables, its card, and Croissant."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets.card import card_text, subset_card
from assay.analyses.subsets.page_words import baselines
from assay.circuits import write_atomically
from assay.core.errors import InputError
from assay.core.extras import needs_extra
from assay.core.record import plain
from assay.stats import fisher_z_interval


if TYPE_CHECKING:
    import pandas as pd

# Columns of a table of the examples, with their types in Croissant and what they mean.
COLUMNS = {
    "rank": ("sc:Integer", "Place in the subset, most harmful first, from 1"),
    "example_id": ("sc:Text", "Name of the example"),
    "index": ("sc:Integer", "Place among the examples that the subset was selected from, from 0"),
    "score": ("sc:Float", "What the examples are ordered by, ascending"),
}
FORMATS = (".txt", ".csv", ".parquet", ".md", ".json", ".jsonld")
# Croissant 1.0: prefixes, and the terms that a document of this kind uses.
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in ("field", "key", "recordSet")},
}
Document = Mapping[str, Any]


def check_format(path: Path) -> None:
    """Refuse a file whose ending names no format."""
    if path.suffix not in FORMATS:
        raise InputError(
            f"{path} ends in {path.suffix or 'nothing'!r}; a subset is exported as {', '.join(FORMATS)}"
        )


def export_subset(path: Path, document: Document, licence: str | None = None) -> Path:
    """Write the subset of a document in the format of the file's ending.

    Args:
        path: `.txt` (ids alone), `.csv` or `.parquet` (rank, example_id, index, score), `.md` or `.json` (the
            card), `.jsonld` (Croissant 1.0 with the examples inside).
        document: What `Subset.document` or `SelectionPath.document` gave.
        licence: Licence of the data, for the card and Croissant.

    Raises:
        InputError: For another ending.
        MissingExtraError: If pyarrow is needed and not installed.
        OutputError: If the file cannot be written.
    """
    check_format(path)
    table, card = _table(document), subset_card(document, licence)
    if path.suffix == ".parquet":
        with needs_extra("parquet", "Parquet needs pyarrow"):
            return write_atomically(path, table.to_parquet(index=False))
    if path.suffix == ".csv":
        text = table.to_csv(index=False, lineterminator="\n")
    elif path.suffix == ".txt":
        text = "".join(f"{name}\n" for name in table["example_id"])
    elif path.suffix == ".md":
        text = card_text(card)
    else:
        held = croissant(document, licence) if path.suffix == ".jsonld" else card
        text = json.dumps(plain(held), indent=1, allow_nan=False, ensure_ascii=False)
    return write_atomically(path, text.encode())


def _table(document: Document) -> "pd.DataFrame":
    import pandas as pd

    ranks = range(1, document["size"] + 1)
    held = (ranks, document["example_ids"], document["indices"], document["scores"])
    return pd.DataFrame(dict(zip(COLUMNS, held, strict=True)))


def export_sizes(path: Path, document: Document) -> Path:
    """Write `size_table` as CSV, with six decimals."""
    text = size_table(document).to_csv(index=False, lineterminator="\n", float_format="%.6f")
    return write_atomically(path, text.encode())


def size_table(document: Document) -> "pd.DataFrame":
    """R over the test models by size, for the subsets and their baselines, as Table A.3 of the paper.

    Args:
        document: What `Subset.document` or `SelectionPath.document` gave.

    Returns:
        A row per size: `dataset` (a name, or the file or folder that was read), `ood` (environments out of
        distribution, where known) and `n` (examples); for `pearson` and `spearman`, of `ours`, `random`
        and `hard`, the value and half the width of its interval (`_hw`); then `n_models` (test models), the
        same of other baselines, and the ends of each interval (`_low`, `_high`), which is not symmetric.
        Intervals are of 95 %, through atanh, with the number of test models, where the printed table has 100
        and the lower side alone; those of ranks by Bonett and Wright. They take models as independent.
        Undefined numbers are NaN.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Table A.3.
    """
    import pandas as pd

    source, rows = document["data"]["source"], []
    outside = ", ".join(map(str, source.get("ood_env", ()))) or None
    named = {
        "dataset": next((source[key] for key in ("name", "file", "read_from") if key in source), None),
        "ood": source.get("domain", outside),
    }
    kinds = {"ours": "test"} | {kind: kind for kind in ("random", "hard", *baselines(document))}
    for row in document["rows"]:
        values: dict[str, float] = {}
        ends: dict[str, float] = {}
        for statistic, entry in (("pearson", "r"), ("spearman", "spearman")):
            for name, kind in kinds.items():
                r = (row.get(kind) or {}).get(entry)
                value, key = math.nan if r is None else r, f"{statistic}_{name}"
                interval = fisher_z_interval(value, row["test"]["n"], kind=statistic)
                first = values if name in ("ours", "random", "hard") else ends
                first |= {key: value, f"{key}_hw": (interval.high - interval.low) / 2}
                ends |= {f"{key}_low": interval.low, f"{key}_high": interval.high}
        rows.append({**named, "n": row["size"], **values, "n_models": row["test"]["n"], **ends})
    return pd.DataFrame(rows)


def croissant(document: Document, licence: str | None = None) -> dict[str, Any]:
    """The subset as a data set of the Croissant vocabulary, version 1.0, its examples inside.

    References:
        MLCommons (2024), https://docs.mlcommons.org/croissant/docs/croissant-spec.html.
    """
    card, own = subset_card(document, licence), "examples/{}".format
    examples = {
        "@type": "cr:RecordSet",
        "@id": "examples",
        "name": "examples",
        "description": "The examples of the subset",
        "key": {"@id": own("example_id")},
        "field": [
            {"@type": "cr:Field", "@id": own(name), "name": name, "description": meaning, "dataType": kind}
            for name, (kind, meaning) in COLUMNS.items()
        ],
        "data": _table(document).rename(columns=own).to_dict("records"),
    }
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": f"subset-{document['id']}",
        "description": " ".join(
            [f"{card['title']}.", card["finding"], *card["reasons"], *card["caveats"], *card["notes"]]
        ),
        **({"license": licence} if licence else {}),
        "version": "1.0.0",
        "recordSet": [examples],
    }
