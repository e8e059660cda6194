"""The life of a simulated Pod, as kwok Stages.

A Pod without annotations is Ready at once. One with `sim.vllm-operator.dev/path` goes through what a container of an
inference engine goes through; the README has the annotations that say how fast and how it ends.

As with a kubelet, the first restart comes at once and later ones after a back-off. The simulated container is the first
one; others just run, and init containers have completed.

Two properties of kwok shape what follows. Every update of a Pod restarts a relative delay, so delays of 3 seconds and
more are absolute deadlines, which makes them up to a second longer. And containerStatuses is one value: each stage
writes all of it.
"""

from pathlib import Path
from typing import Any

import yaml

from testenv import podstatus
from testenv.podstatus import ANNOTATION_PREFIX, containers

__all__ = ["ANNOTATION_PREFIX", "load_stages"]

_DATA = Path(__file__).parent / "data" / "stages"
_DELETED = ".metadata.deletionTimestamp"
_CONTAINER = ".status.containerStatuses[0]"
_RESTARTS = f"{_CONTAINER}.restartCount | tostring"
_HAS_ENDED = {"key": f"{_CONTAINER}.state.terminated.exitCode", "operator": "Exists"}
_IS_RUNNING = {"key": f"{_CONTAINER}.state.running.startedAt", "operator": "Exists"}
_IS_NOT_OVER = {"key": ".status.phase", "operator": "NotIn", "values": ["Succeeded", "Failed"]}
_STARTED = {"event": {"type": "Normal", "reason": "Started", "message": "Container started"}}
_AT_ONCE = {"durationMilliseconds": 300}


def load_stages() -> list[dict[str, Any]]:
    """Returns every Stage: nodes, volumes and MIG from the data files, Pods from here."""
    documents = [stage for path in sorted(_DATA.glob("*.yaml")) for stage in yaml.safe_load_all(path.read_text())]
    return [*documents, *_first_steps(), *_becoming_ready(), *_crashes(), *_restarts(), *_ends()]


def _first_steps() -> list[dict[str, Any]]:
    is_creating = _is(f"{_CONTAINER}.state.waiting.reason", "ContainerCreating")
    running = containers(podstatus.RUNNING_SINCE_NOW, ready=True, others="running")
    return [
        _stage(
            "pod-ready-at-once",
            [_absent(_path("path")), _absent(".status.podIP")],
            [_status(podstatus.created("Running"), podstatus.first_conditions("True"), running)],
        ),
        _stage(
            "pod-create",
            [_with("path"), _absent(".status.podIP")],
            [
                _event("Normal", "Pulling", "Pulling image"),
                _status(podstatus.created(), podstatus.first_conditions("False"), containers(podstatus.CREATING, others="waiting")),
            ],
        ),
        _stage(
            "pod-start",
            [_with("path", "ok", "crash", "oom"), is_creating],
            [_STARTED, _status("phase: Running", containers(podstatus.RUNNING_SINCE_NOW, others="running"))],
            delay=_seconds("pull", "1", since=".status.startTime"),
        ),
        _stage(
            "pod-cannot-start",
            [_with("path", "imagepull"), is_creating],
            [
                _event("Warning", "Failed", "Error: the container cannot start"),
                _status(containers(podstatus.cannot_pull(), others="waiting")),
            ],
            delay=_seconds("pull", "1", since=".status.startTime"),
        ),
    ]


def _becoming_ready() -> list[dict[str, Any]]:
    goes_on = containers(podstatus.STILL_RUNNING, ready=True, run=podstatus.SAME_RUN, last=podstatus.SAME_LAST_STATE, others="running")
    return [
        _stage(
            "pod-become-ready",
            [
                _IS_RUNNING,
                _is(f"{_CONTAINER}.started", "false"),
                _with("path", "ok", "crash", "oom"),
                _not_value(_path("load"), "hold"),
                _is(f"{_will_crash()} and {_crashes_while_loading()}", "false"),
            ],
            [_status(podstatus.ready_conditions("True"), goes_on)],
            delay=_seconds("load", "5", since=f"{_CONTAINER}.state.running.startedAt"),
        )
    ]


