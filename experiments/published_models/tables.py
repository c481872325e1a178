"""CSV files and figures of docs/published-models.md, from what run.py measured.

    python experiments/published_models/tables.py WORK [--images docs/images]

Intervals are percentiles of 2,000 paired resamples of the prompts (numpy seed 0): rankings of one task share
them, so that a difference of two rankings is taken within each resample.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import matplotlib as mpl


mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from run import DEFAULT, PLACES, SIZES
from scipy.stats import spearmanr


HERE = Path(__file__).parent
DRAWS = 2000
NAMES = {"smollm2-135m": "SmolLM2 135M", "gemma3-270m": "Gemma 3 270M"}
STRONGEST = {"smollm2-135m": 2048, "gemma3-270m": 256}  # edges of each ranking that agreement compares
SHOWN_HEADS = 15  # by each effect
LOOKING_HEADS = 3  # at each place
NAMED_HEADS = 7  # of a figure
STYLES = {
    (DEFAULT, "own", "size"): ("EAP-IG, by size", "C0", "-"),
    (DEFAULT, "own", "signed"): ("EAP-IG, signed", "C0", ":"),
    (DEFAULT, "kl", "size"): ("EAP-IG on KL, by size", "C2", "-"),
    ("relp", "own", "size"): ("RelP, by size", "C1", "-"),
    ("relp", "own", "signed"): ("RelP, signed", "C1", ":"),
    ("ugs", "kl", "size"): ("learned mask (UGS), by probability", "C3", "-"),
    ("random", "own", "size"): ("random", "0.6", "-"),
}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def ends(draws: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Both ends of 95 % intervals from `[draws, sizes]`."""
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    return {f"{name}_low": low, f"{name}_high": high}


def task_curves(folder: Path) -> Iterator[pd.DataFrame]:
    """Rows of one model and task: a frame for each ranking."""
    reference = arrays(folder / "reference.npz")
    once = np.isfinite(reference["empty_kl"])  # a prompt that was drawn again has no number of its own
    full, empty = reference["full"][once], reference["empty_margin"][once]
    weights = np.random.default_rng(0).multinomial(full.size, np.full(full.size, 1 / full.size), size=DRAWS)
    everyone = np.ones((1, full.size))

    def statistics(table: Mapping[str, np.ndarray], w: np.ndarray) -> dict[str, np.ndarray]:
        """Each number at each size, `[draws, sizes]`, from weights of prompts `[draws, prompts]`."""
        margin, kl, top1, top5 = (w @ table[key][:, once].T for key in ("margin", "kl", "top1", "top5"))
        whole, nothing, total = w @ full, w @ empty, w.sum(1)
        return {
            "faithfulness": margin / whole[:, None],
            "normalised": (margin - nothing[:, None]) / (whole - nothing)[:, None],
            "kl": kl / total[:, None],
            "top1": top1 / total[:, None],
            "top5": top5 / total[:, None],
        }

    by_default = statistics(arrays(folder / f"curve+{DEFAULT}+own+size.npz"), weights)["normalised"]
    for path in sorted(folder.glob("curve+*.npz")):
        _, method, objective, ranking = path.stem.split("+")
        table = arrays(path)
        values, drawn = statistics(table, everyone), statistics(table, weights)
        columns = {"asked": table["sizes"], "edges": table["edges"]}
        for name, value in values.items():
            columns[name] = value[0]
            if name in ("faithfulness", "normalised", "kl"):
                columns |= ends(drawn[name], name)
        columns |= ends(drawn["normalised"] - by_default, "difference")
        frame = pd.DataFrame(columns)
        yield frame.assign(method=method, objective=objective, ranking=ranking)


def curves(work: Path) -> pd.DataFrame:
    """All curves of both models."""
    frames = []
    for model in SIZES:
        for folder in sorted((work / model).iterdir()):
            if (folder / f"curve+{DEFAULT}+own+size.npz").exists():
                frames += [each.assign(model=model, task=folder.name) for each in task_curves(folder)]
    keys = ["model", "task", "method", "objective", "ranking"]
    table = pd.concat(frames)
    return table[[*keys, *(name for name in table if name not in keys)]]


def references(work: Path) -> pd.DataFrame:
    """Margin of the model, and margin and KL of the empty circuit, for each task."""
    rows = []
    for model in SIZES:
        for path in sorted((work / model).glob("*/reference.npz")):
            margins = arrays(path)
            once = np.isfinite(margins["empty_kl"])  # a prompt that was drawn again has no number of its own
            margins = {name: values[once] for name, values in margins.items() if values.size == once.size}
            rows.append(
                {
                    "model": model,
                    "task": path.parent.name,
                    "n": margins["full"].size,
                    "right": (margins["full"] > 0).mean(),
                    "margin": margins["full"].mean(),
                    "empty_margin": margins["empty_margin"].mean(),
                    "empty_kl": margins["empty_kl"].mean(),
                }
            )
    return pd.DataFrame(rows)


