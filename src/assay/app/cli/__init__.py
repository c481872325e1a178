"""The command `assay`: thin over the Python API, instant help, results on stdout, progress on stderr.

Exit codes: 0 done, 1 failed, 2 wrong usage (also unknown names and values out of range), 3 a gate or
alarm fired. Options may come from `ASSAY_*` variables or a TOML file; the command line wins over the
variables, the variables over the file.
"""

import assay.app.cli.attack
import assay.app.cli.audit
import assay.app.cli.benchmark
import assay.app.cli.calibrate
import assay.app.cli.discover
import assay.app.cli.doctor
import assay.app.cli.export
import assay.app.cli.lock
import assay.app.cli.measure
import assay.app.cli.monitor
import assay.app.cli.rank
import assay.app.cli.results
import assay.app.cli.select
import assay.app.cli.serve
import assay.app.cli.store
import assay.app.cli.sweep
import assay.app.cli.zoo  # noqa: F401 - each registers its commands
from assay.app.cli.parsing import app, main, run


__all__ = ["app", "main", "run"]