def _crashes() -> list[dict[str, Any]]:
    ended = containers(podstatus.terminated(), run=podstatus.SAME_RUN, last=podstatus.SAME_LAST_STATE, others="running")
    backs_off = containers(podstatus.backing_off(), run=podstatus.SAME_RUN, last=podstatus.STATE_BECOMES_LAST, others="running")
    return [
        _stage(
            "pod-crash",
            [
                _IS_RUNNING,
                _with("path", "crash", "oom"),
                _not_value(_path("crash-after"), "hold"),
                _is(f"{_will_crash()} and (({_crashes_while_loading()} | not) == {_CONTAINER}.started)", "true"),
            ],
            [_status(podstatus.no_longer_ready(), ended)],
            delay=_seconds("crash-after", "3", since=f"{_CONTAINER}.state.running.startedAt", relative_if=f"{_CONTAINER}.started"),
        ),
        _stage(
            "pod-back-off",
            [_with("path"), _HAS_ENDED, _IS_NOT_OVER, _not_value(_RESTARTS, "0")],
            [_event("Warning", "BackOff", "Back-off restarting failed container"), _status(backs_off)],
            delay=_AT_ONCE,
        ),
    ]


def _restarts() -> list[dict[str, Any]]:
    """The first at once, later ones after a back-off."""
    after_crash = containers(podstatus.RUNNING_SINCE_NOW, run=podstatus.NEXT_RUN, last=podstatus.STATE_BECOMES_LAST, others="running")
    after_back_off = containers(podstatus.RUNNING_SINCE_NOW, run=podstatus.NEXT_RUN, last=podstatus.SAME_LAST_STATE, others="running")
    return [
        _stage(
            "pod-restart-at-once",
            [_with("path"), _HAS_ENDED, _IS_NOT_OVER, _is(_RESTARTS, "0")],
            [_STARTED, _status(after_crash)],
            delay=_AT_ONCE,
        ),
        _stage(
            "pod-restart",
            [_with("path"), _is(f"{_CONTAINER}.state.waiting.reason", "CrashLoopBackOff")],
            [_STARTED, _status(after_back_off)],
            delay=_back_off_delay(),
        ),
    ]


def _ends() -> list[dict[str, Any]]:
    completed = containers(podstatus.completed(), run=podstatus.SAME_RUN, others="running")
    return [
        _stage(
            "pod-complete",
            [_IS_RUNNING, _is(f"{_CONTAINER}.started", "true"), _is(".metadata.ownerReferences.[].kind", "Job")],
            [_status("phase: Succeeded", podstatus.ready_conditions("False", "PodCompleted"), completed)],
        ),
        _stage("pod-delete", [_exists(_DELETED)], [{"delete": True}]),
    ]


def _stage(
    name: str, conditions: list[dict[str, Any]], steps: list[dict[str, Any]], *, delay: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A stage of Pods; of those that are not being deleted, unless it is about these."""
    expressions = conditions if _exists(_DELETED) in conditions else [_absent(_DELETED), *conditions]
    spec: dict[str, Any] = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchExpressions": expressions}, "steps": steps}
    if delay:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _path(annotation: str) -> str:
    return f'.metadata.annotations["{ANNOTATION_PREFIX}{annotation}"]'


def _annotation(name: str, default: str) -> str:
    return f'({_path(name)} // "{default}")'


def _is(key: str, *values: str) -> dict[str, Any]:
    """Values are compared as text: a number would never match, a boolean does."""
    return {"key": key, "operator": "In", "values": list(values)}


def _not_value(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _exists(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists"}


def _absent(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "DoesNotExist"}


def _with(annotation: str, *values: str) -> dict[str, Any]:
    return _is(_path(annotation), *values) if values else _exists(_path(annotation))


def _crashes_while_loading() -> str:
    return f'({_annotation("crash-phase", "loading")} == "loading")'


def _will_crash() -> str:
    crashing = f'({_annotation("path", "")} | . == "crash" or . == "oom")'
    return f"({crashing} and ({_annotation('crash-times', '999999')} | tonumber) > {_CONTAINER}.restartCount)"


def _seconds(annotation: str, default: str, *, since: str, relative_if: str = "false") -> dict[str, Any]:
    return _delay(
        f"({_annotation(annotation, default)} | tonumber) as $seconds"
        f' | if $seconds < 3 or {relative_if} then "\\($seconds)s" else (({since} | fromdate) + $seconds + 1 | todate) end'
    )


def _back_off_delay() -> dict[str, Any]:
    return _delay(
        f"({_annotation('backoff', '10')} | tonumber) as $first | {_CONTAINER}"
        " | ([$first * pow(2; .restartCount - 1), 300] | min) as $seconds"
        ' | if $seconds < 3 then "\\($seconds)s" else ((.lastState.terminated.finishedAt | fromdate) + $seconds + 1 | todate) end'
    )


def _delay(expression: str) -> dict[str, Any]:
    return {"durationMilliseconds": 0, "durationFrom": {"jq": {"expression": expression}}}


def _event(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"event": {"type": kind, "reason": reason, "message": message}}


def _status(*parts: str) -> dict[str, Any]:
    return {"patch": {"subresource": "status", "root": "status", "template": "\n".join([podstatus.HEADER, *parts]) + "\n"}}
