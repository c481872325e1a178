"""Save a circuit, load it again, measure it on several tasks, compare it with another circuit.

python examples/saved_circuit.py
"""

import tempfile
from pathlib import Path

import assay


def main() -> None:
    model = assay.load_model("mini")
    tasks = [assay.load_task(name, model, n=40, seed=1) for name in ("ioi", "gendered-pronoun", "sva")]

    path = Path(tempfile.mkdtemp()) / "ioi.safetensors"
    scores = assay.discover(model, assay.load_task("ioi", model, n=40, seed=0), "eap-ig-inputs")
    scores.top(200).connected().save(path)

    circuit = assay.load_circuit(path, graph=model.graph)
    print(circuit, "found by", circuit.provenance["method"], "on", circuit.provenance["task"]["name"])
    for task in tasks:
        found = assay.measure(circuit, model, task, "faithfulness-norm")
        interval = found.interval()
        print(f"{task.name:17} {found.value:6.2f} [{interval.low:5.2f}, {interval.high:5.2f}] {found.status}")

    other = assay.discover(model, tasks[1], "eap-ig-inputs").top(200).connected()
    print(f"shared with the circuit of {tasks[1].name}: Jaccard {circuit.jaccard(other):.2f}")
    print("heads of both:", (circuit & other).kept_heads())


if __name__ == "__main__":
    main()
