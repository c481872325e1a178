"""The command `assay`: thin over the Python API, instant help, results on stdout, progress on stderr.

Exit codes: 0 done, 1 failed, 2 wrong usage (also unknown names and values out of range), 3 a gate or
alarm fired. Options may come from `ASSAY_*` variables or a TOML file; the command line wins over the
variables, the variables over the file.
"""

import os

import assay.cli.attack
import assay.cli.benchmark
import assay.cli.calibrate
import assay.cli.claim
import assay.cli.finetune
import assay.cli.monitor
import assay.cli.rank
import assay.cli.repair
import assay.cli.report
import assay.cli.results
import assay.cli.select
import assay.cli.serve
import assay.cli.store
import assay.cli.sweep
import assay.cli.zoo  # noqa: F401 - each registers its commands
from assay.cli.commands import app


__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command."""
    # One kind of progress at a time: transformers draws a bar even for weights on disk.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    app()
