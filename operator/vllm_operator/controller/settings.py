"""Settings of the operator: environment variables `VLLM_OPERATOR_*`, read once at start.

Each has its unit, its default and the reason for it here. Delays and limits that nobody needs to change are constants of their modules.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from vllm_operator.api.labels import is_namespace
from vllm_operator.pods.tools import TOOLS_IMAGE

PREFIX = "VLLM_OPERATOR_"
SERVICE_LINK = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_.+)?|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
"""Variables that Kubernetes sets in each Pod for Services of the namespace, including one named vllm-operator."""


def _check_namespaces(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(map(is_namespace, names)):
        raise ValueError("it must be names of namespaces, separated by commas, such as team-a,team-b")
    return names


def _check_pairs(pairs: tuple[str, ...]) -> tuple[str, ...]:
    if not all(re.fullmatch("[^=!]+=[^=!]*", pair) for pair in pairs):
        raise ValueError("it must be labels, separated by commas, such as app=vllm,tier=prod")
    return pairs


def _split(given: Any) -> Any:
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Amount = Annotated[int, Field(ge=1)]


class SettingsError(ValueError):
    """A variable has an invalid value. The message names the variable and a valid value."""


class Settings(BaseModel, frozen=True):
    """All settings. A field `x_y` is read from `VLLM_OPERATOR_X_Y`."""

    namespaces: Annotated[Names, AfterValidator(_check_namespaces)] = ()
    """Namespaces to serve, separated by commas; all if empty. With a list, the operator needs no cluster-wide watch, but still reads
    nodes."""
    workers: Amount = 24
    """Number of concurrent reconciliations. They mostly wait for the API server, so a higher number hides its latency."""
    resync_seconds: Amount = 600
    """Interval of reconciliations without a watch event. They find changes that no watch reports, such as an existing
    PersistentVolumeClaim that was bound. Each interval is varied by up to 10 % to spread the load."""
    hub_endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s/@]+(/[^\s@?#]*)?)?$")] = "https://huggingface.co"
    """Model hub from which the operator reads config.json, for facts about models. Empty for clusters without access to a hub:
    the operator then uses only `spec.model.facts` and the table of well-known models."""
    hub_wait_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """Maximum time that a new plan waits for the hub. A plan is made once and pinned, so a wait of 3 s for better kernels pays."""
    rules_config_map: str = ""
    """Name of a ConfigMap with custom rules, in the operator's namespace or as `namespace/name`. None if empty."""
    signatures_config_map: str = ""
    """Name of a ConfigMap with custom crash signatures, in the operator's namespace or as `namespace/name`. None if empty."""
    instance_types_config_map: str = ""
    """Name of a ConfigMap with node pools that a cluster autoscaler would add nodes to, in the operator's namespace or as
    `namespace/name`. None if empty."""
    integrations: Names = ()
    """APIs of others that the operator may use, separated by commas: `gateway` (HTTPRoute, InferencePool), `keda` (ScaledObject). The
    operator needs the permissions for them."""
    lease: str = "vllm-operator"
    """The Lease that an operator holds while it writes, so that two of them never do: a name in the operator's own namespace
    (outside of a Pod in that of the kubeconfig's context), or `namespace/name`. Operators that serve the same objects must
    use the same one. Without a name there is no leader election: then nothing keeps two operators apart."""
    identity: str = ""
    """What this process is called in the Lease. A later process of the same identity takes the Lease over at once, so it
    must be sure that the earlier one has ended, as containers of one Pod are. By default the host's name and a random part."""
    log_streams: Amount = 200
    """Maximum number of container logs that are open at the same time. Each needs a connection to the API server, which takes 70 to 140
    KiB of memory. If more logs are wanted, they take turns of some seconds; the namespace with the fewest open logs is next."""
    priming_patience_seconds: Annotated[int, Field(ge=0)] = 60
    """Maximum time that the helper Pod that compiles before a rollout may wait for a free GPU. After it, the rollout starts without warm
    caches. The scheduler needs seconds. A cluster autoscaler needs minutes, so raise the value if you use one."""
    artifact_repositories: Names = ()
    """Repositories from which caches may be fetched and to which they may be published, separated by commas, each with everything below
    it: `registry.example/team`. All if empty. An artifact is code that runs in engines."""
    artifact_naming: Literal["tag", "digest"] = "tag"
    """With `digest`, `spec.cache.artifact.reference` is required, so that whoever can push to the repository cannot change what runs.
    With `tag`, `repository` is enough."""
    tools_image: str = TOOLS_IMAGE
    """The operator's own image. Pods of VLLMDeployments get the operator's programs from it, so their nodes must be able to pull it. It is
    part of a plan: a new value applies to new plans."""
    observe: bool = False
    """Whether Pods in which other tools run vLLM get events about stage, crash, hang and cold caches. The operator changes nothing else."""
    observe_namespaces: Annotated[Names, AfterValidator(_check_namespaces)] = ()
    """Namespaces in which Pods are observed, separated by commas; all if empty. Pods are listed every 10 s, so name namespaces or labels in
    a large cluster."""
    observe_labels: Annotated[Names, AfterValidator(_check_pairs)] = ()
    """Labels of the Pods that are observed, separated by commas, such as `app=vllm,tier=prod`; any if empty."""
    observe_pods: Amount = 200
    """Maximum number of observed Pods: the newest of each namespace, the namespaces in turns. Their logs are read in addition to
    `log_streams`, with the same limit."""
    http_host: str = "0.0.0.0"
    """Listen address of the probes and metrics. The kubelet connects from outside of the container."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /healthz, /readyz and /metrics. With 0, the system chooses a port."""
    log_format: Literal["text", "json"] = "text"
    """Log format: `text` or `json`."""
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)] = "INFO"
    """Log level: DEBUG, INFO, WARNING or ERROR."""

    @property
    def scope(self) -> str:
        """What is served, for messages."""
        return f"the namespaces {', '.join(self.namespaces)}" if self.namespaces else "all namespaces"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read environment variables, by default those of the process. Raises SettingsError for an unknown one or an invalid value."""
        known = {f"{PREFIX}{name.upper()}": name for name in cls.model_fields}
        given = {name: text for name, text in (os.environ if environment is None else environment).items() if name.startswith(PREFIX)}
        if unknown := [name for name in given if name not in known and not SERVICE_LINK.search(name)]:
            raise SettingsError(f"{unknown[0]} is not a setting. Known are: {', '.join(sorted(known))}.")
        try:
            return cls.model_validate({known[variable]: text.strip() for variable, text in given.items() if variable in known})
        except ValidationError as error:
            first = error.errors()[0]
            name, problem = str(first["loc"][0]), re.sub("^(Input|String) should", "it must", first["msg"]).removeprefix("Value error, ")
            default = cls.model_fields[name].default
            such = f", such as {default}" if default else ""
            raise SettingsError(f"{PREFIX}{name.upper()} is {first['input']!r}; {problem}{such}.") from None
