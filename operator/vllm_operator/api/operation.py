"""The part of `spec` that says how replicas are run: replacement, service, start, remedies.

What is served and on which GPUs is in `vllm_operator.api.spec`, where caches and weights are kept in `vllm_operator.api.storage`.
"""

from enum import StrEnum

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import Model, checked_by


class RolloutStrategy(StrEnum):
    """How Pods are replaced."""

    AUTO = "Auto"
    RECREATE = "Recreate"
    ROLLING_UPDATE = "RollingUpdate"


class RolloutSpec(Model):
    """How Pods are replaced when the spec changes."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.ROLLING_UPDATE_FIELDS, rules.ROLLING_UPDATE_MOVES))
    strategy: RolloutStrategy | None = Field(
        default=None,
        description="Auto if absent: Recreate for one replica, else one Pod at a time without a spare GPU (maxSurge 0).",
    )
    max_surge: int | None = Field(default=None, ge=0, le=1000, description="Pods above the wanted number during a rolling update.")
    max_unavailable: int | None = Field(default=None, ge=0, le=1000, description="Pods below the wanted number during a rolling update.")


class ServiceType(StrEnum):
    """Types of the Service in front of the replicas."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServiceSpec(Model):
    """The Service in front of the replicas."""

    port: int | None = Field(default=None, ge=1, le=65535, description="Port of the Service; 8000 if absent.")
    type: ServiceType | None = Field(default=None, description="Type of the Service; ClusterIP if absent.")


class OnStall(StrEnum):
    """What to do about a start that shows no sign of progress."""

    REPORT = "Report"
    RESTART = "Restart"


class StartupSpec(Model):
    """How long a start may take."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.STALL_WITHIN_DEADLINE))
    deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=86400,
        description="A start that takes longer than this is given up by the kubelet. If absent: an hour, and what weights of "
        "`model.facts.weightSize` take at 100 MiB/s; three hours where that is not given.",
    )
    stall_seconds: int | None = Field(
        default=None,
        ge=30,
        le=86400,
        description="A start without any sign of progress for this long is reported as stalled; 600 if absent. "
        "Stages known to be silent are given their usual time first.",
    )
    on_stall: OnStall | None = Field(
        default=None,
        description="Report a stalled start, or also Restart it: its Pod is deleted, and the Deployment makes another one; "
        "Report if absent.",
    )
    max_stall_restarts: int | None = Field(
        default=None, ge=1, le=10, description="Stalled starts that are restarted at most for one spec; 2 if absent."
    )


class RemediationMode(StrEnum):
    """What to do with the known remedy of a crash."""

    OFF = "Off"
    SUGGEST = "Suggest"
    AUTO = "Auto"


class OnHopelessCrash(StrEnum):
    """What to do about a crash that no restart can cure."""

    KEEP_RESTARTING = "KeepRestarting"
    SCALE_TO_ZERO = "ScaleToZero"


class RemediationSpec(Model):
    """What the operator does about crashes."""

    mode: RemediationMode | None = Field(
        default=None, description="Off, Suggest (say what to change), or Auto (apply remedies marked safe); Suggest if absent."
    )
    max_attempts: int | None = Field(default=None, ge=1, le=10, description="Remedies tried at most for one spec; 2 if absent.")
    on_hopeless_crash: OnHopelessCrash | None = Field(
        default=None,
        description="When no replica serves and a Pod has crashed five times by a known cause that no restart cures: KeepRestarting, "
        "or ScaleToZero, which frees the GPUs until the spec changes; KeepRestarting if absent.",
    )
