"""The parts of a simulated Pod's status, as the Go templates that kwok fills in.

A template sees the Pod; `$now`, `$pod` and `$annotations` are set before it (see `HEADER`), and inside of
containerStatuses also `$container`, its former status `$old` and the number of the run, `$run`.
"""

from collections.abc import Sequence
from pathlib import Path

ANNOTATION_PREFIX = "sim.vllm-operator.dev/"
HEADER = "{{ $now := Now }}{{ $pod := . }}{{ $annotations := or .metadata.annotations dict }}"

# A container's state, the number of its run, and the state before.
RUNNING_SINCE_NOW = "{running: {startedAt: {{ $now | Quote }}}}"
STILL_RUNNING = "{running: {startedAt: {{ $old.state.running.startedAt | Quote }}}}"
_RUN_TIMES = (
    "containerID: {{ $old.containerID | Quote }}, startedAt: {{ $old.state.running.startedAt | Quote }}, finishedAt: {{ $now | Quote }}"
)
CREATING = "{waiting: {reason: ContainerCreating}}"
SAME_RUN = "$old.restartCount"
NEXT_RUN = "add1 $old.restartCount"
SAME_LAST_STATE = "{{ YAML (or $old.lastState dict) 3 }}"
STATE_BECOMES_LAST = "{{ YAML $old.state 3 }}"


def created(phase: str = "Pending") -> str:
    return f"phase: {phase}\n" + _template("created")


def _template(name: str) -> str:
    return (Path(__file__).parent / "data" / "status" / f"{name}.tmpl").read_text("utf-8").removesuffix("\n")


def ready_conditions(ready: str, reason: str = "ContainersNotReady") -> str:
    return "\n".join(["conditions:", *_readiness(ready, reason)])


def first_conditions(ready: str) -> str:
    """Those, and the ones that never change afterwards."""
    started = [_condition(name, "True") for name in ("PodReadyToStartContainers", "Initialized")]
    return "\n".join(["conditions:", *started, *_readiness(ready)])


def _readiness(ready: str, reason: str = "ContainersNotReady") -> Sequence[str]:
    if ready == "True":
        return [_condition(name, ready) for name in ("Ready", "ContainersReady")]
    message = "containers with unready status: [{{ (index $pod.spec.containers 0).name }}]"
    return [_condition(name, ready, reason, message) for name in ("Ready", "ContainersReady")]


def _condition(name: str, status: str, reason: str = "", message: str = "") -> str:
    return f'- {{type: {name}, status: "{status}", lastTransitionTime: {{{{ $now | Quote }}}}, reason: "{reason}", message: "{message}"}}'


def no_longer_ready() -> str:
    """Only if it was: the time of the last transition must not move while a Pod stays unready."""
    condition = '{{ range .status.conditions }}{{ if and (eq .type "Ready") (eq .status "True") }}'
    return "\n".join([condition, "conditions:", *_readiness("False"), "{{ end }}{{ end }}"])


def containers(state: str, *, others: str, ready: bool = False, run: str = "0", last: str = "") -> str:
    """All container statuses: the first as given, the others running or waiting."""
    others_run = others == "running"
    values = {
        "@RUN@": run,
        "@ID@": '""' if state == CREATING else '{{ printf "containerd://%s" (sha256sum (printf "%s/%v" $pod.metadata.uid $run)) | Quote }}',
        "@READY@": str(ready).lower(),
        "@STATE@": state,
        "@LAST@": last or "{}",
        "@OTHERS_RUN@": str(others_run).lower(),
        "@OTHERS@": "{running: {startedAt: {{ $since | Quote }}}}" if others_run else CREATING,
    }
    text = _template("containers")
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def terminated() -> str:
    """How the run ended; the parts that the annotations decide are worked out first."""
    oom = "exitCode: 137, reason: OOMKilled"
    other = f"exitCode: {{{{ {_value('exit-code', '1')} }}}}, reason: {_quoted(_value('reason', 'Error'))}"
    is_oom = f'{{{{ if eq {_lookup("path")} "oom" }}}}'
    message = f"message: {_quoted(_value('message', ''))}"
    return "{terminated: {" + f"{_RUN_TIMES}, {message}, {is_oom}{oom}{{{{ else }}}}{other}{{{{ end }}}}" + "}}"


def completed() -> str:
    report = f"message: {_quoted(_value('report', ''))}"
    return "{terminated: {exitCode: 0, reason: Completed, " + f"{report}, {_RUN_TIMES}" + "}}"


def backing_off() -> str:
    pod = "$pod.metadata.name $pod.metadata.namespace $pod.metadata.uid"
    message = f'printf "back-off restarting failed container=%s pod=%s_%s(%s)" $container.name {pod}'
    return f"{{waiting: {{reason: CrashLoopBackOff, message: {_quoted(message)}}}}}"


def cannot_pull() -> str:
    message = f'or {_lookup("message")} (printf "Back-off pulling image %q" $container.image)'
    return f"{{waiting: {{reason: ImagePullBackOff, message: {_quoted(message)}}}}}"


def _quoted(expression: str) -> str:
    return f"{{{{ {expression} | Quote }}}}"


def _lookup(annotation: str) -> str:
    return f'(index $annotations "{ANNOTATION_PREFIX}{annotation}")'


def _value(annotation: str, default: str) -> str:
    return f'or {_lookup(annotation)} "{default}"'
