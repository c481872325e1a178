"""The results store: what was computed, under the identity of how it was computed.

A store is a database and, beside it, the arrays of the results. By default both lie in one directory:

```
DIR/assay.db                        kind, provenance, payload, array names and summary of each result
DIR/arrays/ab/abcdef….safetensors   one array per file, named by the SHA-256 of the file
```

A result's id is the hash of its kind and provenance less machine facts (`assay.core.record.record_id`),
so asking whether work was done already is one look-up, and storing the same work twice changes nothing.
Writers in several processes are serialised by the database; array files are written to a temporary name
and renamed before the row that names them is committed, so a reader never sees half a result.
"""

from assay.store.about import About, ResultSummary
from assay.store.arrays import StoredArrays
from assay.store.export import export_results
from assay.store.leftovers import Leftover
from assay.store.location import DATABASE_NAME
from assay.store.reading import StoredResult
from assay.store.results import Store
from assay.store.tables import ID_LENGTH, SCHEMA_VERSION


__all__ = [
    "DATABASE_NAME",
    "ID_LENGTH",
    "SCHEMA_VERSION",
    "About",
    "Leftover",
    "ResultSummary",
    "Store",
    "StoredArrays",
    "StoredResult",
    "export_results",
]
