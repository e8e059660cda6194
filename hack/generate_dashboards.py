"""Write the dashboards of the chart: one of all VLLMDeployments, one of a single engine. `make generate`.

They ask only for metrics that every version of vLLM in the catalog has, and for those of the operator. The PodMonitor of the chart gives
the metrics of engines the labels `namespace`, `name` (of the VLLMDeployment) and `pod`. Queries about VLLMDeployments aggregate the labels
of the operator's Pod away: around a takeover, two Pods report the same objects.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "charts" / "vllm-operator" / "files" / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, LOW = 12, 8, 4
"""In the grid of Grafana: graphs, and the height of numbers and tables."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph, a number or a table: its title, its unit in Grafana, and its queries with their legends."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    type: str = "timeseries"
    width: int = WIDTH


def total(name: str, by: str, where: str, function: str = "rate", over: str = "$__rate_interval") -> str:
    return f"sum by ({by}) ({function}({name}{where}[{over}]))"


def share(part: str, whole: str, where: str) -> str:
    return f"sum(rate({part}{where}[$__rate_interval])) / sum(rate({whole}{where}[$__rate_interval]))"


def percentile(part: float, name: str, by: str, where: str) -> str:
    return f"histogram_quantile({part}, {total(f'{name}_bucket', by, where)})"


def requests(by: str, where: str, legend: str) -> Panel:
    states = ("running", "waiting")
    return Panel("Requests", [(f"sum by ({by}) (vllm:num_requests_{state}{where})", f"{legend} {state}") for state in states])


def number(title: str, query: str, legend: str) -> Panel:
    return Panel(title, [(query, legend)], type="stat", width=6)


def latest(name: str, by: str, where: str) -> str:
    return f"max by ({by}) (vllm_operator_{name}{where})"


OF_FLEET = '{namespace=~"$namespace"}'
OBJECT = "namespace, name"
LEGEND = "{{namespace}}/{{name}}"
AGE = f"time() - {latest('start_timestamp_seconds', OBJECT, OF_FLEET)}"
LATE = f"({AGE}) / {latest('start_late_after_seconds', OBJECT, OF_FLEET)}"
SAVED, WARM = (total(f"vllm_operator_{name}_total", OBJECT, OF_FLEET, "increase", "$__range") for name in ("saved_seconds", "warm_starts"))
FIRST_TOKEN = percentile(0.95, "vllm:time_to_first_token_seconds", f"{OBJECT}, le", OF_FLEET)


LEADER = "time() - max by (namespace, pod) (vllm_operator_leader_since_timestamp_seconds > 0)"


def condition(type: str, status: str) -> str:
    return latest("condition", f"{OBJECT}, reason", f'{{namespace=~"$namespace",type=~"{type}",status="{status}"}}')


FLEET = (
    number("Ready", f"count({condition('Ready', 'True')}) or vector(0)", "ready"),
    number("Not ready", f"count({condition('Ready', 'False')}) or vector(0)", "not ready"),
    number("Crashed", f"count({condition('Crashed', 'True')}) or vector(0)", "crashed"),
    number("Ready replicas", f"sum({latest('ready_replicas', OBJECT, OF_FLEET)})", "replicas"),
    Panel("Why they are not ready", [(condition("Ready", "False"), f"{LEGEND}: {{{{reason}}}}")], type="table"),
    Panel(
        "Crashes, hangs and failed revisions", [(condition("Crashed|Hung|RolledBack", "True"), f"{LEGEND}: {{{{reason}}}}")], type="table"
    ),
    Panel("Starts in progress", [(AGE, LEGEND)], "s"),
    Panel("Starts in progress, share of the time after which they are late", [(LATE, LEGEND)], "percentunit"),
    Panel("Last start", [(latest("start_seconds", f"{OBJECT}, caches", OF_FLEET), f"{LEGEND} {{{{caches}}}}")], "s"),
    Panel("Seconds saved by warm starts", [(SAVED, LEGEND)], "s"),
    Panel("Warm starts", [(WARM, LEGEND)]),
    Panel("Generated tokens", [(total("vllm:generation_tokens_total", OBJECT, OF_FLEET), LEGEND)]),
    requests(OBJECT, OF_FLEET, LEGEND),
    Panel("KV cache in use, fullest replica", [(f"max by ({OBJECT}) (vllm:kv_cache_usage_perc{OF_FLEET})", LEGEND)], "percentunit"),
    Panel("Time to first token, 95th percentile", [(FIRST_TOKEN, LEGEND)], "s"),
    Panel("Operator: age of its queue", [("max(vllm_operator_queue_age_seconds)", "oldest key")], "s"),
    Panel("Operator: the Pod that leads, and for how long", [(LEADER, "{{pod}}")], "s"),
)

