# %% [markdown]
# # A circuit in ten minutes
#
# A trained transformer completes "Mary and John went to the store. John gave a ring to" with "Mary". Which of
# its parts do that? In this notebook you find a *circuit*: a small set of connections that keeps the
# behaviour when all others are switched off. You measure how much it keeps, draw it, save it and cite it.
#
# Everything runs on a laptop, without a network. The model, `mini`, is a small GPT-2 that comes with the
# package.

# %%
# %matplotlib inline
import assay

model = assay.load_model("mini")
model

# %% [markdown]
# ## The task
#
# The task is [indirect-object identification](../docs/theory/tasks.md) (IOI). Each example is a pair of
# prompts. The *clean* prompt has a right answer. The *corrupted* prompt has the same length, but other names:
# it does not tell what the answer of the clean one is.

# %%
task = assay.load_task("ioi", model, n=40, seed=0)
task

# %% [markdown]
# A circuit can be found only for a behaviour that the model has. So first: does the model solve the task? The
# *margin* is the logit of the right name minus the logit of the wrong one.

# %%
whole = assay.Circuit.full(model.graph)
margins = assay.CircuitRuns(model, task, whole).margins("full")
print(f"right on {(margins > 0).mean():.0%} of {task.n} prompts; mean margin {margins.mean():.1f} logits")

# %% [markdown]
# This says that the model prefers the right name on prompts of this kind. It does not say how, and it says
# nothing about other sentences.
#
# ## Score every edge
#
# assay sees the model as a [graph](../docs/theory/graph.md). Heads and MLPs write into the residual stream,
# later ones read from it, and an *edge* joins a writer to a reader. [EAP-IG](../docs/theory/eap-ig-inputs.md)
# estimates for each edge how many logits of the margin are lost if that edge carries what it carries on the
# corrupted prompt.

# %%
scores = assay.discover(model, task, "eap-ig-inputs")
scores.plot().figure

# %% [markdown]
# The picture sums the scores between layers; `scores.to_frame()` has every edge. A positive score means that
# the margin needs the edge, a negative one that the edge works against it. Scores are estimates, edge by
# edge: two edges that back each other up can both score low. The next cell tells how well the integral behind
# the estimate was resolved. A few per cent is no concern.

# %%
print(f"completeness gap {scores.details['completeness_gap']:.2%}")

# %% [markdown]
# ## How many edges are needed?
#
# Keep the strongest edges and ablate all the others: each ablated edge carries the value of the corrupted
# prompt (`resample`). *Normalised faithfulness* is 0 for the empty circuit and 1 for the whole model. The
# curve shows it for circuits of many sizes. It is measured on new prompts, drawn with another seed, because
# numbers on the prompts of discovery are too good.

# %%
curve = assay.faithfulness_curve(scores, model, assay.load_task("ioi", model, n=40, seed=1))
curve.plot().figure

# %% [markdown]
# Take the smallest circuit on the curve whose interval lies above 0.8, the published threshold. The limit is
# a convention, not a law of nature; name it when you report the size.

# %%
sizes = curve.to_frame()
enough = sizes[sizes["low"] > 0.8].iloc[0]
circuit = scores.top(int(enough["n_edges"])).connected()
circuit.plot().figure

# %% [markdown]
# `connected` drops edges that are on no path from the input to the logits. The picture shows which layers and
# heads are left. It does not show what a head computes.
#
# ## How faithful is it?
#
# The size was chosen on the second set of prompts, so measure on a third.

# %%
fresh = assay.load_task("ioi", model, n=100, seed=2)
faithfulness = assay.measure(circuit, model, fresh, "faithfulness-norm", random_circuits=10)
faithfulness

# %%
interval = faithfulness.interval()
random = faithfulness.baseline["random"]["value"]
print(f"normalised faithfulness {faithfulness.value:.3f} [{interval.low:.3f}, {interval.high:.3f}] (95 %)")
print(f"verdict against the published threshold: {faithfulness.status}")
print(f"random circuits of the same size: {random:.3f}")

# %% [markdown]
# - **It says** how much of the margin these edges keep on average, on prompts of this kind, when all other
#   edges carry the corrupted prompt. The interval is over prompts. Random circuits of the same size show that
#   the number is not trivial.
# - **It does not say** that the circuit would do as well under [another
#   ablation](../docs/theory/ablations.md), that no other circuit is as good, or that it never fails. The
#   notebook [Is it real?](trust.ipynb) asks these questions of the same circuit.
#
# The plain ratio keeps what the empty circuit already gives, so the two numbers can differ. Report which one
# you mean.

# %%
print(f"plain faithfulness {assay.measure(circuit, model, fresh, 'faithfulness').value:.3f}")

# %% [markdown]
# ## Which heads?
#
# The heads of the circuit, and the effect of ablating each of them alone:

# %%
print(len(circuit.kept_heads()), "of", model.n_layers * model.n_heads, "heads have an edge in the circuit")
effects = assay.discover_heads(model, fresh, "drop-effect")
effects.plot().figure

# %% [markdown]
# A head with an effect near 0 is not proven useless: another head may take over when it is gone.
#
# ## Save, load, cite
#
# The file holds the edges and how they were found. Loading checks that it belongs to this graph and was not
# changed.

# %%
circuit.save("ioi.safetensors")
again = assay.load_circuit("ioi.safetensors", graph=model.graph)
assert again == circuit
print("found by", again.provenance["method"], "on", again.provenance["task"]["name"])

# %% [markdown]
# Every number carries the record of how it was made, and the hash of that record is its id. Equal ids mean
# the same computation: [cite](../docs/howto/read-a-report.md) the id, the version and the paper of the
# method.

# %%
print("id of the measurement:", faithfulness.id_hash)
print("hash of the circuit:  ", circuit.hash)
print("version of assay:     ", assay.__version__)
print("made with:", {key: faithfulness.provenance[key] for key in ("ablation", "objective", "seed", "graph")})

# %% [markdown]
# Next: [Is it real?](trust.ipynb), or [your own model and task](own_model.ipynb). `assay audit --model mini
# --task ioi` does all of this in one command and writes a report.
