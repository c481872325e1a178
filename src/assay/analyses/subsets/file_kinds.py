"""What a file that was given for another is called in an error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


DOCUMENTS = {
    "assay-selection/1": "a subset file (of --subset)",
    "assay-subset/1": "a selection document (of --save)",
    "assay-subset-path/1": "a path document (of --save)",
    "assay-subset-evaluation/1": "an evaluation document",
    "assay-subset-card/1": "a card",
}
ENDINGS = {  # of what is not JSON
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".jsonl"), "a table"),
    ".npz": "an archive",
    ".html": "a page",
}


def kind_of_file(path: Path, content: Any = None) -> str:
    """A noun for a file, or for a stored document: by the schema of what it holds, else by its ending."""
    if path.is_dir():
        return "a folder"
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if isinstance(schema, str):
        return DOCUMENTS.get(schema, f"a document of schema {schema!r}")
    return ENDINGS.get(path.suffix, "JSON of another kind")
