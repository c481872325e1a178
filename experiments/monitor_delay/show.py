"""Figure and table of `results.json`, for the documentation.

python experiments/monitor_delay/show.py
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
LOOKS = {
    "conformal": ("#1f5fa8", "-"),
    "sequential": ("#1f5fa8", "--"),
    "threshold": ("#1f5fa8", ":"),
    "ADWIN on the excess": ("#b5541c", "-"),
    "ADWIN on the confidence": ("#b5541c", "--"),
    "KS on the confidence": ("#666666", "--"),
    "MMD on the features": ("#666666", "-"),
}


def table(results: dict[str, Any]) -> str:
    changes = list(results["delay"])
    head = ["alarm", "false alarms per batch", "any in 100 quiet batches"]
    head += [f"delay, {each} (accuracy {100 * results['accuracy'][each]:.0f} %)" for each in changes]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for method, rate in results["false alarms per batch"].items():
        once = method == "sequential"
        cells = [
            method,
            "stays on" if once else f"{rate:.3f}",
            f"{100 * results['any false alarm in 100 batches'][method]:.0f} %",
        ]
        for change in changes:
            delay = results["delay"][change][method]
            found = results["found within"][change][method][-1]
            ends = [
                f"{delay[end]:.0f}" if delay[end] is not None else "none" for end in ("low", "median", "high")
            ]
            cells.append(f"{ends[1]} ({ends[0]} to {ends[2]}); {100 * found:.0f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(results: dict[str, Any]) -> Figure:
    drawing = Figure(figsize=(9.2, 3.4), layout="constrained")
    axes = drawing.subplots(1, len(results["delay"]), sharey=True)
    for ax, (change, methods) in zip(axes, results["found within"].items(), strict=True):
        for method, (colour, dash) in LOOKS.items():
            share = methods[method]
            ax.step(range(1, len(share) + 1), share, dash, color=colour, where="post", label=method)
        ax.set_title(f"{change}, accuracy {100 * results['accuracy'][change]:.0f} %", fontsize=9)
        ax.set_xlabel("batches after the change")
        ax.set_xscale("log")
        ax.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel("share of streams with an alarm")
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return drawing


def main() -> None:
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    (DOCS / "tables" / "monitor-delay.inc").write_text(table(results), encoding="utf-8")
    figure(results).savefig(DOCS / "images" / "monitor-delay.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
