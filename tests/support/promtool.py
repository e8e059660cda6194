"""Alerts over time: what the operator's metrics show minute by minute, read by promtool as Prometheus reads it."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.helm import CHART
from testenv.binaries import find_binary
from vllm_operator.controller.metrics import Metrics

ALERTS = CHART / "files" / "alerts.yaml"
_TIMES = ("vllm_operator_start_timestamp_seconds",)


@dataclass(frozen=True)
class Firing:
    """An alert that must fire: its labels without its name, and its summary."""

    labels: dict[str, str]
    summary: str


class Recording:
    """Metrics as a Prometheus has scraped them, once a minute. Its clock begins at 0, when `epoch` is for the operator."""

    def __init__(self, epoch: float = 0.0) -> None:
        self._epoch = epoch
        self._series: dict[str, list[str]] = {}
        self.minutes = 0

    def scrape(self, metrics: Metrics | Mapping[str, Metrics] | None, more: Mapping[str, float] | None = None) -> None:
        """Take what is shown at this minute: by one operator, by Pods of it with these names, or by none that is reached; and `more`."""
        pods = metrics if isinstance(metrics, Mapping) else {"": metrics} if metrics is not None else {}
        shown = [sample for pod, each in pods.items() for sample in _samples(each, self._epoch, pod)]
        for series, value in [*shown, *((name, repr(value)) for name, value in (more or {}).items())]:
            values = self._series.setdefault(series, [])
            values += ["_"] * (self.minutes - len(values)) + [value]
        self.minutes += 1

    def input_series(self) -> list[dict[str, str]]:
        """All series in promtool's form. One that is not shown any more is stale from that minute on, as after a scrape without it."""
        full = {name: values + ["stale"] * (self.minutes - len(values)) for name, values in self._series.items()}
        return [{"series": name, "values": " ".join(_with_stale(values))} for name, values in full.items()]


def _with_stale(values: Sequence[str]) -> Iterator[str]:
    seen = False
    for value in values:
        yield "stale" if value == "_" and seen else value
        seen = seen or value != "_"


def _samples(metrics: Metrics, epoch: float, pod: str) -> Iterator[tuple[str, str]]:
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.endswith(("_bucket", "_created")):
                continue
            labels = ",".join(f'{name}="{value}"' for name, value in sorted((sample.labels | ({"pod": pod} if pod else {})).items()))
            yield f"{sample.name}{{{labels}}}", repr(sample.value - (epoch if sample.name in _TIMES else 0))


def check_alerts(folder: Path, recording: Recording, expected: Sequence[tuple[int, str, Sequence[Firing]]]) -> str:
    """Play a recording against the alerts of the chart; empty if at each minute exactly those fire that are expected, else what differs."""
    rules = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]}
    tests = [
        {
            "eval_time": f"{minute}m",
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": {**rules[name]["labels"], **alert.labels},
                    "exp_annotations": _annotations(rules[name]["annotations"], alert),
                }
                for alert in firing
            ],
        }
        for minute, name, firing in expected
    ]
    group = {"interval": "1m", "input_series": recording.input_series(), "alert_rule_test": tests}
    path = folder / "alerts-test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [group]}, width=10_000))
    done = subprocess.run(
        [str(find_binary("promtool")), "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _annotations(annotations: dict[str, str], alert: Firing) -> dict[str, str]:
    description = annotations["description"]
    for name, value in alert.labels.items():
        description = description.replace(f"{{{{ $labels.{name} }}}}", value)
    return {"summary": alert.summary, "description": description, "runbook_url": annotations["runbook_url"]}
