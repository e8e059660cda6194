"""A quarantined directory that cannot be deleted: a few attempts at growing distances, and a report of why and what to do."""

import json
from datetime import timedelta
from typing import Any

import pytest

from support.fleet import Fleet
from support.full_volumes import finish, jobs
from support.operators import Bench
from support.volumes import GENERATION, OLD
from vllm_operator.api.labels import DELETION_ANNOTATION_PREFIX, QUARANTINED_ANNOTATION_PREFIX
from vllm_operator.caches.cleaning import MAX_ATTEMPTS, QUARANTINE_TIME
from vllm_operator.kube.client import CLAIM, JOB, POD, Forbidden

MARK, ATTEMPTS = QUARANTINED_ANNOTATION_PREFIX + GENERATION, DELETION_ANNOTATION_PREFIX + GENERATION
DAY = 24 * 3600


@pytest.fixture
async def aged(bench: Bench, fleet: Fleet) -> Fleet:
    """A directory was quarantined a week ago."""
    await fleet.serve()
    fleet.ready(fleet.start())
    fleet.annotate({MARK: fleet.time()})
    await fleet.settle()
    assert jobs(bench) == []
    bench.pass_time(QUARANTINE_TIME.total_seconds() + 1)
    return fleet


def report(**kept: Any) -> str:
    return json.dumps({"removed": [], "kept": kept, "freedBytes": 0, "freeBytes": 9, "totalBytes": 10})


async def pass_days(fleet: Fleet, days: float, message: str | None) -> list[int]:
    """Run for some days, reconciling every six hours; return the days on which Jobs came.

    Each Job reports the message. Without one, its Pod is never created.
    """
    bench, began, came = fleet.bench, fleet.bench.now, list[int]()
    while bench.now - began < timedelta(days=days):
        await fleet.settle()
        for job in jobs(bench):
            came.append(round((bench.now - began) / timedelta(days=1)))
            pod = finish(fleet, message) if message is not None else ""
            await fleet.settle()
            bench.pass_time(901)  # ttlSecondsAfterFinished
            bench.cluster.remove(POD, "default", pod)
            bench.cluster.remove(JOB, "default", job["metadata"]["name"])
        bench.pass_time(6 * 3600)
    return came


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (report(**{GENERATION: "[Errno 13] Permission denied: 'triton'"}), "[Errno 13] Permission denied: 'triton'."),
        (report(**{GENERATION: "a Pod or a VLLMDeployment uses it"}), "a Pod or a VLLMDeployment uses it."),
        (report(), "the Job has reported nothing."),
        ("", "the Job has reported nothing."),
        (None, "the Job has reported nothing."),
    ],
    ids=["forbidden", "in use", "not named", "no report", "no Pod"],
)
async def test_a_few_attempts_are_made_and_the_last_one_is_reported(bench: Bench, aged: Fleet, message: str | None, why: str) -> None:
    assert await pass_days(aged, 0.5, message) == [0]
    said = bench.cache_verdict().message
    assert (
        f"The quarantined directory {GENERATION} on PersistentVolumeClaim llama-cache could not be deleted in attempt 1 of 4: {why}" in said
    )
    assert "The next attempt is after" in said
    assert await pass_days(aged, 20, message) == [0, 3, 7]
    assert f"in attempt 4 of 4: {why} The operator does not try again." in bench.cache_verdict().message
    assert f"kubectl annotate pvc llama-cache -n default {ATTEMPTS}-" in bench.cache_verdict().message
    bench.restart()
    assert await pass_days(aged, 7, message) == []


async def test_the_command_of_the_report_begins_again_and_what_is_gone_is_forgotten(bench: Bench, aged: Fleet) -> None:
    await pass_days(aged, 20, report(**{GENERATION: "it has no file"}))
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"annotations": {ATTEMPTS: None}}})  # as the user is told
    assert await pass_days(aged, 3, report(**{GENERATION: "gone"})) == [0]
    assert aged.annotations()[MARK].endswith(" removed")
    assert ATTEMPTS not in aged.annotations()
    assert "could not be deleted" not in bench.cache_verdict().message


async def test_a_directory_that_is_deleted_at_last_is_no_longer_reported(bench: Bench, aged: Fleet) -> None:
    await pass_days(aged, 0.5, report(**{GENERATION: "in use"}))
    assert await pass_days(aged, 3, json.dumps({"removed": [GENERATION], "freedBytes": 1})) == [0]
    assert aged.annotations()[MARK].endswith(" removed")
    assert ATTEMPTS not in aged.annotations()
    assert "could not be deleted" not in bench.cache_verdict().message


async def test_a_pod_that_mounts_the_whole_volume_costs_a_few_lists_and_is_named(bench: Bench, aged: Fleet) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "llama-cache"}}]
    spec = {"volumes": volumes, "containers": [{"name": "shell", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}
    bench.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": {"name": "shell", "namespace": "default"}, "spec": spec})
    assert await pass_days(aged, 20, None) == []
    assert "in attempt 4 of 4: Pod shell mounts the whole volume." in bench.cache_verdict().message


async def test_without_the_record_of_an_attempt_none_is_made(bench: Bench, aged: Fleet) -> None:
    bench.cluster.fail("patch", CLAIM, Forbidden("may not patch"), times=999)
    assert await pass_days(aged, 2, report()) == []


async def test_several_directories_are_reported_as_one(bench: Bench, aged: Fleet) -> None:
    aged.annotate({QUARANTINED_ANNOTATION_PREFIX + OLD: "2026-11-01T00:00:00Z"})
    await pass_days(aged, 0.5, report(**{GENERATION: "in use", OLD: "in use"}))
    assert "and 1 other on PersistentVolumeClaim" in bench.cache_verdict().message


@pytest.mark.parametrize("value", ["", "x", "1/yesterday/", "-1/2026-11-01T00:00:00Z/", "0/2026-11-01T00:00:00Z/in use", "9" * 300])
async def test_a_record_that_somebody_has_edited_stops_nothing(bench: Bench, aged: Fleet, value: str) -> None:
    aged.annotate({ATTEMPTS: value})
    assert len(await pass_days(aged, 20, report())) <= MAX_ATTEMPTS
    assert bench.condition("Ready").reason != "OperatorFailed"
