"""The command line inside the test's process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from assay.app.cli import run


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, stdout first."""
        return self.stdout + self.stderr


def invoke(*arguments: object) -> Outcome:
    """Run `assay` with arguments; an exception that would end the process passes through."""
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        code = run([str(each) for each in arguments])
    return Outcome(code, stdout.getvalue(), stderr.getvalue())