def agreement(work: Path) -> pd.DataFrame:
    """How alike two methods rank the edges of a task, and two tasks those of a model and its heads."""
    rows = []
    for model in SIZES:
        rankings = {
            (path.parent.name, *path.stem.split("+")[1:]): arrays(path)["values"].ravel()
            for path in sorted((work / model).glob("*/scores+*.npz"))
        }
        for (one, first), (other, second) in combinations(rankings.items(), 2):
            by_default = one[1:] == other[1:] == (DEFAULT, "own")
            # Largest shares of routes into different targets have no common scale.
            if {"random", "ifr"} & {one[1], other[1]} or (one[0] != other[0] and not by_default):
                continue
            sets = [np.argsort(-abs(values))[: STRONGEST[model]] for values in (first, second)]
            jaccard = np.intersect1d(*sets).size / np.union1d(*sets).size
            rows.append(
                {
                    "model": model,
                    "first": " ".join(one),
                    "second": " ".join(other),
                    "jaccard": jaccard,
                    "spearman": spearmanr(abs(first), abs(second)).statistic,
                }
            )
    return pd.DataFrame(rows)


def heads(work: Path) -> pd.DataFrame:
    """The heads of largest effect, direct or when dropped, and those that look at a place most."""
    rows = []
    for model in SIZES:
        scores = arrays(work / model / "ioi" / "heads.npz")
        looks = scores.pop("attention")
        names = arrays(work / model / "ioi" / "names.npz")
        orders = [(abs(scores[method]), SHOWN_HEADS) for method in ("dla", "drop-effect")]
        orders += [(pattern, LOOKING_HEADS) for pattern in looks]
        strongest = {int(place) for values, n in orders for place in np.argsort(-values.ravel())[:n]}
        for place in strongest:
            layer, head = np.unravel_index(place, scores["dla"].shape)
            row = {"model": model, "layer": layer, "head": head}
            row |= {method: values[layer, head] for method, values in scores.items()}
            row |= {f"dla on {name}": values[layer, head] for name, values in names.items()}
            rows.append(row | {name: looks[at, layer, head] for at, name in enumerate(PLACES)})
    table = pd.DataFrame(rows)
    return table.sort_values(["model", "dla"], ascending=[True, False])


def documents(work: Path, name: str) -> Iterator[tuple[str, dict]]:
    for model in SIZES:
        path = work / model / "ioi" / name
        if path.exists():
            yield model, json.loads(path.read_text())


def gates(work: Path) -> pd.DataFrame:
    """Verdict of every gate on the reported circuits, with the number that it judges."""
    rows = []
    for model, document in documents(work, "gates.json"):
        for gate in document["gates"]:
            verdict = gate["verdict"]
            judged = (verdict.get("judged") or {}).get("value")
            names = ("status", "published", "reason")
            rows.append(
                {"model": model, "gate": gate["code"], "key": gate["key"], "judged": judged}
                | {name: verdict.get(name) for name in names}
            )
    return pd.DataFrame(rows)


def worst(work: Path) -> pd.DataFrame:
    """Divergence of the reported circuits over all pairs, a certified percentile, and the worst pair."""
    rows = []
    for model, document in documents(work, "worst.json"):
        spread, first = document["summary"]["absolute"], document["worst"][0]
        rows.append(
            {
                "model": model,
                "pairs": document["n_pairs"],
                **{name: spread[name] for name in ("mean", "p50", "p95", "p99", "max")},
                "empty_mean": document["anchor"]["absolute"]["mean"],
                "bound_90": document["certificate"]["bound"],
                "confidence": document["certificate"]["confidence"],
                "answer_differs": document["summary"]["argmax_differs"],
                "clean": first["clean"]["text"],
                "corrupted": first["corrupted"]["text"],
                "model_says": first["top"]["model"][0]["token"],
                "circuit_says": first["top"]["circuit"][0]["token"],
            }
        )
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------------------- figures


