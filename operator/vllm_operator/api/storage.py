"""Where an engine keeps its files between starts: the part of `spec` about volumes."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import Model, Name, checked_by
from vllm_operator.api.fields import HostPath, VolumeSize


class Storage(StrEnum):
    """What holds files between starts."""

    SHARED_CLAIM = "SharedClaim"
    CLAIM_PER_REPLICA = "ClaimPerReplica"
    HOST_PATH = "HostPath"
    EMPTY_DIR = "EmptyDir"


class AccessMode(StrEnum):
    """Access modes of a PersistentVolumeClaim."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ClaimVolume(Model):
    """A claim that is created."""

    size: VolumeSize | None = Field(
        default=None,
        description="Size of the claim. If absent: 20Gi for caches, for weights what the model needs. "
        "May grow later where the storage class allows it.",
    )
    storage_class_name: str | None = Field(default=None, max_length=253, description="Storage class; the cluster's default if absent.")
    access_mode: AccessMode | None = Field(
        default=None, description="ReadWriteMany lets replicas on several nodes share the claim; ReadWriteOnce if absent."
    )


class OnDelete(StrEnum):
    """What becomes of a claim when the VLLMDeployment is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Where files are kept between starts."""

    storage: Storage | None = Field(
        default=None,
        description="SharedClaim: one claim for all replicas. ClaimPerReplica: each Pod has a claim of its own, empty at first and gone "
        "with the Pod. HostPath: a directory of each node, which stays there. EmptyDir: nothing outlives the Pod. "
        "If absent: HostPath where `hostPath` is given, else SharedClaim.",
    )
    claim_name: Name | None = Field(
        default=None, description="An existing PersistentVolumeClaim. May be shared by several VLLMDeployments."
    )
    volume: ClaimVolume | None = Field(default=None, description="The claim that is created, with SharedClaim or ClaimPerReplica.")
    host_path: HostPath | None = Field(
        default=None, description="Directory of each node, with HostPath; /var/cache/vllm-operator if absent. It is created where missing."
    )
    on_delete: OnDelete | None = Field(
        default=None,
        description="Keep or delete the shared claim that the operator created, when this object is deleted; Retain if absent.",
    )


class Priming(StrEnum):
    """Whether one Pod fills an empty cache before the others start."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class CacheSpec(StorageSpec):
    """Where compiled kernels and graphs are kept between starts."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE))
    priming: Priming | None = Field(default=None, description="Fill an empty cache with one Pod before the others start; Auto if absent.")


class WeightsSpec(StorageSpec):
    """Where downloaded weights are kept between starts, apart from the caches."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE))
