# %% [markdown]
# # Your own model and task
#
# This notebook takes a model directory and a file of prompts, as you would have them, and goes from there to
# a measured circuit. At the end it shows what errors look like, because you will meet some.
#
# ## A model directory
#
# `assay.load_model` reads what `save_pretrained` of transformers writes: `config.json`, safetensors and a
# tokenizer. So that the notebook runs anywhere, the next cell writes such a directory: a small Llama with the
# tokenizer of `mini`. Its weights are random. Replace `my-model` by your own directory, or by a hub id. [Your
# own model](../docs/howto/own-model.md) lists the families that are supported.

# %%
# %matplotlib inline
import json
from pathlib import Path

import torch

import assay

tokenizer = assay.load_model("mini").tokenizer

from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(tokenizer),
    max_position_embeddings=64,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=tokenizer.eos_token_id,
    eos_token_id=tokenizer.eos_token_id,
)
network = LlamaForCausalLM(config)

# %% [markdown]
# ## A task
#
# A task is a file with one JSON object per line: a clean prompt, a corrupted one with as many tokens, the
# right next token and, if you want logit differences, a wrong one. What differs between the two prompts is
# what will be explained. Here a sentence ends with its second word: the model has to repeat it.

# %%
places = ["garden", "office", "school", "station", "store", "house"]
objects = ["ring", "bone", "computer", "necklace"]


def sentence(place: str, thing: str) -> str:
    return f"Then, the {place} and the {thing} and the"


lines = [
    {
        "clean": sentence(place, thing),
        "corrupted": sentence(other, thing),
        "answers": [f" {place}"],
        "wrong": [f" {other}"],
        "thing": thing,
    }
    for place in places
    for other in places
    for thing in objects
    if place != other
]
Path("repeat.jsonl").write_text("\n".join(map(json.dumps, lines)))
print(len(lines), "pairs; the first:", lines[0])

# %% [markdown]
# ## Train it a little
#
# With random weights there is no behaviour to explain. Some hundred steps on the clean sentences are enough
# for this toy. With your own model you leave this cell out.

# %%
ids = torch.tensor([tokenizer.encode(line["clean"] + line["answers"][0]) for line in lines])
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
for _ in range(150):
    batch = ids[torch.randint(len(ids), (32,))]
    loss = torch.nn.functional.cross_entropy(network(batch).logits[:, -2], batch[:, -1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f} nats")

# %%
from transformers.utils import logging

logging.disable_progress_bar()
network.save_pretrained("my-model")
tokenizer.save_pretrained("my-model")
print(sorted(path.name for path in Path("my-model").iterdir()))

# %% [markdown]
# ## Load, and look before you measure

# %%
model = assay.load_model("my-model")
model

# %%
task = assay.load_task("repeat.jsonl", model)
task

# %% [markdown]
# Loading ran the model once and compared its norms, projections, heads and logits with values computed from
# the weights, so the graph describes this model. Now the question that comes before all others: does the
# model do the task?

# %%
margins = assay.CircuitRuns(model, task, assay.Circuit.full(model.graph)).margins("full")
print(f"right on {(margins > 0).mean():.0%} of {task.n} prompts; mean margin {margins.mean():.1f} logits")

# %% [markdown]
# These are the sentences of the training, so this says nothing about how the model generalises. It says that
# there is a behaviour to explain.
#
# ## Discover on one half, measure on the other

# %%
discovery, held_out = task.split(0.5, seed=0)
scores = assay.discover(model, discovery, "eap-ig-inputs")
curve = assay.faithfulness_curve(scores, model, held_out)
curve.plot().figure

# %%
sizes = curve.to_frame()
circuit = scores.top(int(sizes[sizes["low"] > 0.8].iloc[0]["n_edges"])).connected()
circuit.plot().figure

# %%
found = assay.measure(circuit, model, held_out, "faithfulness-norm", random_circuits=10)
interval = found.interval()
print(f"normalised faithfulness {found.value:.2f}, 95 % interval [{interval.low:.2f}, {interval.high:.2f}]")
print(f"random circuits of that size {found.baseline['random']['value']:.2f}; verdict {found.status}")

# %% [markdown]
# - **It says** how much of the margin the circuit keeps on the half that it was not found on, under
#   `resample`.
# - **It does not say** more: the size was chosen on the same half, which makes the number slightly too good,
#   the pairs of this small file share their words, and the model is a toy. Prompts that share words are not
#   independent, so take the interval as too narrow.
#
# ## A model that does not solve the task
#
# A model with random weights gives numbers as well. assay warns:

# %%
torch.manual_seed(1)
untrained = assay.load_model(LlamaForCausalLM(config).eval(), tokenizer=tokenizer)
anything = assay.discover(untrained, discovery, "eap-ig-inputs").top(circuit.n_edges).connected()
nothing = assay.measure(anything, untrained, held_out, "faithfulness-norm")
print(f"value {nothing.value:.2f}, verdict {nothing.status}, warnings {nothing.warnings}")

# %% [markdown]
# The verdict judges the ratio, whatever it is a ratio of. So read the warnings first: with `task_not_solved`
# or `unstable_denominator` there is no behaviour behind the number. Do not report it.
#
# ## What an error looks like
#
# Errors say what came, what was expected and what to do. Here are four that people meet.


# %%
def message(call) -> None:
    """Prints the error of a call."""
    try:
        call()
    except assay.AssayError as error:
        print(f"{type(error).__name__}: {error}\n")


from transformers import BertConfig, BertLMHeadModel

bert = BertLMHeadModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, is_decoder=True))
message(lambda: assay.load_model(bert))
message(lambda: assay.discover(model, task, "eap-ig-input"))
message(lambda: assay.load_circuit(circuit.save("mine.safetensors"), graph=assay.load_model("mini").graph))

broken = [{**lines[0], "corrupted": "Then, the garden and the"}]
Path("broken.jsonl").write_text("\n".join(map(json.dumps, broken)))
message(lambda: assay.load_task("broken.jsonl", model))

# %% [markdown]
# Next: [your own task](../docs/howto/own-task.md) with answers of several tokens and several read positions,
# [guides to real models](../docs/guides/gpt2-ioi.md), and [Is it
# real?](trust.ipynb) for what to ask of the circuit.
