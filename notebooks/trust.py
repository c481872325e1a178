# %% [markdown]
# # Is it real?
#
# A circuit keeps most of a behaviour. Is that number a discovery? This notebook asks three kinds of
# questions about the circuit of [the first notebook](circuit.ipynb):
#
# 1. **Calibrations**: does the number depend on the prompts, the group of prompts, the ablation?
# 2. **Worst case**: on which prompts does the circuit fail, and what is certain about all the others?
# 3. **Rivals**: would something simpler do as well?
#
# Some answers are bad. They stay as they come out.

# %%
# %matplotlib inline
import assay

model = assay.load_model("mini")
found_on = assay.load_task("ioi", model, n=40, seed=0)
judged_on = assay.load_task("ioi", model, n=100, seed=2)
scores = assay.discover(model, found_on, "eap-ig-inputs")
circuit = scores.top(151).connected()
assay.measure(circuit, model, judged_on, "faithfulness-norm")

# %% [markdown]
# The circuit is judged on prompts that it was not found on. This matters: heads that were chosen for their
# effect on some prompts look certified on the same prompts by selection alone.
#
# ## Calibrations
#
# A *gate* is a check of a measurement. assay has [sixteen](../docs/theory/calibrations.md); here are six.
#
# | gate | asks |
# |---|---|
# | C11 | would other prompts give about the same number? |
# | C12 | do different methods agree on which heads matter? |
# | C13 | is it the same for every group of prompts (here: objects)? |
# | C36 | does it do better than as many heads picked by a simple rule? |
# | M98 | is it the same under other ablations? |
# | M3b | does each head contribute, or only all together? |

# %%
gates = ["C11", "C12", "C13", "C36", "M98", "M3b"]
report = assay.calibrate_all(
    circuit, model, judged_on, gates=gates, groups="object", progress=assay.ProgressDisplay()
)
report.plot().figure

# %% [markdown]
# How to read it:
#
# - *pass* and *fail* hold for every value inside the interval: each is meant to be wrong at most one time in
#   twenty. [How often each is wrong](../docs/theory/gate-rates.md) was counted, with the exceptions.
# - *inconclusive* means that these prompts do not decide. It is neither a pass nor a fail.
# - There is no overall score. A failed gate forbids the use that it guards, and a passed one does not make up
#   for it.
#
# The next cell says each result in words. The published rule judges the estimate alone, so it can differ.

# %%
for code in gates:
    verdict = report[code]
    more = f"; {verdict.n_needed} prompts would decide" if verdict.n_needed else ""
    print(f"{code:4} {verdict.status:12} (published rule: {verdict.published}){more}")

# %% [markdown]
# Look at the ablation first, because it decides what may be claimed. The same circuit, with the rest of the
# model ablated in three ways; the last line is from the gate, where the values come from other prompts of the
# task:

# %%
for ablation in ("resample", "mean", "zero"):
    found = assay.measure(circuit, model, judged_on, "faithfulness", ablation=ablation)
    interval = found.interval()
    print(f"{ablation:15} {found.value:6.2f}  [{interval.low:5.2f}, {interval.high:5.2f}]  {found.status}")
print(f"other prompts   {report['M98'].values['resample-donor']:6.2f}")

# %% [markdown]
# - **It says** how much the edges keep when the rest of the model carries values of another prompt of the
#   same kind. Such values have everything that prompts of this task have in common.
# - **It does not say** that the edges are sufficient by themselves. With means or zeros in the rest of the
#   model, the number is another one: compare the lines. State the ablation with every number;
#   [ablations](../docs/theory/ablations.md) has the definitions.
#
# ## The worst case
#
# An average hides exceptions. The next call runs the circuit on every combination of clean and corrupted
# prompts of a sample, and compares its whole output distribution with the model's (KL divergence, in nats).

# %%
worst = assay.worst_case(circuit, model, "ioi", n_clean=60, n_corrupted=60, progress=assay.ProgressDisplay())
worst.plot().figure

