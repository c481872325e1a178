"""Choose an image classifier for images without labels, then monitor it on batches of them.

Uses five of the small models of the package and drawn shapes, so it needs no network and no downloads.

python examples/images.py
"""

import assay
from assay.analyses.generalization import InspectionSettings
from assay.tasks import EvalTransform, draw_shapes


def main() -> None:
    zoo = assay.Zoo.embedded()
    models = {key: zoo.load(key) for key in zoo.keys[:5]}

    # Before deployment: sketches; their labels only check the order.
    ranking = assay.rank(
        models,
        draw_shapes("sketch", 40, start=20_000),
        id_data=draw_shapes("flat", 40, start=1_000_000),
        metrics=["ddb-output", "id-accuracy", "average-confidence", "atc"],
        settings=InspectionSettings(draws=200),
    )
    for metric in ("ddb-output", "id-accuracy", "average-confidence", "atc"):
        print(f"{metric:20s} picks {ranking.order(metric)[0]}")

    # After deployment: the circuit on known images, its variation between batches of known images, and its
    # shift on sketches.
    model = models[ranking.order("id-accuracy")[0]]
    transform = EvalTransform.for_model(model)
    known = draw_shapes("flat", 480, start=1_000_000)
    reference = assay.discover(model, known.subset(range(24)).with_transform(transform))
    monitor = assay.Monitor(model, reference)
    monitor.calibrate(known.subset(range(24, 480)), batch_size=24)
    for domain, start in (("flat", 3_000_000), ("sketch", 3_000_000)):
        reading = monitor.observe(draw_shapes(domain, 24, start=start))
        print(f"{domain:8s} shift {reading.shift:.3f}  p {reading.p_value:.2f}  alarm {reading.alarm}")
    print(monitor.rules.guarantee)


if __name__ == "__main__":
    main()
