"""What commands name: prompts or images, and circuits."""

from pathlib import Path

from assay.circuits.circuit import HUB, Circuit, load_circuit, published_circuit, published_circuits
from assay.circuits.files import check_graph
from assay.circuits.heads import HeadCircuit, heads_of, load_head_circuit, published_head_circuits
from assay.circuits.spans import check_everywhere
from assay.core.errors import InputError, unknown_name
from assay.graph import Graph
from assay.models import Model
from assay.tasks import Task, digits_source, load_images, load_task


IMAGES = "images:"  # begins a name of images where prompts are usual


def named_task(text: str, model: Model) -> Task:
    """The prompts or images that `--task` names, as many as are usual."""
    images = text.removeprefix(IMAGES)
    if text.startswith(IMAGES) or digits_source(text) is not None or model.vision is not None:
        return load_images(images, model)
    return load_task(text, model)


def named_circuit(source: str | Path, graph: Graph) -> Circuit | HeadCircuit:
    """The circuit that `--circuit` names, ids of a store apart.

    Args:
        source: Path of a circuit file or of a head-circuit JSON file; `hf://OWNER/NAME[@REVISION][/PATH]`;
            heads, e.g. `a2.h3,a3.h0`; name of a published circuit or head circuit
            (`assay.list("circuits")`).
        graph: The graph that it must belong to.

    Raises:
        UnknownNameError: For other text.
        GraphMismatchError: For a file of another graph.
    """
    path, text = Path(source), str(source)
    if text.startswith(HUB) or path.suffix == ".safetensors" or (path.is_file() and path.suffix != ".json"):
        circuit = load_circuit(source, graph)
        check_everywhere(circuit.spans, "a circuit that is named", "circuit.anywhere()")
        return circuit
    if path.suffix == ".json" or text in published_head_circuits():
        return load_head_circuit(text)
    if heads := heads_of(text):
        return Circuit.from_heads(graph, heads)
    if "," in text:
        raise InputError(f"circuit is {text!r}; write heads as in a0.h3,a2.h1 (layer, then head)")
    names = published_circuits()
    if text not in names:
        raise unknown_name("circuit", text, [*names, *published_head_circuits()])
    circuit = published_circuit(text)
    check_graph(f"circuit {text!r}", circuit.graph, graph)
    return circuit
