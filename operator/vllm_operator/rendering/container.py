"""The engine container: command, flags, environment, probes.

The command is always set, because the entry point differs between images (the module of the server, `vllm serve`, or `vllm`), while
`vllm serve MODEL` works in every version and in nvLLM. Flags and variables of the plan come first, then the user's. If both set the same,
only the user's is passed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import Plan, PlannedArgument, PlannedVariable
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import EngineArgument, EnvironmentVariable
from vllm_operator.catalog.caches import HANGS_ROOT, STACKS_ROOT, TOKEN_FILE, TOKEN_ROOT
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.planning.engine.overrides import passed_arguments, subject_of, subjects_of
from vllm_operator.planning.engine.serving import API_KEY_VARIABLE, ENDPOINT_SECONDS
from vllm_operator.planning.placement.groups import ENGINES_FLAG, LEADER_ADDRESS
from vllm_operator.pods.tools import CHECK_PERIOD_SECONDS, CHECK_PROGRAM, tool_command
from vllm_operator.rendering.resource_claim import uses_dra
from vllm_operator.rendering.volumes import render_mounts

Argument = PlannedArgument | EngineArgument
Variable = PlannedVariable | EnvironmentVariable

PORT = 8000
PORT_NAME = "http"
TOKEN_VARIABLE = "HF_TOKEN_PATH"
"""File from which the client of the hub reads the token (huggingface_hub/constants.py in all versions that vLLM 0.11 and later use). It
is a file, because crash reports print the environment and every process inherits it. A user's HF_TOKEN takes precedence.
"""
CLAIM_REQUEST = "gpu"
"""Name of the Pod's ResourceClaim in the container."""

LOG_ENVIRONMENT = (
    # By default a progress bar is one line that ends only when the bar does, and container logs contain only complete lines.
    EnvironmentVariable(name="TQDM_BAR_FORMAT", value="{l_bar}{bar:10}{r_bar}\n"),
    # At most one line per bar and second.
    EnvironmentVariable(name="TQDM_MININTERVAL", value="1"),
    EnvironmentVariable(name="PYTHONUNBUFFERED", value="1"),
)
"""Variables that make the progress of a start visible in its log."""
ADDRESS = EnvironmentVariable(name="VLLM_HOST_IP", value_from={"fieldRef": {"fieldPath": "status.podIP"}})
"""The address that an engine tells the other nodes; by default, it guesses one."""
HEALTH_PATH = "/health"
CHECK_STATE = "/tmp/.vllm-operator-engine"
"""File in which the readiness probe keeps its state."""
TLS_FLAGS = frozenset({"--ssl-certfile", "--ssl-keyfile"})
STARTUP_PERIOD_SECONDS = 5
"""Period of the startup probe, and the maximum delay until a finished start is noticed. A warm start takes half a minute."""


