import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.circuits import Circuit, HeadCircuit, Role, load_head_circuit, published_head_circuits
from assay.circuits.heads import BAND_ORDINALS
from assay.core.errors import AssayWarning, FileFormatError, GraphMismatchError, InputError, UnknownNameError
from assay.graph import build_graph


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "calibrations"
DATA = Path(__file__).resolve().parents[2] / "src" / "assay" / "circuits" / "data" / "heads"


def stored(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text())


# ---- shipped files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", published_head_circuits())
def test_what_a_shipped_file_states_follows_from_its_roles(shared: Callable[[str], Path], name: str) -> None:
    content, circuit = stored(name), load_head_circuit(name)
    assert content == json.loads(shared(f"data/circuits_heads/{name}.json").read_text())
    assert circuit.k == content["n_circuit_heads"] == len(circuit.heads)
    assert [list(head) for head in circuit.heads] == sorted(content["heads"])
    assert [list(edge) for edge in circuit.head_edges] == sorted(content["head_edges"])
    assert {role: each.ordinal for role, each in circuit.roles.items()} == {
        role: each["ordinal"] for role, each in content["roles"].items()
    }
    assert int(circuit.members.sum()) == circuit.k
    assert all(circuit.members[layer * circuit.n_heads + head] for layer, head in circuit.heads)
    assert len(circuit.ordinals) == circuit.k


@pytest.mark.parametrize("name", published_head_circuits())
def test_a_shipped_circuit_becomes_edges_and_survives_a_file(name: str, tmp_path: Path) -> None:
    circuit = load_head_circuit(name)
    graph = build_graph(circuit.n_layers, circuit.n_heads)
    edges = Circuit.from_heads(graph, name)
    assert edges.heads == circuit.heads == edges.kept_heads()
    assert edges.provenance["published"] == name
    path = tmp_path / "again.json"
    path.write_text(json.dumps(circuit.to_dict()))
    assert load_head_circuit(path).to_dict() == circuit.to_dict()
    assert {**stored(name), **json.loads(path.read_text())}.keys() == stored(name).keys()
    assert Circuit.from_heads(graph, path) == edges == Circuit.from_heads(graph, circuit)
    assert edges == Circuit.from_heads(graph, circuit.heads)


@pytest.mark.parametrize("case", range(3))
def test_golden_depths_layers_and_ordinals(case: int) -> None:
    golden = json.loads((GOLDEN / "nomological.json").read_text())[case]
    given = golden["circuit"]
    bands = {role: band for band, roles in given["bands"].items() for role in roles}
    circuit = HeadCircuit(
        id="golden",
        n_layers=given["n_layers"],
        n_heads=given["n_heads"],
        heads=tuple((layer, head) for role in given["roles"].values() for layer, head in role),
        roles={
            name: Role(heads=tuple((layer, head) for layer, head in heads), band=bands[name])
            for name, heads in given["roles"].items()
        },
        pathways=tuple((first, second) for first, second in given["pathways"]),
    )
    assert circuit.depths == golden["pathway_depth"]
    found = sorted(zip((layer for layer, _ in circuit.heads), circuit.ordinals, strict=True))
    assert found == sorted(zip(golden["head_layers"], golden["head_ordinals"], strict=True))
    counts = np.bincount([layer for layer, _ in circuit.heads], minlength=circuit.n_layers)
    assert counts.tolist() == golden["layer_counts"]
    for name, heads in given["roles"].items():
        assert circuit.mean_layers[name] == pytest.approx(np.mean([layer for layer, _ in heads]))


# ---- bands ----------------------------------------------------------------------------------------


def test_bands_have_the_published_ordinals(shared: Callable[[str], Path]) -> None:
    index = json.loads(shared("data/circuits_heads/index.json").read_text())
    assert index["band_ordinals"] == dict(BAND_ORDINALS)
    assert all(described(band=band).ordinals == (ordinal,) for band, ordinal in BAND_ORDINALS.items())


def described(**role: Any) -> HeadCircuit:
    roles = {"a": Role(heads=((0, 1),), **role)}
    return HeadCircuit(id="odd", n_layers=2, n_heads=2, heads=((0, 1),), roles=roles)


def test_an_unknown_band_is_the_middle_with_a_warning_and_none_has_no_ordinal() -> None:
    with pytest.warns(AssayWarning, match="unknown band 'somewhere' counts as the middle"):
        assert described(band="somewhere").ordinals == (2,)
    bare = HeadCircuit(id="bare", n_layers=2, n_heads=2, heads=((0, 1),))
    for circuit in (bare, described()):
        with pytest.raises(InputError, match=r"head \(0, 1\) has no role with a band, so its heads have no"):
            _ = circuit.ordinals


# ---- errors ---------------------------------------------------------------------------------------


BAD: list[tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = [
    (lambda c: c["heads"].append([0, 1]), InputError, r"head \(0, 1\) is listed twice"),
    (lambda c: c["heads"].append([12, 0]), InputError, r"head \(12, 0\) is out of range"),
    (lambda c: c["heads"].append([0, 0]), InputError, r"head \(0, 0\) has 0 roles"),
    (lambda c: c["heads"].remove([9, 9]), InputError, r"\(9, 9\) has 1 roles and is not in `heads`"),
    (lambda c: c["roles"]["induction"]["heads"].append([9, 9]), InputError, r"head \(9, 9\) has 2 roles"),
    (
        lambda c: c["pathways"].append(["a", "nobody"]),
        InputError,
        "unknown role in the pathways of ioi_",
    ),
    (lambda c: c["pathways"].append(["name_mover", "induction"]), InputError, "form a cycle, .*induction"),
    (lambda c: c.update(index_base=1), FileFormatError, "index_base 1"),
    (lambda c: c.update(schema="head_circuit/2"), FileFormatError, "schema 'head_circuit/2'"),
    (lambda c: c.pop("model"), FileFormatError, r"not a complete head_circuit/1 file \(KeyError"),
    (lambda c: c["heads"].append([1, 2, 3]), FileFormatError, r"not a complete .* file \(ValueError"),
]


@pytest.mark.parametrize(("spoil", "error", "message"), BAD)
def test_contradictory_files_are_refused(
    spoil: Callable[[dict[str, Any]], object], error: type[Exception], message: str
) -> None:
    content = copy.deepcopy(stored("ioi_gpt2_wang26"))
    HeadCircuit.from_dict(content)
    spoil(content)
    with pytest.raises(error, match=message):
        HeadCircuit.from_dict(content)


def test_what_names_no_head_circuit_of_the_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    for source, error, said in (
        ("ioi_gpt2_wang", UnknownNameError, "did you mean 'ioi_gpt2_wang26'"),
        (tmp_path / "absent.json", FileFormatError, r"cannot read .*absent\.json"),
        (tmp_path / "list.json", FileFormatError, "is not a JSON file of schema .*: it holds a list"),
        ("ioi_gpt2_wang26", GraphMismatchError, "describes 12 layers of 12 heads, but the graph has 4 of 4"),
        ([(4, 0)], InputError, "out of range"),
    ):
        with pytest.raises(error, match=said):
            Circuit.from_heads(build_graph(4, 4), source)