OF_ENGINE = '{namespace="$namespace",name="$name"}'


def percentiles(name: str) -> list[tuple[str, str]]:
    return [(percentile(part, name, "le", OF_ENGINE), label) for part, label in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))]


TOKENS = [
    (f"sum(rate(vllm:{name}_tokens_total{OF_ENGINE}[$__rate_interval]))", legend)
    for name, legend in (("prompt", "prompt"), ("generation", "generated"))
]
PARTS = [
    (share(f"vllm:request_{part}_time_seconds_sum", f"vllm:request_{part}_time_seconds_count", OF_ENGINE), part)
    for part in ("queue", "prefill", "decode")
]
HITS = share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", OF_ENGINE)
ENGINE = (
    number("Ready replicas", f"max(vllm_operator_ready_replicas{OF_ENGINE})", "replicas"),
    Panel("Conditions", [(latest("condition", "type,status,reason", OF_ENGINE), "{{type}}={{status}} {{reason}}")], type="table", width=18),
    Panel("Tokens per second", TOKENS),
    requests("pod", OF_ENGINE, "{{pod}}"),
    Panel("Time to first token", percentiles("vllm:time_to_first_token_seconds"), "s"),
    Panel("Time between tokens", percentiles("vllm:inter_token_latency_seconds"), "s"),
    Panel("Duration of requests", percentiles("vllm:e2e_request_latency_seconds"), "s"),
    Panel("Parts of a request, mean", PARTS, "s"),
    Panel("KV cache in use", [(f"max by (pod) (vllm:kv_cache_usage_perc{OF_ENGINE})", "{{pod}}")], "percentunit"),
    Panel("Prompt tokens found in the prefix cache", [(HITS, "share")], "percentunit"),
    Panel("Finished requests", [(total("vllm:request_success_total", "finished_reason", OF_ENGINE), "{{finished_reason}}")], "reqps"),
    Panel("Preempted requests", [(total("vllm:num_preemptions_total", "pod", OF_ENGINE), "{{pod}}")], "reqps"),
    Panel("HTTP requests by status", [(total("http_requests_total", "status", OF_ENGINE), "{{status}}")], "reqps"),
    Panel("Stage of the start in progress", [(f"max(vllm_operator_startup_stage{OF_ENGINE})", "stage")]),
    Panel("Last start", [(latest("start_seconds", "caches", OF_ENGINE), "{{caches}}")], "s"),
)


def variable(name: str, query: str, *, several: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        **({"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
    }


_NAMESPACES = "label_values(vllm_operator_condition, namespace)"
_NAMES = 'label_values(vllm_operator_condition{namespace="$namespace"}, name)'
DASHBOARDS: dict[str, tuple[str, Sequence[Panel], list[dict[str, Any]]]] = {
    "vllm-fleet": ("vLLM: all VLLMDeployments", FLEET, [variable("namespace", _NAMESPACES, several=True)]),
    "vllm-engine": (
        "vLLM: one VLLMDeployment",
        ENGINE,
        [variable("namespace", _NAMESPACES, several=False), variable("name", _NAMES, several=False)],
    ),
}


def dashboard(uid: str) -> dict[str, Any]:
    title, panels, variables = DASHBOARDS[uid]
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["vllm", "vllm-operator"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": list(_placed(panels)),
    }


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > 2 * WIDTH:
            x, y = 0, y + height
        height = HEIGHT if panel.type == "timeseries" else LOW
        yield {
            "id": number,
            "type": panel.type,
            "title": panel.title,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "instant": panel.type == "table"}
                for index, (query, legend) in enumerate(panel.queries)
            ],
        }
        x += panel.width


def files() -> dict[Path, str]:
    return {FOLDER / f"{uid}.json": json.dumps(dashboard(uid), indent=1) + "\n" for uid in DASHBOARDS}
