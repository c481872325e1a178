"""Containers and services: options and files that they name exist."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.app.cli.parsing import app


REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DEPLOY = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def parsed(*arguments: str) -> Any:
    """The settings of a command line."""
    _, bound, _ = app.parse_args(list(arguments), print_error=False, exit_on_error=False)
    return next(iter(bound.arguments.values()))


def test_the_commands_of_the_services_are_commands() -> None:
    commands = {
        name: shlex.split(re.sub(r"^(\w+=\$\$\(.*?\)\s+)+exec assay", "", service["command"][0]))
        for name, service in COMPOSE["services"].items()
        if service.get("image") == "assay"
    }
    audit, site = parsed(*commands["first-result"]), parsed(*commands["site"])
    assert audit.store == site.store
    assert audit.store.startswith("postgresql+psycopg://assay@database/assay?")
    assert COMPOSE["services"]["site"]["ports"] == [f"127.0.0.1:{site.port}:{site.port}"]


def test_every_file_that_is_mounted_exists() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), name
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        assert set(service.get("depends_on", ())) <= COMPOSE["services"].keys()
    build = COMPOSE["x-assay"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_image_installs_extras_and_copies_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(EXTRAS)
    for source in re.findall(r"^COPY ([^-]\S*) ", text, re.MULTILINE):
        assert (REPOSITORY / source).exists()
    (torch,) = re.findall(r"^TORCH := (\S+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert f"ARG TORCH={torch}\n" in text


def test_the_unit_is_one_and_its_command_is_a_command(tmp_path: Path) -> None:
    text = (DEPLOY / "assay-monitor.service").read_text()
    program, *arguments = shlex.split(re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)[0])
    place = arguments.index("--config")  # the file of options lies elsewhere
    assert parsed(*arguments[:place], *arguments[place + 2 :]).follow
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: the unit itself; there is no systemd-analyze")
    unit = tmp_path / "assay-monitor.service"
    unit.write_text(text.replace(program, sys.executable))
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "assay-monitor" not in done.stderr
