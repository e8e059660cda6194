"""What can be set from outside: environment variables `VLLM_OPERATOR_*`, read once at start.

Every wait and every bound of the operator is here, with its unit, its default and why it is that.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

PREFIX = "VLLM_OPERATOR_"
SERVICE_LINK = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_.+)?|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
"""Variables that Kubernetes sets in each Pod for Services of the namespace, one named vllm-operator among them."""

MAY_BE_ZERO = frozenset(
    {
        "rest_milliseconds",
        "node_cache_seconds",
        "hub_wait_seconds",
        "status_interval_seconds",
        "status_step_percent",
        "priming_patience_seconds",
        "http_port",
    }
)
"""Where zero means "at once" or "any"; of everything else the operator needs some."""


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class SettingsError(ValueError):
    """A variable holds a value that cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. A field `x_y` is read from `VLLM_OPERATOR_X_Y`."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve, comma-separated; all if empty. With a list, no cluster-wide watch is needed (nodes are still read)."""
    workers: int = 24
    """Reconciliations at a time. They wait for the API server most of the time, so more of them hide its latency."""
    rest_milliseconds: int = 200
    """How long an object rests between two reconciliations, or as long as the first one took, where that was longer, 2 s
    at most. What happens meanwhile, mostly the echo of the operator's own writes, is looked at once; a person does not
    notice."""
    resync_seconds: int = 600
    """Every VLLMDeployment is looked at this often although nothing happened: finds what no watch tells,
    such as a named claim that was bound. Spread by up to a tenth, so that not all come at once."""
    request_timeout_seconds: int = 15
    """A call to the API server that takes longer has failed. Less than the 30 s that the liveness probe allows."""
    node_cache_seconds: int = 30
    """How old the picture of the GPU nodes may be for plans in force. One that is made anew is made from a picture of a second ago."""
    retry_base_seconds: float = 0.25
    """First wait after a failure; doubled each time. Half of what a person notices."""
    retry_limit_seconds: float = 15.0
    """Longest wait between two tries: how late the operator may notice that the API server is back."""
    hub_endpoint: str = "https://huggingface.co"
    """Where config.json of a model is read, for facts that decide about kernels; empty for clusters without a way out:
    then `spec.model.facts` and the table of well-known models are all there is."""
    hub_wait_seconds: float = 3.0
    """How long a new plan waits for the hub. A plan is made once and kept: 3 s for better kernels, not more."""
    rules_config_map: str = ""
    """Name of a ConfigMap with rules of the cluster's owner, in the operator's namespace; `namespace/name` for another
    one, none if empty."""
    signatures_config_map: str = ""
    """Name of a ConfigMap with crash signatures of the cluster's owner; as for the rules."""
    lease: str = "vllm-operator"
    """The Lease that an operator holds while it writes, so that two of them never do: a name in the operator's own namespace
    (outside of a Pod in that of the kubeconfig's context), or `namespace/name`. Operators that serve the same objects must
    use the same one. Without a name there is no leader election: then nothing keeps two operators apart."""
    identity: str = ""
    """What this process is called in the Lease. A later process of the same identity takes the Lease over at once, so it
    must be sure that the earlier one has ended, as containers of one Pod are. By default the host's name and a random part."""
    log_streams: int = 200
    """Container logs followed at the same time. Each costs a connection here, at the API server and at the
    kubelet; further ones take turns."""
    log_turn_seconds: int = 20
    """How long a log is followed while others wait for their turn."""
    log_replay_bytes: int = 64 * 1024 * 1024
    """How much of an existing log is read to rebuild the state of a start. A start writes below 1 MiB."""
    log_line_bytes: int = 64 * 1024
    """A longer line is read in pieces of this size; bounds the memory of a stream."""
    status_interval_seconds: int = 10
    """Progress within a stage is written at most this often, unless it moved by `status_step_percent`."""
    status_step_percent: int = 5
    """Progress by this much is written at once."""
    priming_patience_seconds: int = 60
    """How long a Pod that fills new caches ahead of a rollout may look for a free GPU; then the rollout goes on without
    it. A scheduler that knows all nodes needs seconds, a cluster autoscaler minutes: raise it where one may help."""
    http_host: str = "0.0.0.0"
    """Address of the probes and metrics; the kubelet comes from outside of the container."""
    http_port: int = 8080
    """Port of /healthz, /readyz and /metrics; 0 lets the system choose."""
    stuck_seconds: int = 120
    """The liveness probe fails when one reconciliation takes longer than this, or when keys are ready to be reconciled and
    none has been handed out for this long. Keys that wait for their time (a retry, the next regular look) do not count."""
    log_format: LogFormat = LogFormat.TEXT
    """`text` for people, `json` for machines."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings.

        Raises:
            SettingsError: A variable cannot be used or is not known.
        """
        environment = os.environ if environment is None else environment
        known = {f"{PREFIX}{field.name.upper()}": field for field in fields(cls)}
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if not variable.startswith(PREFIX):
                continue
            if variable not in known and SERVICE_LINK.search(variable):
                continue
            if variable not in known:
                raise SettingsError(f"{variable} is not a setting. Known are: {', '.join(sorted(known))}.")
            field = known[variable]
            values[field.name] = _read(variable, text.strip(), field.default)
        return cls(**values)


def _read(variable: str, text: str, default: object) -> Any:
    """Read a value of the same type as the default."""
    match default:
        case LogFormat():
            if text not in list(LogFormat):
                raise SettingsError(f"{variable} is {text!r}; it can be {' or '.join(LogFormat)}.")
            return LogFormat(text)
        case tuple():
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case int() | float():
            try:
                number = type(default)(text)
            except ValueError:
                raise SettingsError(f"{variable} is {text!r}; it must be a number such as {default}.") from None
            may_be_zero = variable.removeprefix(PREFIX).lower() in MAY_BE_ZERO
            if not (number > 0 or (number == 0 and may_be_zero)) or number == math.inf:
                raise SettingsError(f"{variable} is {text}; it must be {'0 or more' if may_be_zero else 'more than 0'}, such as {default}.")
            return number
        case _:
            if variable == f"{PREFIX}HUB_ENDPOINT" and text and not re.fullmatch(r"https?://[^\s/@]+(/[^\s@?#]*)?", text):
                raise SettingsError(f"{variable} is {text!r}; it must be an address such as {default}, or empty.")
            if variable == f"{PREFIX}LOG_LEVEL" and text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
                raise SettingsError(f"{variable} is {text!r}; it can be DEBUG, INFO, WARNING or ERROR.")
            return text
