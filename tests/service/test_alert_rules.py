"""The example of alert rules: it works under Prometheus' own tests and names metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_watch import fill, observe, options


ALERTS = Path(__file__).resolve().parents[2] / "examples" / "alerts"


def names(text: str) -> set[str]:
    return set(re.findall(r"assay_monitor_\w+", text))


def promtool(*arguments: str, text: str = "") -> str:
    if shutil.which("promtool") is None:
        pytest.skip("NOT TESTED: alert rules; there is no promtool (Debian: apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", *arguments], cwd=ALERTS, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", ["test rules assay.rules.test.yml", "check rules assay.rules.yml"])
def test_prometheus_itself_accepts_the_example(arguments: str) -> None:
    assert "SUCCESS" in promtool(*arguments.split())


def test_the_rules_name_metrics_that_a_monitor_writes(tmp_path: Path) -> None:
    fill(tmp_path / "in", 4)
    assert observe(options(tmp_path, metrics_file=tmp_path / "door.prom")) == 1
    text = (tmp_path / "door.prom").read_text()
    assert names((ALERTS / "assay.rules.yml").read_text()) <= names(text)
    assert names((ALERTS / "assay.rules.test.yml").read_text()) <= names(text)
    found = {line.split("{")[0]: line.split()[-1] for line in text.splitlines() if not line.startswith("#")}
    assert found["assay_monitor_batches_total"] == found["assay_monitor_alarm"] == "1.0"
    promtool("check", "metrics", text=text)


def test_every_rule_is_tested() -> None:
    alerts = re.findall(r"alert: (\w+)", (ALERTS / "assay.rules.yml").read_text())
    tested = (ALERTS / "assay.rules.test.yml").read_text()
    for alert in alerts:
        fires = re.search(rf"alertname: {alert}\n\s+exp_alerts:", tested)
        rests = re.search(rf"alertname: {alert}\n(?!\s+exp_alerts:)", tested)
        assert fires, alert
        assert rests, alert
