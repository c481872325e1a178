"""The card of a circuit in a repository: what it is, how it was found, how to load and cite it."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.extras import DISTRIBUTION
from assay.core.record import library_version, plain
from assay.page.blocks import Table, columns
from assay.page.markdown import markdown_table
from assay.page.text import cut_text, interval, number, record_text


if TYPE_CHECKING:
    from assay.circuits.circuit import Circuit
    from assay.circuits.hub_file import HubFile


CARD = "README.md"
_SEAL = re.compile(rb"\n<!-- written by assay ([0-9a-f]{64}) -->\n$")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def circuit_card(circuit: "Circuit", file: "HubFile", measurements: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of a card, which ends with a seal by which `is_own_card` tells whether it was edited.

    Args:
        circuit: The circuit.
        file: Where it will be.
        measurements: Documents of measurements of it (`Measurement.to_dict`).
    """
    record: dict[str, Any] = plain(dict(circuit.provenance))
    model, task = (_mapping(record.get(key)) for key in ("model", "task"))
    parts = [
        _metadata(model),
        f"# {_title(circuit, model, task)}",
        "A circuit is the set of edges of a transformer's computation that do a task. It was made with "
        f"assay (`pip install {DISTRIBUTION}`), version {library_version()}.",
        fact_table(_fact_rows(circuit, record, model, task)),
        *([_measured(measurements)] if measurements else []),
        _loading(file, model, task),
        _citing(circuit, file),
        provenance_section(record),
    ]
    text = "\n\n".join(parts) + "\n"
    return f"{text}\n<!-- written by assay {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_own_card(content: bytes) -> bool:
    """Whether a card is as `circuit_card` wrote it."""
    seal = _SEAL.search(content)
    return seal is not None and hashlib.sha256(content[: seal.start()]).hexdigest().encode() == seal[1]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _metadata(model: Mapping[str, Any]) -> str:
    """The head that the hub reads."""
    lines = ["library_name: assay", "tags:", "- assay", "- circuit", "- interpretability"]
    if _HUB_ID.fullmatch(name := str(model.get("id", ""))):
        lines.append(f"base_model: {json.dumps(name)}")
    return "\n".join(["---", *lines, "---"])


def _title(circuit: "Circuit", model: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    of = f" of {one_line(model['id'])}" if "id" in model else ""
    on = f" for {one_line(task['name'])}" if "name" in task else ""
    return f"Circuit{of}{on}: {circuit.n_edges:,} of {circuit.graph.n_edges:,} edges"


def provenance_section(record: Mapping[str, Any]) -> str:
    """How a result came to be, the end of every card."""
    return f"## Provenance\n\n```json\n{record_text(record).replace('```', '')}\n```"


def fact_table(rows: Iterable[tuple[str, object]]) -> str:
    """Facts with their names as a table."""
    lines = [[name, one_line(value)] for name, value in rows]
    return markdown_table(Table(columns=columns("fact", "value"), rows=lines))


def one_line(value: object, limit: int = 200) -> str:
    """Text on one line that is not read as markup."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(cut_text(str(value), limit).split()))


def _fact_rows(
    circuit: "Circuit", record: Mapping[str, Any], model: Mapping[str, Any], task: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    rows = {
        "model": _joined(model, "id", "family", "revision", "dtype"),
        "weights": model.get("weight_hash"),
        "task": _joined(task, "name", "domain"),
        "examples": task.get("n"),
        "method": _joined(record, "method", "quadrature", steps="steps"),
        "objective": record.get("objective"),
        "ablation": record.get("ablation"),
        "selection": _joined(record, "selection", k="k"),
        "published as": record.get("published"),
    }
    yield from ((name, value) for name, value in rows.items() if value not in (None, ""))
    yield "edges", f"{circuit.n_edges:,} of {circuit.graph.n_edges:,}"
    if circuit.heads is not None:
        yield "heads", len(circuit.heads)
    if circuit.spans is not None:
        yield "spans of positions", len(circuit.spans)
    yield "graph", circuit.graph.fingerprint
    yield "circuit", circuit.hash


def _joined(record: Mapping[str, Any], *keys: str, **named: str) -> str:
    """What a record holds under some keys, on one line."""
    words = dict.fromkeys(keys, "") | {key: f"{name} " for key, name in named.items()}
    return ", ".join(f"{word}{record[key]}" for key, word in words.items() if record.get(key) is not None)


def _measured(measurements: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for each in measurements:
        ends, record = _mapping(each.get("interval")), _mapping(each.get("provenance"))
        task = _mapping(record.get("task")).get("name")
        facts = (each.get("name"), task, each.get("unit"), record.get("ablation"), record.get("objective"))
        numbers = (number(each.get("value"), 3), interval(ends.get("low"), ends.get("high"), 3))
        rows.append([*(one_line(fact or "") for fact in facts), *numbers, str(each.get("n", ""))])
    heads = [
        *columns("metric", "task", "unit", "ablation", "objective"),
        *columns("value", "95 % interval", "n", numeric=True),
    ]
    return f"## Measurements\n\n{markdown_table(Table(columns=heads, rows=rows))}".rstrip()


def _loading(file: "HubFile", model: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    name, on = (json.dumps(str(each)) for each in (model.get("id", "MODEL"), task.get("name", "TASK")))
    load = "load_images" if "domain" in task else "load_task"
    return f"""## Load it

```python
import assay

circuit = assay.load_circuit("{file}")
model = assay.load_model({name})
task = assay.{load}({on}, model)
print(assay.measure(circuit, model, task, "faithfulness"))
```

Commands take the same address: `assay measure --circuit {file}`. It needs
`pip install '{DISTRIBUTION}[hub]'`."""


def _citing(circuit: "Circuit", file: "HubFile") -> str:
    return f"""## Cite it

Cite the repository with the commit that you used, assay, and the papers of model, task and method.

```bibtex
@misc{{circuit-{circuit.hash},
  title        = {{Circuit {circuit.hash}}},
  howpublished = {{Hugging Face Hub, {file.repository}, file {file.path}}},
  note         = {{made with assay {library_version()}}}
}}
```"""
