"""The command `assay`: thin over the Python API, instant help, results on stdout, progress on stderr.

Exit codes: 0 done, 1 failed, 2 wrong usage (also unknown names and values out of range), 3 a gate or
alarm fired. Options may come from `ASSAY_*` variables or a TOML file; the command line wins over the
variables, the variables over the file.
"""

import os

import assay.app.cli.attack
import assay.app.cli.benchmark
import assay.app.cli.calibrate
import assay.app.cli.claim
import assay.app.cli.finetune
import assay.app.cli.monitor
import assay.app.cli.rank
import assay.app.cli.repair
import assay.app.cli.report
import assay.app.cli.results
import assay.app.cli.select
import assay.app.cli.serve
import assay.app.cli.store
import assay.app.cli.sweep
import assay.app.cli.zoo  # noqa: F401 - each registers its commands
from assay.app.cli.commands import app


__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command."""
    # One kind of progress at a time: transformers draws a bar even for weights on disk.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    app()