def draw_curves(table: pd.DataFrame, empty: pd.DataFrame, task: str, path: Path) -> None:
    """Normalised faithfulness and KL by size, a column for each model."""
    figure, axes = plt.subplots(2, len(SIZES), figsize=(9, 5.4), sharex="col", layout="constrained")
    for column, model in enumerate(SIZES):
        here = table[(table.model == model) & (table.task == task)]
        for (method, objective, ranking), (name, colour, line) in STYLES.items():
            one = here[(here.method == method) & (here.objective == objective) & (here.ranking == ranking)]
            for row, number in enumerate(("normalised", "kl")):
                if len(one):
                    axes[row, column].plot(one.asked, one[number], line, color=colour, label=name)
                    low, high = one[f"{number}_low"], one[f"{number}_high"]
                    axes[row, column].fill_between(one.asked, low, high, color=colour, alpha=0.12, lw=0)
        nothing = empty[(empty.model == model) & (empty.task == task)].empty_kl.item()
        axes[1, column].axhline(nothing, color="0.4", lw=0.8, ls="--")
        axes[1, column].annotate("empty circuit", (here.asked.min(), nothing), fontsize=8, va="bottom")
        axes[0, column].axhline(1, color="0.4", lw=0.8, ls="--")
        axes[0, column].set(xscale="log", title=NAMES[model], ylim=(-0.6, 3.4))
        axes[1, column].set(xlabel="strongest edges asked for", ylim=(0, None))
    axes[0, 0].set_ylabel("normalised faithfulness")
    axes[1, 0].set_ylabel("KL(model, circuit), nats")
    axes[0, 0].legend(fontsize=8, frameon=False)
    save(figure, path)


def draw_heads(table: pd.DataFrame, path: Path) -> None:
    """Direct effect against attention from the last token to each name."""
    figure, axes = plt.subplots(1, len(SIZES), figsize=(9, 3.6), layout="constrained")
    for axis, model in zip(axes, SIZES, strict=True):
        here = table[table.model == model]
        for place, colour in (("end to IO", "C0"), ("end to S2", "C3")):
            axis.scatter(here[place], here.dla, color=colour, s=18, label=place.replace("end", "last token"))
        for _, head in here[here.dla.abs() >= here.dla.abs().nlargest(NAMED_HEADS).min()].iterrows():
            ends = [head["end to IO"], head["end to S2"]]
            axis.plot(ends, [head.dla] * 2, color="0.6", lw=0.8, zorder=0)
            name = f"a{head.layer:.0f}.h{head['head']:.0f}"
            axis.annotate(
                name, (max(ends), head.dla), (5, 0), textcoords="offset points", fontsize=8, va="center"
            )
        axis.axhline(0, color="0.4", lw=0.8)
        axis.set(title=NAMES[model], xlabel="attention")
    axes[0].set_ylabel("direct effect, logits")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, path)


def draw_worst(work: Path, table: pd.DataFrame, path: Path) -> None:
    """Divergence over all pairs, of the circuit and of the empty one."""
    figure, axes = plt.subplots(1, len(SIZES), figsize=(9, 2.8), sharey=True, layout="constrained")
    for axis, (model, document), row in zip(
        axes, documents(work, "worst.json"), table.itertuples(), strict=True
    ):
        bins = document["histogram"]
        for name, colour, label in (("anchor_counts", "0.75", "empty circuit"), ("counts", "C0", "circuit")):
            axis.stairs(bins[name], bins["edges"], fill=True, color=colour, label=label)
        axis.axvline(row.bound_90, color="C3", lw=1, ls="--", label="certified 90th percentile")
        axis.plot([row.max], [1], "v", color="C3", ms=5, label="worst pair")
        axis.set(yscale="log", title=NAMES[model], xlabel="KL(model, circuit) of a pair, nats")
    axes[0].set_ylabel("pairs")
    axes[0].legend(fontsize=8, frameon=False)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=Path, default=HERE.parents[1] / "docs" / "images")
    options = parser.parse_args()
    tables = {
        "curves": curves(options.work),
        "references": references(options.work),
        "agreement": agreement(options.work),
        "heads": heads(options.work),
        "gates": gates(options.work),
        "worst": worst(options.work),
    }
    for name, table in tables.items():
        table.to_csv(HERE / f"{name}.csv", index=False, float_format="%.4g")
        print(HERE / f"{name}.csv", len(table))
    plt.rcParams.update({"svg.hashsalt": "published", "svg.fonttype": "none", "font.size": 9})
    for task in ("ioi", "greater-than"):
        path = options.images / f"published-models-{task}.svg"
        draw_curves(tables["curves"], tables["references"], task, path)
    draw_heads(tables["heads"], options.images / "published-models-heads.svg")
    draw_worst(options.work, tables["worst"], options.images / "published-models-worst.svg")


if __name__ == "__main__":
    main()
