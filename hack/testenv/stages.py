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

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ANNOTATION_PREFIX = "sim.vllm-operator.dev/"

_DATA = Path(__file__).parent / "data" / "stages"
_CONTAINER = ".status.containerStatuses[0]"

_RUNNING_SINCE_NOW = "{running: {startedAt: {{ $now | Quote }}}}"
_STILL_RUNNING = "{running: {startedAt: {{ $old.state.running.startedAt | Quote }}}}"
_RUN_TIMES = (
    "containerID: {{ $old.containerID | Quote }}, startedAt: {{ $old.state.running.startedAt | Quote }}, finishedAt: {{ $now | Quote }}"
)
_CREATING = "{waiting: {reason: ContainerCreating}}"
_SAME_RUN = "$old.restartCount"
_NEXT_RUN = "add1 $old.restartCount"
_SAME_LAST_STATE = "{{ YAML (or $old.lastState dict) 3 }}"
_STATE_BECOMES_LAST = "{{ YAML $old.state 3 }}"


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
            [_status(_created("Running"), _first_conditions("True"), _containers(_RUNNING_SINCE_NOW, ready=True, others="running"))],
        ),
        _stage(
            "pod-create",
            [_alive(), _with("path"), _absent(".status.podIP")],
            [
                _event("Normal", "Pulling", "Pulling image"),
                _status(_created(), _first_conditions("False"), _containers(_CREATING, others="waiting")),
            ],
        ),
        _stage(
            "pod-start",
            [_alive(), _with("path", "ok", "crash", "oom"), _is(f"{_CONTAINER}.state.waiting.reason", "ContainerCreating")],
            [
                _event("Normal", "Started", "Container started"),
                _status("phase: Running", _containers(_RUNNING_SINCE_NOW, others="running")),
            ],
            delay=_seconds("pull", "1", since=".status.startTime"),
        ),
        _stage(
            "pod-cannot-start",
            [_alive(), _with("path", "imagepull", "waiting"), _is(f"{_CONTAINER}.state.waiting.reason", "ContainerCreating")],
            [_event("Warning", "Failed", "Error: the container cannot start"), _status(_containers(_cannot_start(), others="waiting"))],
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
                    _ready_conditions("True"),
                    _containers(_STILL_RUNNING, ready=True, run=_SAME_RUN, last=_SAME_LAST_STATE, others="running"),
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
            [_status(_no_longer_ready(), _containers(_terminated(), run=_SAME_RUN, last=_SAME_LAST_STATE, others="running"))],
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
                _status(_containers(_RUNNING_SINCE_NOW, run=_NEXT_RUN, last=_STATE_BECOMES_LAST, others="running")),
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
                _status(_containers(_backing_off(), run=_SAME_RUN, last=_STATE_BECOMES_LAST, others="running")),
            ],
            delay={"durationMilliseconds": 300},
        ),
        _stage(
            "pod-restart",
            [_alive(), _with("path"), _is(f"{_CONTAINER}.state.waiting.reason", "CrashLoopBackOff")],
            [
                _event("Normal", "Started", "Container started"),
                _status(_containers(_RUNNING_SINCE_NOW, run=_NEXT_RUN, last=_SAME_LAST_STATE, others="running")),
            ],
            delay=_back_off_delay(),
        ),
        _stage(
            "pod-complete",
            [_alive(), *_is_running(started=True), _is(".metadata.ownerReferences.[].kind", "Job")],
            [
                _status(
                    "phase: Succeeded",
                    _ready_conditions("False", "PodCompleted"),
                    _containers(_completed(), run=_SAME_RUN, others="running"),
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


# Steps, and the parts of a Pod's status as Go templates.


def _event(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"event": {"type": kind, "reason": reason, "message": message}}


def _status(*parts: str) -> dict[str, Any]:
    header = "{{ $now := Now }}{{ $pod := . }}{{ $annotations := or .metadata.annotations dict }}"
    return {"patch": {"subresource": "status", "root": "status", "template": "\n".join([header, *parts]) + "\n"}}


def _created(phase: str = "Pending") -> str:
    return f"phase: {phase}\n" + textwrap.dedent(
        """\
        startTime: {{ $now | Quote }}
        {{ if .spec.initContainers }}
        initContainerStatuses:
        {{ range .spec.initContainers }}
        - name: {{ .name | Quote }}
          image: {{ .image | Quote }}
          imageID: ""
          restartCount: 0
          ready: true
          state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
        {{ end }}
        {{ end }}
        hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
        hostIPs: [{ip: {{ NodeIPWith .spec.nodeName | Quote }}}]
        {{ $meta := .metadata }}
        {{ $ip := PodIPWith .spec.nodeName (or .spec.hostNetwork false) (or $meta.uid "") (or $meta.name "") (or $meta.namespace "") }}
        podIP: {{ $ip | Quote }}
        podIPs: [{ip: {{ $ip | Quote }}}]"""
    )


def _ready_conditions(ready: str, reason: str = "ContainersNotReady") -> str:
    return "\n".join(["conditions:", *_readiness(ready, reason)])


def _first_conditions(ready: str) -> str:
    started = [_condition(name, "True") for name in ("PodReadyToStartContainers", "Initialized")]
    return "\n".join(["conditions:", *started, *_readiness(ready)])


def _readiness(ready: str, reason: str = "ContainersNotReady") -> Sequence[str]:
    if ready == "True":
        return [_condition(name, ready) for name in ("Ready", "ContainersReady")]
    message = "containers with unready status: [{{ (index $pod.spec.containers 0).name }}]"
    return [_condition(name, ready, reason, message) for name in ("Ready", "ContainersReady")]


def _condition(name: str, status: str, reason: str = "", message: str = "") -> str:
    return f'- {{type: {name}, status: "{status}", lastTransitionTime: {{{{ $now | Quote }}}}, reason: "{reason}", message: "{message}"}}'


def _no_longer_ready() -> str:
    """Only if it was: the time of the last transition must not move while a Pod stays unready."""
    condition = '{{ range .status.conditions }}{{ if and (eq .type "Ready") (eq .status "True") }}'
    return "\n".join([condition, "conditions:", *_readiness("False"), "{{ end }}{{ end }}"])


def _containers(state: str, *, others: str, ready: bool = False, run: str = "0", last: str = "") -> str:
    """All container statuses: the first as given, the others running or waiting."""
    template = """\
        containerStatuses:
        {{ range $index, $container := .spec.containers }}
        {{ $old := dict "restartCount" 0 }}
        {{ with $pod.status.containerStatuses }}{{ $old = index . $index }}{{ end }}
        {{ if eq $index 0 }}
        {{ $run := @RUN@ }}
        - name: {{ $container.name | Quote }}
          image: {{ $container.image | Quote }}
          imageID: {{ printf "%s@sha256:%s" $container.image (sha256sum $container.image) | Quote }}
          containerID: @ID@
          ready: @READY@
          started: @READY@
          restartCount: {{ $run }}
          state: @STATE@
          lastState: @LAST@
        {{ else }}
        {{ $since := $now }}{{ with $old.state }}{{ with .running }}{{ $since = .startedAt }}{{ end }}{{ end }}
        - name: {{ $container.name | Quote }}
          image: {{ $container.image | Quote }}
          imageID: ""
          restartCount: 0
          ready: @OTHERS_RUN@
          started: @OTHERS_RUN@
          state: @OTHERS@
        {{ end }}
        {{ end }}"""
    others_run = others == "running"
    values = {
        "@RUN@": run,
        "@ID@": '""'
        if state == _CREATING
        else '{{ printf "containerd://%s" (sha256sum (printf "%s/%v" $pod.metadata.uid $run)) | Quote }}',
        "@READY@": str(ready).lower(),
        "@STATE@": state,
        "@LAST@": last or "{}",
        "@OTHERS_RUN@": str(others_run).lower(),
        "@OTHERS@": "{running: {startedAt: {{ $since | Quote }}}}" if others_run else _CREATING,
    }
    text = textwrap.dedent(template)
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _terminated() -> str:
    """How the run ended; the parts that the annotations decide are worked out first."""
    oom = "exitCode: 137, reason: OOMKilled"
    other = f"exitCode: {{{{ {_value('exit-code', '1')} }}}}, reason: {_quoted(_value('reason', 'Error'))}"
    is_oom = f'{{{{ if eq {_lookup("path")} "oom" }}}}'
    message = f"message: {_quoted(_value('message', ''))}"
    return "{terminated: {" + f"{_RUN_TIMES}, {message}, {is_oom}{oom}{{{{ else }}}}{other}{{{{ end }}}}" + "}}"


def _completed() -> str:
    return "{terminated: {exitCode: 0, reason: Completed, " + _RUN_TIMES + "}}"


def _backing_off() -> str:
    pod = "$pod.metadata.name $pod.metadata.namespace $pod.metadata.uid"
    message = f'printf "back-off restarting failed container=%s pod=%s_%s(%s)" $container.name {pod}'
    return f"{{waiting: {{reason: CrashLoopBackOff, message: {_quoted(message)}}}}}"


def _cannot_start() -> str:
    pulling = f'or {_lookup("message")} (printf "Back-off pulling image %q" $container.image)'
    image = f"{{waiting: {{reason: ImagePullBackOff, message: {_quoted(pulling)}}}}}"
    reason, message = _quoted(_value("reason", "CreateContainerConfigError")), _quoted(_value("message", ""))
    other = f"{{waiting: {{reason: {reason}, message: {message}}}}}"
    return f'{{{{ if eq {_lookup("path")} "imagepull" }}}}{image}{{{{ else }}}}{other}{{{{ end }}}}'


def _quoted(expression: str) -> str:
    return f"{{{{ {expression} | Quote }}}}"


def _lookup(annotation: str) -> str:
    return f'(index $annotations "{ANNOTATION_PREFIX}{annotation}")'


def _value(annotation: str, default: str) -> str:
    return f'or {_lookup(annotation)} "{default}"'