# %%
for quantile in (0.95, 0.99):
    print(worst.certificate(quantile).statement)
pair = worst.worst(1)[0]
print("\nworst pair of the sample")
print("clean:    ", pair.clean)
print("corrupted:", pair.corrupted)
print(f"the model answers{pair.model[0].token}, the circuit{pair.circuit[0].token}")

# %% [markdown]
# - **It says**: a [certificate](../docs/theory/certificates.md) bounds a percentile over *all* pairs of this
#   kind, not only over those that were run. Where the sample is too small for a bound, it says so.
# - **It does not say** that no pair is worse. A maximum over a sample is no bound.
#
# So look for a worse pair. The search climbs over the grammar of the task, one word at a time:

# %%
from assay.analyses.worst_case import search_worst

search = search_worst(circuit, model, "ioi", budget=3000, restarts=6)
hardest = search.pairs[0]
print(f"worst pair of the sample {worst.divergence.max():.3f} nats")
print(f"worst pair of the search {hardest['divergence']:.3f} nats")
print("clean:    ", hardest["clean"]["text"])
print("corrupted:", hardest["corrupted"]["text"])

# %% [markdown]
# What a search finds is a lower bound on the maximum, and no more: a longer search may find worse. The
# certificate does not exclude such a pair, because a percentile says nothing about the last share of the
# pairs. [Worst case of mini](../docs/howto/worst-pairs.md#three-circuits-of-mini) follows such pairs up.
#
# ## Rivals
#
# A *rival* is something simpler that might do as well. First, other circuits with as many edges, from other
# methods and from chance:

# %%
for method in ("eap-ig-inputs", "eap", "ifr", "random"):
    other = assay.discover(model, found_on, method).top(151).connected()
    found = assay.measure(other, model, judged_on, "faithfulness-norm")
    interval = found.interval()
    print(
        f"{method:14} {found.value:5.2f} [{interval.low:5.2f}, {interval.high:5.2f}]"
        f"  {other.n_edges:3} edges, {len(other.kept_heads()):2} heads, Jaccard {circuit.jaccard(other):.2f}"
    )

# %% [markdown]
# The counts differ because edges on no path from the input to the logits are dropped. Two things to look at.
# Does chance do it? Then the number would be trivial. Does another method keep about as much with other edges
# (a low Jaccard index)? Then this circuit is *a* circuit of the behaviour, not *the* circuit. A method with a
# low number here is not refuted: it may need more edges.
#
# Second, heads. Gate C36 compares the heads of the circuit with as many heads chosen by one simple rule:
# those whose outputs are largest.

# %%
verdict = report["C36"]
values = verdict.values
print(f"faithfulness of the circuit's heads {values['faithfulness']:.3f}")
print(f"of as many active heads             {values['baseline_faithfulness']:.3f}")
print(f"heads in both                       {values['overlap']:.0f} of {len(circuit.kept_heads())}")
print(f"verdict                             {verdict.status}")

# %% [markdown]
# Unless this gate passes, do not present the *heads* as a finding: a rule that knows nothing of the task does
# as well, as far as these prompts tell. The *edges* can still be specific; that is what the random circuits
# above are for.
#
# ## What may be written
#
# The cell below writes down what the results above allow.

# %%
passes = {code: report[code].status == "pass" for code in gates}
print("About the number:    ", "stable over prompts" if passes["C11"] else "not shown to be stable")
print("About the ablation:  ", "holds under several" if passes["M98"] else "name it")
print("About the heads:     ", "a finding" if passes["C36"] else "not shown to beat active heads")
print("About the methods:   ", "agree on the heads" if passes["C12"] else "not shown to agree on the heads")
print("About the exceptions:", "bound a percentile, not the maximum")

# %% [markdown]
# `assay calibrate` runs all sixteen gates and writes a page. [Which gate?](../docs/choose/gate.md) says which
# one guards which sentence;
# [limits](../docs/limits.md) lists what cannot be said at all.
