"""The results store: what was computed, under the identity of how it was computed.

A store is a database and, beside it, a file of arrays for each result that has some. By default both lie in
one directory:

```
DIR/assay.db                     a row for each result: columns to find it by, provenance, payload
DIR/arrays/abcdef….safetensors   the arrays of a result by its id; the row has the SHA-256 of the file
```

A result's id is the hash of its kind and provenance less machine facts (`assay.core.record.record_id`),
so asking whether work was done already is one look-up, and storing the same work twice changes nothing. The
file of arrays is written and renamed inside the transaction that adds the row, so a reader never sees half a
result, and what a killed writer leaves is a file that no row names.
"""

from assay.store.database import DATABASE_NAME, SCHEMA_VERSION, About, ResultSummary, StoredResult
from assay.store.store import Content, Outbox, Store


__all__ = [
    "DATABASE_NAME",
    "SCHEMA_VERSION",
    "About",
    "Content",
    "Outbox",
    "ResultSummary",
    "Store",
    "StoredResult",
]
