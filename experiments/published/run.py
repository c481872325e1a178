"""Published figures of GPT-2 small beside those of its weights, from the hub or a directory.

Adversarial circuit evaluation (tables 3 and 7), the IOI circuit's outputs (D05) and calibrations, and CPR
and CMD of discovery on IOI as MIB has them. Table 3 is compared with the circuit and with the empty circuit:
by the public history of its code, the edges out of the embedding were cut in that run, so that every circuit
was empty. No figures are published for D05 and the calibrations of this circuit; their verdicts are written.
Published figures and their sources are in `published.json`.

    python experiments/published/run.py [--model openai-community/gpt2] [--n 1000] [--out results.json]
    python experiments/published/run.py --mib-prompts test.jsonl    # MIB's IOI prompts, not our grammar
    python experiments/published/run.py --rehearse --n 6    # the same on random weights of the same graph
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import assay
from assay.circuits import Circuit, load_head_circuit, published_circuit
from assay.core.record import plain
from assay.models import Model, load_model


HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "published.json").read_text())
EDGES = {"ioi": "ioi_gpt2", "greater-than": "greater_than_gpt2"}
# The two tables are of two templates.
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("ioi", "all"): {"template_ids": [0]},
    ("ioi", "matched"): {"template_ids": [1]},
}


def rehearsal() -> Model:
    """GPT-2's graph with narrow random blocks and the vocabulary of `mini`."""
    tokenizer = load_model("mini").tokenizer
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=96, bos_token_id=0, eos_token_id=0)
    return load_model(transformers.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)


def described(values: np.ndarray) -> list[float]:
    """The rows of the published tables."""
    shares = (0, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1)
    return [float(values.mean()), float(values.std()), *np.quantile(values, shares).tolist()]


def adversarial(model: Model, n: int) -> dict[str, Any]:
    """Divergences of the published circuits on pairs, those of the empty circuit, and what was printed."""
    published = PUBLISHED["adversarial"]
    found: dict[str, Any] = {"rows": published["rows"]}
    for protocol in ("all", "matched"):
        for name, circuit in EDGES.items():
            # Drawn pairs beyond those of the task: a matched sample of n n pairs is as large as the table's.
            count = n if protocol == "all" else n * n
            task = assay.load_task(name, model, n=2, **OPTIONS.get((name, protocol), {}))
            worst = assay.worst_case(
                published_circuit(circuit),
                model,
                task,
                protocol,
                count,
                n if protocol == "all" else None,
                reuse_clean=protocol == "all",
            )
            found[f"{protocol} {name}"] = {
                "circuit": described(worst.divergence),
                "empty circuit": described(worst.empty),
                "published": published[protocol][name],
            }
    return found


def circuit_of_wang(model: Model, n: int) -> dict[str, Any]:
    """Outputs (D05), faithfulness under means, and the sixteen calibrations of the 26 heads."""
    heads = load_head_circuit("ioi_gpt2_wang26")
    circuit = Circuit.from_heads(model.graph, heads.heads, mlps=True)
    task = assay.load_task("ioi", model, n=n, template_ids=range(15))
    outputs = assay.measure(circuit, model, task, "topk")
    kept = assay.measure(circuit, model, task, "faithfulness", ablation="mean")
    report = assay.calibrate_all(circuit, model, task)
    return {
        "D05": outputs.to_dict(),
        "faithfulness under means": kept.to_dict(),
        "calibrations": report.to_frame().to_dict("records"),
    }


def mib(model: Model, n: int, prompts: str | None) -> dict[str, Any]:
    """CPR by signed scores and CMD by magnitude, as MIB ranks them."""
    found = {}
    options: dict[str, Any] = {"template_ids": range(15)} if prompts is None else {}
    task = assay.load_task(prompts or "ioi", model, n=n, **options)
    for method in ("random", "eap", "eap-ig-inputs"):
        scores = assay.discover(model, task, method)
        signed, sized = (assay.faithfulness_curve(scores, model, task, absolute=it) for it in (False, True))
        found[method] = {"CPR": signed.area.to_dict(), "CMD": sized.distance.to_dict()}
    return found


def beside(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Each published figure: its name, what was found, what was printed."""
    rows = []
    for part in ("all ioi", "all greater-than", "matched ioi", "matched greater-than"):
        found = result["adversarial"][part]
        for reading in ("circuit", "empty circuit"):
            for name, here, there in zip(
                result["adversarial"]["rows"], found[reading], found["published"], strict=True
            ):
                rows.append((f"{part}, {reading}, {name}", here, there))
    kept = "faithfulness under means"
    rows.append(
        (f"IOI, {kept}", result["ioi_gpt2_wang26"][kept]["value"], PUBLISHED["ioi_gpt2_wang26"][kept])
    )
    for method, found in result["mib"].items():
        for name, area in found.items():
            rows.append((f"MIB, {method}, {name}", area["value"], PUBLISHED["mib"][method][name]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="openai-community/gpt2")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    parser.add_argument("--mib-prompts", help="file of MIB's IOI prompts; default: prompts of our grammar")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    model = rehearsal() if options.rehearse else load_model(options.model)
    few = min(options.n, 200)
    result = {
        "model": model.describe(),
        "n": options.n,
        "adversarial": adversarial(model, options.n),
        "ioi_gpt2_wang26": circuit_of_wang(model, few),
        "mib": mib(model, few, options.mib_prompts),
    }
    print(f"{'nats, shares, areas':48}{'here':>9}{'published':>11}")
    for name, here, there in beside(result):
        print(f"{name:48}{here:9.3f}{there:11.2f}")
    text = json.dumps(plain(result), indent=1)
    if options.rehearse:
        print(f"rehearsed: {len(text)} bytes, nothing written")
        return
    options.out.write_text(text + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
