"""Cores and memory that may be used, in control groups that are files of the test."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from assay.core import machine
from assay.core.machine import free_memory, usable_cores


GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 cores and 100 GiB whose process is in the group `/pod/box`."""
    (tmp_path / "own").write_text("0::/pod/box\n")
    (tmp_path / "groups" / "pod" / "box").mkdir(parents=True)
    monkeypatch.setattr(machine, "_OWN", tmp_path / "own")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    memory = psutil.virtual_memory()._replace(available=100 * GIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    return tmp_path / "groups"


def test_without_limits_the_machine_counts(groups: Path) -> None:
    assert usable_cores() == 64
    assert free_memory() == 100 * GIB
    (groups / "cpu.max").write_text("max 100000\n")
    (groups / "memory.max").write_text("max\n")
    (groups / "memory.current").write_text("5\n")
    assert usable_cores() == 64
    assert free_memory() == 100 * GIB


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1), ("6400000", 64)]
)
def test_a_quota_of_cores_holds(groups: Path, quota: str, cores: int) -> None:
    (groups / "pod" / "box" / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == cores


def test_the_strictest_of_the_groups_around_holds(groups: Path) -> None:
    (groups / "pod" / "box" / "cpu.max").write_text("max 100000\n")
    (groups / "pod" / "cpu.max").write_text("300000 100000\n")
    (groups / "cpu.max").write_text("800000 100000\n")
    assert usable_cores() == 3
    for group, limit in ((groups, 8), (groups / "pod", 4), (groups / "pod" / "box", 6)):
        (group / "memory.max").write_text(f"{limit * GIB}\n")
        (group / "memory.current").write_text(f"{GIB}\n")
    assert free_memory() == 3 * GIB


def test_cached_files_are_memory_that_can_be_had(groups: Path) -> None:
    (groups / "memory.max").write_text(f"{4 * GIB}\n")
    (groups / "memory.current").write_text(f"{3 * GIB}\n")
    (groups / "memory.stat").write_text(f"anon 7\ninactive_file {2 * GIB}\nactive_file 9\n")
    assert free_memory() == 3 * GIB
    (groups / "memory.current").write_text(f"{9 * GIB}\n")
    assert free_memory() == 0


def test_what_only_unix_has_is_not_imported() -> None:
    code = (
        "import os, sys\n"
        "sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'termios'))\n"
        "del os.pread\n"
        "import assay.app.cli, assay.pipeline.monitoring, assay.app.watch, assay.app.site.web\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