def render_container(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the engine container."""
    engine = resource.spec.engine
    arguments, own = render_arguments(plan.args, passed_arguments(engine)), [ADDRESS] if plan.nodes else []
    # API servers before 1.30 drop the field `sleep` of a hook
    hook = {"exec": {"command": ["sleep", str(plan.endpoint_seconds or ENDPOINT_SECONDS)]}}
    return {
        "name": CONTAINER,
        "image": plan.image,
        "command": ["vllm", "serve", plan.model],
        **({"args": arguments} if arguments else {}),
        "env": render_environment([*plan.env, *LOG_ENVIRONMENT, *own, *_credentials(resource)], (engine and engine.env) or ()),
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(resource, plan),
        **render_probes(plan, arguments),
        **({"lifecycle": {"preStop": hook}} if plan.drain_seconds else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            # to lock the memory that RDMA devices access
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if _rdma(resource, plan) else {})},
        },
        # On an error the kubelet puts the last lines of the log into the termination message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": render_mounts(resource, plan),
    }


def render_arguments(planned: Iterable[PlannedArgument], given: Sequence[EngineArgument]) -> list[str]:
    """Render flags: the plan's flags that the user does not set, then the user's in their order."""
    subjects = {subject_of(argument.name) for argument in given}
    kept: list[Argument] = [argument for argument in planned if subjects.isdisjoint(subjects_of(argument.name))]
    return [word for argument in (*kept, *given) for word in _words(argument)]


FRONT_END_FLAGS = frozenset(
    f"--{name}"
    for name in (
        *("api-server-count", "asc", "host", "port", "uds", "api-key", "root-path", "shutdown-timeout"),
        *("ssl-certfile", "ssl-keyfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers", "enable-ssl-refresh", "uvicorn-log-level"),
        *("allowed-origins", "allowed-methods", "allowed-headers", "allow-credentials", "middleware", "enable-server-load-tracking"),
    )
)
"""Flags of the HTTP server, which followers do not run. vLLM refuses --api-server-count with --headless (vllm/entrypoints/cli/serve.py)."""


def render_follower(container: Mapping[str, Any], resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    """Render the engine container of a follower from that of its leader: without a server, and so without what needs one."""
    of_leader = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
    kept = {name: value for name, value in container.items() if name not in of_leader}
    planned = [argument for argument in plan.args if normalize_flag(argument.name) not in FRONT_END_FLAGS]
    given = [each for each in passed_arguments(resource.spec.engine) if normalize_flag(each.name) not in FRONT_END_FLAGS]
    planned = [each.model_copy(update={"value": LEADER_ADDRESS}) if each.name == ENGINES_FLAG else each for each in planned]
    return {**kept, "args": [*render_arguments(planned, given), "--headless"]}


def render_environment(planned: Iterable[Variable], given: Sequence[Variable]) -> list[dict[str, Any]]:
    """Render variables: the operator's that the user does not set, then the user's in their order. The first of duplicates wins."""
    variables: dict[str, Variable] = {}
    for variable in planned:
        variables.setdefault(variable.name, variable)
    users = {variable.name for variable in given}
    return [_variable(variable) for variable in (*(it for it in variables.values() if it.name not in users), *given)]


def _resources(resource: VLLMDeployment, plan: Plan) -> dict[str, Any]:
    asked = plan.requests.to_json()
    resources: dict[str, Any] = {"requests": asked} if asked else {}
    if uses_dra(plan):
        resources["claims"] = [{"name": CLAIM_REQUEST}]
    elif plan.count:
        resources["limits"] = {plan.resource: str(plan.count)}
    if rdma := _rdma(resource, plan):
        resources["limits"] = {**resources.get("limits", {}), **rdma}
    return resources


def _rdma(resource: VLLMDeployment, plan: Plan) -> dict[str, str]:
    network = resource.spec.network
    return {network.rdma_resource: str(network.rdma_count or 1)} if plan.nodes and network and network.rdma_resource else {}


def _credentials(resource: VLLMDeployment) -> Iterator[EnvironmentVariable]:
    """Return the variables of the token and the clients' key. The key is no flag, which other users of the node could read."""
    if resource.spec.model.token_secret_ref is not None:
        yield EnvironmentVariable(name=TOKEN_VARIABLE, value=f"{TOKEN_ROOT}/{TOKEN_FILE}")
    if resource.spec.auth is not None:
        reference = resource.spec.auth.api_key_secret_ref
        yield EnvironmentVariable(name=API_KEY_VARIABLE, value_from={"secretKeyRef": {"name": reference.name, "key": reference.key}})


def _variable(variable: Variable) -> dict[str, Any]:
    if isinstance(variable, EnvironmentVariable) and variable.value_from is not None:
        return {"name": variable.name, "valueFrom": variable.value_from}
    # The API server drops an empty value, so the live object would differ from the rendered one.
    return {"name": variable.name, "value": variable.value} if variable.value else {"name": variable.name}


def _words(argument: Argument) -> list[str]:
    flag = argument.name if argument.name.startswith("-") else f"--{argument.name}"
    if argument.values:
        return [flag, *argument.values]
    if argument.value is None:
        return [flag]
    # argparse would read a value that starts with a dash as the next flag.
    return [f"{flag}={argument.value}"] if argument.value.startswith("-") else [flag, argument.value]


def render_probes(plan: Plan, arguments: Iterable[str]) -> dict[str, Any]:
    """Render the three probes of the engine container. `arguments` are those of the engine."""
    flags = {word.partition("=")[0].replace("_", "-") for word in arguments}
    scheme = "HTTPS" if not flags.isdisjoint(TLS_FLAGS) else "HTTP"

    def probe(period: int, timeout: int, failures: int, handler: Mapping[str, Any] | None = None) -> dict[str, Any]:
        get = {"path": HEALTH_PATH, "port": PORT_NAME, **({"scheme": scheme} if scheme != "HTTP" else {})}
        return {**(handler or {"httpGet": get}), "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures}

    url = f"{scheme.lower()}://127.0.0.1:{PORT}"
    check = tool_command(CHECK_PROGRAM, url, CHECK_STATE, HANGS_ROOT, STACKS_ROOT, plan.on_hang)
    return {
        "startupProbe": probe(STARTUP_PERIOD_SECONDS, 5, math.ceil(plan.deadline_seconds / STARTUP_PERIOD_SECONDS)),
        # the program itself decides after how many failures, and when an engine hangs
        "readinessProbe": probe(CHECK_PERIOD_SECONDS, CHECK_PERIOD_SECONDS - 1, 1, {"exec": {"command": check}}),
        # An engine that fails exits. This probe is for a server that hangs. It fails after ten minutes without a response, so that it does
        # not kill a busy one.
        "livenessProbe": probe(30, 30, 20),
    }
