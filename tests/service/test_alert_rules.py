"""The example of alert rules: it works under Prometheus' own tests and names metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_watch import fill, options

from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.watch import MonitorRun


ALERTS = Path(__file__).resolve().parents[2] / "examples" / "alerts"


def names(text: str) -> set[str]:
    return set(re.findall(r"assay_monitor_\w+", text))


@pytest.mark.parametrize(
    ("verb", "file"),
    [(("test", "rules"), "assay.rules.test.yml"), (("check", "rules"), "assay.rules.yml"),
     (("check", "config"), "prometheus.yml")],
)  # fmt: skip
def test_prometheus_itself_accepts_the_example(verb: tuple[str, str], file: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("NOT TESTED: alert rules; there is no promtool (Debian: apt-get install prometheus)")
    done = subprocess.run(["promtool", *verb, file], cwd=ALERTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_the_rules_name_metrics_that_a_monitor_has(tmp_path: Path) -> None:
    fill(tmp_path / "in", 4)
    with MonitorRun(options(tmp_path), tell=print) as run:
        run.start()
        assert len(list(run.observe())) == 1
        run.finish()
        text = metrics_text([run.document]).decode()
    rules = (ALERTS / "assay.rules.yml").read_text()
    known = names(text) | {"assay_monitor_up"}  # the last is of `assay serve`, see test_web.py
    assert names(rules) <= known
    assert names((ALERTS / "assay.rules.test.yml").read_text()) <= known
    found = {line.split("{")[0]: line.split()[-1] for line in text.splitlines() if not line.startswith("#")}
    assert found["assay_monitor_alarm"] == "1.0"


def test_every_rule_is_tested() -> None:
    alerts = re.findall(r"alert: (\w+)", (ALERTS / "assay.rules.yml").read_text())
    tested = (ALERTS / "assay.rules.test.yml").read_text()
    for alert in alerts:
        fires = re.search(rf"alertname: {alert}\n\s+exp_alerts:", tested)
        rests = re.search(rf"alertname: {alert}\n(?!\s+exp_alerts:)", tested)
        assert fires, alert
        assert rests, alert
