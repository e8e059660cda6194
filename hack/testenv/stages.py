"""The life of a simulated Pod, as kwok Stages.

A Pod without annotations is Ready at once. One with `sim.vllm-operator.dev/path` goes through what a container of an
inference engine goes through; its other annotations say how fast and how it ends (all optional, seconds may be fractions):

    path         ok | crash | oom | imagepull | waiting
    pull         seconds until the container runs (1)
    load         seconds from there until it is Ready (5), or "hold": not before the annotation is changed
    crash-after  seconds until it crashes (3), or "hold"
    crash-phase  loading: crashes before it is Ready; ready: after it was (loading)
    crash-times  how often it crashes before it becomes Ready after all (always)
    exit-code    of the crash (1); `oom` is always 137
    reason       of the crash (Error), or of the waiting (CreateContainerConfigError)
    message      of the crash or of the waiting
    backoff      seconds of the first back-off (10); doubles with each crash, up to 300
    term         seconds that the Pod is Terminating (0)

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
from testenv.podstatus import ANNOTATION_PREFIX

__all__ = ["ANNOTATION_PREFIX", "load_stages"]

_DATA = Path(__file__).parent / "data" / "stages"
_CONTAINER = ".status.containerStatuses[0]"


def load_stages() -> list[dict[str, Any]]:
    """Returns every Stage: nodes, volumes and MIG from the data files, Pods from here."""
    documents = [stage for path in sorted(_DATA.glob("*.yaml")) for stage in yaml.safe_load_all(path.read_text())]
    return [*documents, *_pod_stages()]


def _pod_stages() -> list[dict[str, Any]]:
    loading = _choice("crash-phase", "loading")
    return [
        _stage(
            "pod-ready-at-once",
            [_alive(), _without("path"), _absent(".status.podIP")],
            [
                _status(
                    podstatus.created("Running"),
                    podstatus.first_conditions("True"),
                    podstatus.containers(podstatus.RUNNING_SINCE_NOW, ready=True, others="running"),
                )
            ],
        ),
        _stage(
            "pod-create",
            [_alive(), _with("path"), _absent(".status.podIP")],
            [
                _event("Normal", "Pulling", "Pulling image"),
                _status(
                    podstatus.created(), podstatus.first_conditions("False"), podstatus.containers(podstatus.CREATING, others="waiting")
                ),
            ],
        ),
        _stage(
            "pod-start",
            [_alive(), _with("path", "ok", "crash", "oom"), _is(f"{_CONTAINER}.state.waiting.reason", "ContainerCreating")],
            [
                _event("Normal", "Started", "Container started"),
                _status("phase: Running", podstatus.containers(podstatus.RUNNING_SINCE_NOW, others="running")),
            ],
            delay=_seconds("pull", "1", since=".status.startTime"),
        ),
        _stage(
            "pod-cannot-start",
            [_alive(), _with("path", "imagepull", "waiting"), _is(f"{_CONTAINER}.state.waiting.reason", "ContainerCreating")],
            [
                _event("Warning", "Failed", "Error: the container cannot start"),
                _status(podstatus.containers(podstatus.cannot_start(), others="waiting")),
            ],
            delay=_seconds("pull", "1", since=".status.startTime"),
        ),
        _stage(
            "pod-become-ready",
            [
                _alive(),
                *_is_running(started=False),
                _with("path", "ok", "crash", "oom"),
                _not("load", "hold"),
                _is(f"{_will_crash()} and {loading}", "false"),
            ],
            [
                _status(
                    podstatus.ready_conditions("True"),
                    podstatus.containers(
                        podstatus.STILL_RUNNING, ready=True, run=podstatus.SAME_RUN, last=podstatus.SAME_LAST_STATE, others="running"
                    ),
                )
            ],
            delay=_seconds("load", "5", since=f"{_CONTAINER}.state.running.startedAt"),
        ),
        _stage(
            "pod-crash",
            [
                _alive(),
                *_is_running(),
                _with("path", "crash", "oom"),
                _not("crash-after", "hold"),
                _is(f"{_will_crash()} and (({loading} | not) == {_CONTAINER}.started)", "true"),
            ],
            [
                _status(
                    podstatus.no_longer_ready(),
                    podstatus.containers(podstatus.terminated(), run=podstatus.SAME_RUN, last=podstatus.SAME_LAST_STATE, others="running"),
                )
            ],
            delay=_seconds("crash-after", "3", since=f"{_CONTAINER}.state.running.startedAt", relative_if=f"{_CONTAINER}.started"),
        ),
        _stage(
            "pod-restart-at-once",
            [
                _alive(),
                _with("path"),
                _exists(f"{_CONTAINER}.state.terminated.exitCode"),
                _is(f"{_CONTAINER}.restartCount | tostring", "0"),
            ],
            [
                _event("Normal", "Started", "Container started"),
                _status(
                    podstatus.containers(
                        podstatus.RUNNING_SINCE_NOW, run=podstatus.NEXT_RUN, last=podstatus.STATE_BECOMES_LAST, others="running"
                    )
                ),
            ],
            delay={"durationMilliseconds": 300},
        ),
        _stage(
            "pod-back-off",
            [
                _alive(),
                _with("path"),
                _exists(f"{_CONTAINER}.state.terminated.exitCode"),
                _not_value(f"{_CONTAINER}.restartCount | tostring", "0"),
            ],
            [
                _event("Warning", "BackOff", "Back-off restarting failed container"),
                _status(
                    podstatus.containers(
                        podstatus.backing_off(), run=podstatus.SAME_RUN, last=podstatus.STATE_BECOMES_LAST, others="running"
                    )
                ),
            ],
            delay={"durationMilliseconds": 300},
        ),
        _stage(
            "pod-restart",
            [_alive(), _with("path"), _is(f"{_CONTAINER}.state.waiting.reason", "CrashLoopBackOff")],
            [
                _event("Normal", "Started", "Container started"),
                _status(
                    podstatus.containers(
                        podstatus.RUNNING_SINCE_NOW, run=podstatus.NEXT_RUN, last=podstatus.SAME_LAST_STATE, others="running"
                    )
                ),
            ],
            delay=_back_off_delay(),
        ),
        _stage(
            "pod-complete",
            [_alive(), *_is_running(started=True), _is(".metadata.ownerReferences.[].kind", "Job")],
            [
                _status(
                    "phase: Succeeded",
                    podstatus.ready_conditions("False", "PodCompleted"),
                    podstatus.containers(podstatus.completed(), run=podstatus.SAME_RUN, others="running"),
                )
            ],
        ),
        _stage(
            "pod-delete",
            [_exists(".metadata.deletionTimestamp")],
            [{"delete": True}],
            delay={"durationMilliseconds": 0, "durationFrom": {"jq": {"expression": f'{_annotation("term", "0")} + "s"'}}},
        ),
    ]


def _stage(
    name: str, conditions: list[dict[str, Any]], steps: list[dict[str, Any]], *, delay: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchExpressions": conditions}, "steps": steps}
    if delay:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


# Conditions. Values are compared as text: a number would never match, a boolean does.


def _path(annotation: str) -> str:
    return f'.metadata.annotations["{ANNOTATION_PREFIX}{annotation}"]'


def _annotation(name: str, default: str) -> str:
    return f'({_path(name)} // "{default}")'


def _is(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _not_value(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _exists(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists"}


def _absent(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "DoesNotExist"}


def _alive() -> dict[str, Any]:
    return _absent(".metadata.deletionTimestamp")


def _with(annotation: str, *values: str) -> dict[str, Any]:
    return _is(_path(annotation), *values) if values else _exists(_path(annotation))


def _without(annotation: str) -> dict[str, Any]:
    return _absent(_path(annotation))


def _not(annotation: str, value: str) -> dict[str, Any]:
    return _not_value(_path(annotation), value)


def _is_running(*, started: bool | None = None) -> list[dict[str, Any]]:
    running = _exists(f"{_CONTAINER}.state.running.startedAt")
    return [running] if started is None else [running, _is(f"{_CONTAINER}.started", str(started).lower())]


def _choice(annotation: str, value: str) -> str:
    return f'({_annotation(annotation, value)} == "{value}")'


def _will_crash() -> str:
    crashing = f'({_annotation("path", "")} | . == "crash" or . == "oom")'
    return f"({crashing} and ({_annotation('crash-times', '999999')} | tonumber) > {_CONTAINER}.restartCount)"


# Delays.


def _seconds(annotation: str, default: str, *, since: str, relative_if: str = "false") -> dict[str, Any]:
    expression = (
        f"({_annotation(annotation, default)} | tonumber) as $seconds"
        f' | if $seconds < 3 or {relative_if} then "\\($seconds)s" else (({since} | fromdate) + $seconds + 1 | todate) end'
    )
    return {"durationMilliseconds": 0, "durationFrom": {"jq": {"expression": expression}}}


def _back_off_delay() -> dict[str, Any]:
    expression = (
        f"({_annotation('backoff', '10')} | tonumber) as $first | {_CONTAINER}"
        " | ([$first * pow(2; .restartCount - 1), 300] | min) as $seconds"
        ' | if $seconds < 3 then "\\($seconds)s" else ((.lastState.terminated.finishedAt | fromdate) + $seconds + 1 | todate) end'
    )
    return {"durationMilliseconds": 0, "durationFrom": {"jq": {"expression": expression}}}


# Steps.


def _event(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"event": {"type": kind, "reason": reason, "message": message}}


def _status(*parts: str) -> dict[str, Any]:
    return {"patch": {"subresource": "status", "root": "status", "template": "\n".join([podstatus.HEADER, *parts]) + "\n"}}
