"""What Prometheus can read: one series for each condition, bounded labels, nothing that stays behind."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from support.operators import KEY, Bench, llama
from vllm_operator.api.conditions import ORDER
from vllm_operator.api.status import CacheStatus, Condition, ConditionStatus, StartupStatus, VLLMDeploymentStatus
from vllm_operator.controller.metrics import RESULTS, Metrics, documented_reasons
from vllm_operator.status.starts import StartClock


def status(*conditions: tuple[str, str, str], **more: object) -> VLLMDeploymentStatus:
    found = [Condition(type=type, status=ConditionStatus(value), reason=reason, message="") for type, value, reason in conditions]
    return VLLMDeploymentStatus.model_validate({"conditions": [c.to_json() for c in found]}).model_copy(update=more)


def series(metrics: Metrics, name: str) -> list[str]:
    return sorted(line for line in metrics.render().decode().splitlines() if re.match(rf"vllm_operator_{name}[{{ ]", line))


def test_a_condition_is_one_series_with_its_reason_and_an_earlier_one_is_gone() -> None:
    metrics = Metrics()
    metrics.reported("a", "b", status(("Crashed", "True", "HfGatedRepo"), ("Ready", "False", "HfGatedRepo")))
    assert series(metrics, "condition") == [
        'vllm_operator_condition{name="b",namespace="a",reason="HfGatedRepo",status="False",type="Ready"} 1.0',
        'vllm_operator_condition{name="b",namespace="a",reason="HfGatedRepo",status="True",type="Crashed"} 1.0',
    ]
    metrics.reported("a", "b", status(("Crashed", "True", "UnknownCrash"), ("Ready", "True", "Serving")))
    assert series(metrics, "condition") == [
        'vllm_operator_condition{name="b",namespace="a",reason="Serving",status="True",type="Ready"} 1.0',
        'vllm_operator_condition{name="b",namespace="a",reason="UnknownCrash",status="True",type="Crashed"} 1.0',
    ]


@pytest.mark.parametrize("reason", ["OurLicenceServer", "x" * 1000, "Other"])
def test_a_reason_that_is_not_documented_is_no_label(reason: str) -> None:
    metrics = Metrics()
    metrics.reported("a", "b", status(("Crashed", "True", reason), ("SomebodyElses", "True", "Serving")))
    assert series(metrics, "condition") == [
        'vllm_operator_condition{name="b",namespace="a",reason="Other",status="True",type="Crashed"} 1.0'
    ]


def test_the_reasons_are_those_that_the_docs_name() -> None:
    assert {"Serving", "NoProgress", "UnknownCrash", "NativeCodeCrash", "HfGatedRepo"} <= documented_reasons()
    assert len(documented_reasons() | set(ORDER)) < 1000


def test_nothing_is_left_of_an_object_that_is_gone_or_of_a_start_that_is_over() -> None:
    metrics = Metrics()
    empty = metrics.render()
    clock = StartClock(datetime(2026, 11, 22, 12, 0, tzinfo=UTC), 1200)
    cache = CacheStatus(key="k", cold_start_seconds=459, warm_start_seconds=35, generation=1)
    metrics.reported("a", "b", status(("Ready", "False", "Starting"), startup=StartupStatus(stage="WeightLoad"), cache=cache), clock)
    assert series(metrics, "start_timestamp_seconds") == ['vllm_operator_start_timestamp_seconds{name="b",namespace="a"} 1.7953488e+09']
    assert series(metrics, "start_late_after_seconds") == ['vllm_operator_start_late_after_seconds{name="b",namespace="a"} 1200.0']
    assert series(metrics, "startup_stage") == ['vllm_operator_startup_stage{name="b",namespace="a"} 6.0']
    assert len(series(metrics, "start_seconds")) == 2
    metrics.reported("a", "b", status(("Ready", "False", "Started"), cache=CacheStatus(key="l")))
    for name in ("start_timestamp_seconds", "start_late_after_seconds", "startup_stage", "start_seconds", "start_saved_seconds"):
        assert series(metrics, name) == []
    metrics.forget("a", "b")
    metrics.forget("a", "b")
    assert metrics.render() == empty


def test_seconds_saved_are_a_counter() -> None:
    metrics = Metrics()
    now = datetime(2026, 11, 21, 14, tzinfo=UTC)
    earlier, later = (now, 9), [(now + timedelta(minutes=minutes), 424) for minutes in range(1, 4)]
    metrics.reported("a", "b", status(), warm_starts=[earlier])
    metrics.reported("a", "b", status(), warm_starts=[earlier, *later[:2]])
    metrics.reported("a", "b", status(), warm_starts=later)
    metrics.reported("a", "b", status())
    assert series(metrics, "saved_seconds_total") == ['vllm_operator_saved_seconds_total{name="b",namespace="a"} 1272.0']
    assert series(metrics, "warm_starts_total") == ['vllm_operator_warm_starts_total{name="b",namespace="a"} 3.0']
    assert "# TYPE vllm_operator_saved_seconds_total counter" in metrics.render().decode()


def test_a_count_begins_with_nothing_so_that_its_first_increase_is_seen() -> None:
    metrics = Metrics()
    metrics.reported("a", "b", status(cache=CacheStatus(key="k")))
    assert series(metrics, "quarantined_caches") == ['vllm_operator_quarantined_caches{name="b",namespace="a"} 0.0']
    assert len(series(metrics, "reconcile_total")) == len(RESULTS)


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.reported("a", 'b"\n\\', status(cache=CacheStatus(key="k")))
    assert series(metrics, "quarantined_caches") == ['vllm_operator_quarantined_caches{name="b\\"\\n\\\\",namespace="a"} 0.0']


async def test_what_the_operator_says_of_an_object_on_which_it_failed_is_in_the_metrics(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    await bench.reconciler.report_bug(KEY, ZeroDivisionError("a bug"))
    [ready] = [line for line in series(bench.metrics, "condition") if 'type="Ready"' in line]
    assert 'reason="OperatorFailed",status="False"' in ready
