# %% [markdown]
# # Choose and watch an image classifier
#
# You have several trained classifiers, and new images without labels. Two questions:
#
# 1. **Before deployment**: which model should get these images?
# 2. **After deployment**: have the images changed?
#
# assay answers from how the models *compute*, and puts the usual baselines beside it. The models are twelve
# small vision transformers that come with the package. They were trained on flat drawings of six shapes.

# %%
# %matplotlib inline
import numpy as np

import assay
from assay.analyses.generalization import InspectionSettings
from assay.tasks import EvalTransform, draw_shapes

zoo = assay.Zoo.embedded()
zoo

# %%
draw_shapes("flat", 10, start=1_000_000)

# %% [markdown]
# The new images are sketches. No model was trained on them.

# %%
sketches = draw_shapes("sketch", 60, start=20_000)
sketches

# %% [markdown]
# ## Choose
#
# The [depth bias](../docs/theory/depth-bias.md) (DDB) compares how much the logits read from deep and from
# shallow layers in the circuit of a model on *these* images. It needs no labels. Neither does average
# confidence. In-distribution accuracy and ATC need labelled images of the training domain. Pick the metric
# before you see the table, or the table picks it for you. Here: the depth bias.
#
# The drawn sketches have labels. We use them only to see, afterwards, whether the order was right.

# %%
models = {key: zoo.load(key) for key in zoo.keys}
ranking = assay.rank(
    models,
    sketches,
    id_data=draw_shapes("flat", 60, start=1_000_000),
    metrics=["ddb-output", "id-accuracy", "average-confidence", "atc"],
    settings=InspectionSettings(draws=200),
)
ranking.plot().figure

# %% [markdown]
# The *regret* of a metric is the accuracy of the best model minus that of the model it picks. Compare it with
# a blind pick, the mean over all models:

# %%
accuracies = ranking.table()["accuracy"]
print(f"accuracy on sketches: {accuracies.min():.2f} to {accuracies.max():.2f}; chance is {1 / 6:.2f}\n")
for metric in ("ddb-output", "id-accuracy", "average-confidence", "atc"):
    regret = ranking.column(metric).regret
    pick = ranking.order(metric)[0]
    interval = regret.interval
    print(
        f"{metric:18} picks a model with accuracy {accuracies[pick]:.2f}; expected regret "
        f"{regret.expected:.3f} [{interval.low:.3f}, {interval.high:.3f}], blind {regret.random:.3f}"
    )

# %% [markdown]
# - **It says** how well each metric would have chosen on these sketches, with an interval over images. Where
#   the interval of the expected regret holds the blind pick, the metric is not shown to be better than a
#   blind pick.
# - **It does not say** that the same metric wins elsewhere: twelve models of one recipe and sixty images are
#   little. Small models trained from scratch need not follow the pattern that was published for the depth
#   bias. [On real images](../docs/howto/rank.md#on-real-images) no metric was reliably better than
#   in-distribution accuracy.
#
# ## Watch
#
# Deploy the model with the best accuracy in distribution. (Without labels of the target, that is the sober
# choice.) A *monitor* finds the circuit of the model on each new batch, and measures its distance, the
# *shift*, from the circuit on known images.

# %%
best = max(zoo.entries, key=lambda entry: entry.id_accuracy)
model = zoo.load(best.key)
known = draw_shapes("flat", 24 + 19 * 24, start=2_000_000)
reference = assay.discover(model, known.subset(range(24)).with_transform(EvalTransform.for_model(model)))
monitor = assay.Monitor(model, reference, alpha=0.05)
monitor.calibrate(known.subset(range(24, known.n)), batch_size=24)
print(monitor.rules.guarantee)

# %% [markdown]
# The guarantee comes from known batches that share no image with the reference or with each other. Nineteen
# of them are the least that allow a rate of one in twenty.
#
# Now new images arrive in batches: drawings as before, then sketches, then neon.

# %%
start = 3_000_000
for domain in ("flat", "flat", "flat", "sketch", "sketch", "neon", "neon"):
    batch = draw_shapes(domain, 24, start=start)
    start += 24
    reading = monitor.observe(batch)
    print(
        f"{domain:7} shift {reading.shift:.3f}  p {reading.p_value:.2f}  {'ALARM' if reading.alarm else ''}"
    )

# %%
monitor.plot().figure

# %% [markdown]
# - **It says** which batches are unlike the known ones. On batches that do not differ from the known ones, an
#   alarm is raised with at most the stated probability, one batch at a time.
# - **It does not say** that the model does worse on them. Only labels do. Here we have them:

# %%
transform = EvalTransform.for_model(model)
for domain in ("flat", "sketch", "neon"):
    images = draw_shapes(domain, 120, start=4_000_000)
    predicted = assay.run_model(model, images.with_transform(transform)).argmax(-1)
    right = (predicted == images.labels).double().mean()
    shifts = [each.shift for each in monitor.readings if each.domain == domain]
    print(f"{domain:7} accuracy {right:.2f}  mean shift {np.mean(shifts):.3f}")

# %% [markdown]
# Compare the two columns before you read a size of the shift as a size of the damage: the order of the shifts
# need not be the order of the accuracies. A quiet monitor is no proof either: a batch can differ in a way
# that the circuit does not show. [Alarms](../docs/theory/alarms.md) has the rules and what each cannot tell;
# [circuit shift](../docs/theory/circuit-shift.md) has the definition.
#
# Next: [rank](../docs/howto/rank.md) and [monitor](../docs/howto/monitor.md) your own models and folders of
# images, and [get notified](../docs/howto/alerts.md).
