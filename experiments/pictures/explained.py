"""Pictures that draw a formula or a rule, without a model."""

from matplotlib.figure import Figure
from texts import panels

from assay import Interval
from assay.core.measurement import Rule
from assay.page.draw import INK, MUTED, OPPOSES, RULE, SUPPORTS


def verdicts() -> Figure:
    """What a rule with two limits says of five values with their intervals."""
    rule = Rule(pass_at=0.8, fail_at=0.5)
    cases = [(0.90, 0.05), (0.84, 0.08), (0.65, 0.10), (0.62, 0.20), (0.40, 0.06)]
    figure, axes = panels(1, 1, (6.5, 2.8))
    axis = axes[0, 0]
    for row, (value, half) in enumerate(cases):
        found = Interval(low=value - half, high=value + half, level=0.9, method="percentile")
        status = rule.rigorous(found)
        colour = {"pass": SUPPORTS, "fail": OPPOSES}.get(status, MUTED)
        axis.plot([found.low, found.high], [row, row], color=colour, linewidth=2)
        axis.plot(value, row, "o", color=colour)
        axis.text(1.02, row, f"published: {rule.published(value)}", va="center", fontsize=8, color=INK)
        axis.text(1.27, row, f"status: {status}", va="center", fontsize=8, color=INK)
    for limit, name in ((rule.pass_at, "passes above"), (0.5, "fails below")):
        axis.axvline(limit, color=RULE, linewidth=1, zorder=0)
        axis.text(limit, -0.75, f"{name} {limit}", ha="center", fontsize=8, color=MUTED)
    axis.set_xlim(0.3, 1.55)
    axis.set_xticks([0.4, 0.6, 0.8, 1.0])
    axis.set_yticks([])
    axis.invert_yaxis()
    axis.set_xlabel("value, with its two-sided 90 % interval", fontsize=9, color=MUTED)
    return figure


PICTURES = {"verdicts.svg": verdicts}
