"""What a monitor starts from, and how many images that takes."""

from dataclasses import dataclass
from pathlib import Path

from assay.analyses.generalization.alarms import batches_for
from assay.core.errors import InputError
from assay.tasks import is_shapes, is_table


METHOD, STEPS, QUADRATURE = "eap-ig-inputs", 5, "midpoint"
USUAL_BATCHES = 39  # known ones drawn from `shapes:`: what two tests at half of alpha 0.05 take
LEAST_BATCHES = 4  # of a reference, where images suffice
USUAL_REFERENCE = 1024  # images of a reference, unless calibration needs them


@dataclass(frozen=True, kw_only=True)
class MonitorPlan:
    """What a monitor starts from.

    Attributes:
        reference: File of edge scores, folder of images, or `shapes:DOMAIN`.
        known: Source of further images in distribution. Default: those of the reference's that
            the reference circuit does not use.
        window: Images of a batch.
        reference_n: Those of the reference circuit if it is to be found; whole windows are used. None:
            1,024 or four windows, or all that calibration leaves.
        known_batches: Batches to calibrate on; 0: none; None: all available.
        threshold: Shift above which to raise the alarm.
        target: Performance below which to raise it: the threshold is then read off 39 corrupted domains.
        rule, alpha, distance: As in `Monitor`.
        steps: Of the reference circuit, by `eap-ig-inputs` and the midpoint rule; None: as of a file's
            circuit, else 5.
        seed: Root seed of all random draws.
        skip_bad: Pass over image files that cannot be read.
    """

    reference: str
    known: str | None = None
    window: int = 64
    reference_n: int | None = None
    known_batches: int | None = None
    threshold: float | None = None
    target: float | None = None
    rule: str | None = None
    alpha: float = 0.05
    distance: str = "spearman"
    steps: int | str | None = None
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and self.target is not None:
            raise InputError(
                "threshold and target exclude each other, because a target determines a threshold; give one"
            )
        if self.target is not None and not 0 < self.target <= 1:
            raise InputError(f"target is {self.target}; expected a performance above 0 and at most 1")
        if self.window < 2:
            raise InputError(f"window is {self.window}; a batch needs at least 2 images")
        if self.reference_n is not None and self.reference_n < self.window:
            raise InputError(
                f"reference_n is {self.reference_n}, less than the window of {self.window}; the reference "
                "needs the images of at least one batch"
            )
        if self.reference_n is not None and self.given:
            raise InputError(
                f"reference_n has no effect on the circuit of {self.reference}, which is a file; remove it, "
                "or give the images of the reference"
            )

    @property
    def given(self) -> bool:
        """Whether the reference circuit is a file."""
        source = self.reference
        return not (is_shapes(source) or is_table(source) or Path(source).is_dir())

    @property
    def n_drawn(self) -> int:
        """Known images to draw from a `shapes:` source."""
        batches = self.known_batches
        if batches is None:
            batches = max(USUAL_BATCHES, batches_for(self.alpha / 2))
        return self.window * (max(1, self.reference_batches) + max(batches, 1))

    @property
    def reference_batches(self) -> int:
        """Batches of the reference, at most; 0 for a file."""
        if self.given:
            return 0
        if self.reference_n is None:
            return max(LEAST_BATCHES, USUAL_REFERENCE // self.window)
        return self.reference_n // self.window

    def reference_size(self, n: int) -> int:
        """Images of the reference circuit, whole windows, when so many are at hand.

        Raises:
            InputError: For fewer than a window, or than were asked for.
        """
        wanted = self.reference_n or self.window
        if n < wanted:
            raise InputError(
                f"{self.reference} holds {n} images, but the reference circuit needs {wanted}; give more "
                f"images or a smaller {'window' if self.reference_n is None else 'reference'}"
            )
        left = n
        if self.reference_n is None and self.known is None and self.known_batches != 0:
            left -= self.window * (self.known_batches or batches_for(self.alpha / 2))
        return self.window * max(1, min(self.reference_batches, left // self.window))
