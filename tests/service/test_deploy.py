"""Containers, services and dashboards: metrics, options and files that they name exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from assay.app.cli.parsing import app
from assay.app.monitor.metrics import OF_LAST, OF_MONITOR
from assay.app.monitor.watched import WatchedMonitor, read_options
from assay.app.site.answers import Answers
from assay.core.extras import EXTRAS
from assay.store import Store


REPOSITORY = Path(__file__).resolve().parents[2]


DEPLOY = REPOSITORY / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "monitors.json").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
KUBERNETES = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def parsed(*arguments: str) -> Any:
    """The settings of a command line."""
    _, bound, _ = app.parse_args(list(arguments), print_error=False, exit_on_error=False)
    return next(iter(bound.arguments.values()))


# ---- Grafana and Prometheus ---------------------------------------------------------------------


DOCUMENT = {
    "id": "0123456789abcdef",
    "model": {"id": "vit"},
    "distance": {"key": "spearman"},
    "threshold": {"value": 0.3},
    "conformal": {"limit": 0.25},
    "readings": [
        {
            "n": 10,
            "shift": 0.5,
            "interval": {"low": 0.4, "high": 0.6},
            "alarm": True,
            "p_value": 0.05,
            "e_value": 2.0,
            "skipped": [],
            "time": "1970-01-01T00:01:40.000+00:00",
            "baselines": {"ac": 0.9},
        }
    ],
}


class Observed(WatchedMonitor):
    """A monitor of the site with one reading in which every number is defined."""

    name, document, error, running = "door", DOCUMENT, None, True

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of the series that the site serves to Prometheus, each with its labels."""
    answers = Answers(Store(tmp_path_factory.mktemp("store")), [Observed()])
    text = bytes(answers.metrics(Request({"type": "http"})).body).decode()
    families = text_string_to_metric_families(text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_panel_asks_for_series_and_labels_that_are_exported(exported: dict[str, set[str]]) -> None:
    assert len(exported) == len(OF_MONITOR) + len(OF_LAST) + 2  # the baselines, and up
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"assay_\w+", target["expr"]))
            assert names, panel["title"]
            assert names <= exported.keys(), panel["title"]
            for name in names:
                used = {*re.findall(r"{{(\w+)}}", target["legendFormat"]), "monitor"}
                assert used <= exported[name], panel["title"]


def test_the_dashboard_shows_every_series(exported: dict[str, set[str]]) -> None:
    shown = {name for each in EXPRESSIONS for name in re.findall(r"assay_\w+", each)}
    assert shown == exported.keys()


def test_the_dashboard_takes_its_data_source_and_monitors_from_variables() -> None:
    source, monitor = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert monitor["query"]["query"] == "label_values(assay_monitor_batches_total, monitor)"
    for panel in DASHBOARD["panels"]:
        assert {each["datasource"]["uid"] for each in [panel, *panel["targets"]]} == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_a_dashboard_without_a_data_source_says_what_to_do() -> None:
    source = DASHBOARD["templating"]["list"][0]
    assert "every panel is empty: add it under Connections" in source["description"]
    for panel in DASHBOARD["panels"]:
        said = panel["fieldConfig"]["defaults"]["noValue"]
        assert said.startswith("No data: choose a Prometheus data source above that scrapes /metrics of")


def promtool(*arguments: str, folder: Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("NOT TESTED: Prometheus' configuration; no promtool (Debian: apt-get install prometheus)")
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{place}", "expr": each.replace("$monitor", ".*")}
        for place, each in enumerate(EXPRESSIONS)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "rules.yml", folder=tmp_path)


def test_prometheus_accepts_its_configuration_with_the_alert_rules(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    assert "/run/secrets/token" in text
    (tmp_path / "token").write_text("x" * 16)
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/token", str(tmp_path / "token")))
    shutil.copy(REPOSITORY / "examples" / "alerts" / "assay.rules.yml", tmp_path)
    assert "rule files found" in promtool("check", "config", "prometheus.yml", folder=tmp_path)


# ---- compose ------------------------------------------------------------------------------------


def test_the_commands_of_the_services_are_commands() -> None:
    commands = {
        name: shlex.split(re.sub(r"^(\w+=\$\$\(.*?\)\s+)+exec assay", "", service["command"][0]))
        for name, service in COMPOSE["services"].items()
        if service.get("image") == "assay"
    }
    audit, site = parsed(*commands["first-result"]), parsed(*commands["site"])
    assert audit.store == site.store
    assert audit.store.startswith("postgresql+psycopg://assay@database/assay?")
    (target,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    assert target["targets"] == [f"{site.allow_host[0]}:{site.port}"]
    assert site.allow_host[0] in COMPOSE["services"]


def test_every_file_that_is_mounted_exists() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), name
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        assert set(service.get("depends_on", ())) <= COMPOSE["services"].keys()
    build = COMPOSE["x-assay"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_options_of_monitors_are_options(tmp_path: Path) -> None:
    embedded = read_options(DEPLOY / "monitor.toml")
    assert (embedded.model, embedded.threshold, embedded.out) == (None, 0.3, Path("/data/monitor"))
    path = tmp_path / "monitor.toml"
    path.write_text(KUBERNETES["ConfigMap"]["data"]["monitor.toml"])
    assert read_options(path).follow


def test_the_image_installs_extras_and_copies_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(EXTRAS)
    for source in re.findall(r"^COPY ([^-]\S*) ", text, re.MULTILINE):
        assert (REPOSITORY / source).exists()
    (torch,) = re.findall(r"^TORCH := (\S+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert f"ARG TORCH={torch}\n" in text


# ---- systemd and Kubernetes ---------------------------------------------------------------------


def test_the_unit_is_one_and_its_command_is_a_command(tmp_path: Path) -> None:
    text = (DEPLOY / "assay-monitor.service").read_text()
    program, *arguments = shlex.split(re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)[0])
    assert parsed(*_without_config(arguments)).follow
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: the unit itself; there is no systemd-analyze")
    unit = tmp_path / "assay-monitor.service"
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "assay-monitor" not in done.stderr


def test_the_pod_runs_a_command_and_is_probed_where_it_listens() -> None:
    spec = KUBERNETES["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    settings = parsed(*_without_config(container["args"]))
    (port,) = container["ports"]
    assert (settings.metrics_port, settings.metrics_host) == (port["containerPort"], "0.0.0.0")
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")  # one process per directory


def _without_config(arguments: list[str]) -> list[str]:
    """The file of options lies elsewhere; what it holds is tested by itself."""
    place = arguments.index("--config")
    return arguments[:place] + arguments[place + 2 :]
