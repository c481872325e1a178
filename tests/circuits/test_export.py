"""Circuits for Neuronpedia: the file read back, by its own rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.circuits import Circuit, EdgeScores, ExportedCircuit, export_circuit
from assay.circuits.export import attribution_graph
from assay.core.errors import GraphMismatchError, InputError, OutputError
from assay.graph import build_graph


NUMBER, TEXT = (int, float), (str,)
# What Neuronpedia's published JSON schema of attribution graphs requires: field -> types of its value.
REQUIRED: dict[str, dict[str, tuple[type, ...]]] = {
    "": {"metadata": (dict,), "qParams": (dict,), "nodes": (list,), "links": (list,)},
    "metadata": {"slug": TEXT, "scan": TEXT, "prompt_tokens": (list,), "prompt": TEXT},
    "node": {
        "node_id": TEXT,
        "feature": (int, type(None)),
        "layer": (str, int),
        "ctx_idx": (int,),
        "feature_type": TEXT,
        "jsNodeId": TEXT,
        "clerp": TEXT,
    },
    "link": {"source": TEXT, "target": TEXT, "weight": NUMBER},
}
# And the types of what is optional there.
OPTIONAL: dict[str, dict[str, tuple[type, ...]]] = {
    "metadata": {"feature_details": (dict,), "node_threshold": NUMBER, "info": (dict,)},
    "info": {"description": TEXT, "creator_name": TEXT, "generator": (dict,), "create_time_ms": NUMBER},
    "generator": {"name": TEXT, "version": TEXT, "url": TEXT, "email": TEXT},
    "qParams": {
        "pinnedIds": (list,),
        "supernodes": (list,),
        "linkType": TEXT,
        "clickedId": TEXT,
        "sg_pos": TEXT,
    },
    "node": {"influence": (*NUMBER, type(None)), "activation": (*NUMBER, type(None))},
}


def check_part(part: dict[str, Any], kind: str) -> None:
    """One object against the schema: what must be there, and that every known field has its type."""
    required, optional = REQUIRED.get(kind, {}), OPTIONAL.get(kind, {})
    assert set(required) <= set(part), f"{kind} lacks {set(required) - set(part)}"
    for name, value in part.items():
        types = {**required, **optional}.get(name)
        assert types is not None, f"{kind} has {name}, which the schema does not know"
        assert isinstance(value, types), f"{kind}.{name} is {value!r}"
        assert not isinstance(value, bool)


def check_attribution_graph(document: dict[str, Any]) -> None:
    check_part(document, "")
    check_part(document["metadata"], "metadata")
    check_part(document["metadata"]["info"], "info")
    check_part(document["metadata"]["info"]["generator"], "generator")
    check_part(document["qParams"], "qParams")
    assert all(isinstance(token, str) for token in document["metadata"]["prompt_tokens"])
    for node in document["nodes"]:
        check_part(node, "node")
        assert 0 <= node["ctx_idx"] < len(document["metadata"]["prompt_tokens"])
    ids = [node["node_id"] for node in document["nodes"]]
    assert len(set(ids)) == len(ids)
    for link in document["links"]:
        check_part(link, "link")
        assert {link["source"], link["target"]} <= set(ids)
    pinned = document["qParams"]["pinnedIds"]
    assert set(pinned) <= set(ids)
    for name, *members in document["qParams"]["supernodes"]:
        assert isinstance(name, str)
        assert set(members) <= set(ids)


@pytest.fixture(params=[4, 2], ids=["own keys", "shared keys"])
def exported(request: pytest.FixtureRequest) -> ExportedCircuit:
    graph = build_graph(2, 4, request.param)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=torch.Generator().manual_seed(0))
    scores = EdgeScores(graph, values)
    circuit = replace(scores.top(60), roles={"movers": ((1, 0), (1, 2)), "none of these": ((7, 7),)})
    return ExportedCircuit(
        circuit=circuit, scores=scores, model="mini", prompt="a b c", tokens=("a", " b", " c")
    )


def test_an_attribution_graph_has_the_form_that_neuronpedia_reads(exported: ExportedCircuit) -> None:
    document = attribution_graph(exported)
    check_attribution_graph(document)
    assert document["metadata"]["scan"] == "mini"
    clerps = {node["clerp"]: node for node in document["nodes"]}
    mover = clerps["a1.h0 (movers)"]
    assert (mover["node_id"], mover["feature_type"]) == ("1_0_2", "attention head")
    assert document["qParams"]["supernodes"] == [["movers", "1_0_2", "1_2_2"]]
    total = sum(link["weight"] for link in document["links"])
    assert total == pytest.approx(float(exported.scores.values[exported.circuit.mask].sum()), rel=1e-5)


def test_scores_of_query_key_and_value_are_summed_into_one_link() -> None:
    graph = build_graph(1, 2)
    circuit = Circuit.from_edges(graph, ["input->a0.h1.q", "input->a0.h1.k", "a0.h1->logits"])
    values = torch.zeros(graph.n_sources, graph.n_targets)
    for target, score in (("a0.h1.q", 0.5), ("a0.h1.k", -0.2)):
        values[0, graph.target_index(target)] = score
    values[graph.source_index("a0.h1"), graph.target_index("logits")] = 2.0
    document = attribution_graph(ExportedCircuit(circuit=circuit, scores=EdgeScores(graph, values)))
    links = {(link["source"], link["target"]): link["weight"] for link in document["links"]}
    assert links == {("E_0_0", "0_1_0"): pytest.approx(0.3), ("0_1_0", "1_0_0"): 2.0}


def test_what_cannot_be_exported_is_refused(exported: ExportedCircuit, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        export_circuit(tmp_path / "nowhere" / "c.json", exported)
    with pytest.raises(InputError, match="keeps no edge"):
        ExportedCircuit(circuit=Circuit.empty(build_graph(1, 2)))
    other = build_graph(3, 4)
    with pytest.raises(GraphMismatchError, match="scores belong to another graph"):
        ExportedCircuit(circuit=exported.circuit, scores=EdgeScores(other, other.valid.float()))
