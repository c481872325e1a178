"""Find a circuit for a text task in the embedded model, and measure how much it keeps.

python examples/text_circuit.py
"""

import assay


def main() -> None:
    model = assay.load_model("mini")
    found_on = assay.load_task("ioi", model, n=40, seed=0)
    measured_on = assay.load_task("ioi", model, n=40, seed=1)
    print(found_on.texts[0], "->", found_on.corrupted_texts[0])

    scores = assay.discover(model, found_on, "eap-ig-inputs")
    print(scores.to_frame().head(10).to_string(index=False))

    for size in (50, 100, 200, 400):
        circuit = scores.top(size).connected()
        found = assay.measure(circuit, model, measured_on, "faithfulness-norm", random_circuits=5)
        interval = found.interval()
        print(
            f"{circuit.n_edges:4} of {model.graph.n_edges} edges: normalised faithfulness "
            f"{found.value:5.2f} [{interval.low:5.2f}, {interval.high:5.2f}]; "
            f"random ones {found.baseline['random']['value']:5.2f}"
        )


if __name__ == "__main__":
    main()
