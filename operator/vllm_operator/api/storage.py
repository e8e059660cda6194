"""The part of `spec` about volumes: storage of caches and weights between starts."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import Model, Name, checked_by
from vllm_operator.api.fields import HostPath, VolumeSize


class Storage(StrEnum):
    """Kind of volume that stores files between starts."""

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
    """A PersistentVolumeClaim that the operator creates."""

    size: VolumeSize | None = Field(
        default=None,
        description="Requested size. Default: 20Gi for caches; for weights, a size that fits the model. "
        "It can be increased later if the storage class allows volume expansion.",
    )
    storage_class_name: str | None = Field(
        default=None, max_length=253, description="StorageClass. Default: the default StorageClass of the cluster."
    )
    access_mode: AccessMode | None = Field(
        default=None, description="Access mode. Replicas on several nodes need ReadWriteMany. Default: ReadWriteOnce."
    )


class OnDelete(StrEnum):
    """What happens to a PersistentVolumeClaim when the VLLMDeployment is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Storage of files between starts."""

    storage: Storage | None = Field(
        default=None,
        description="SharedClaim: one PersistentVolumeClaim for all replicas. ClaimPerReplica: an empty one for each Pod, deleted with the "
        "Pod. HostPath: a directory on each node, which remains when the Pod is deleted. EmptyDir: deleted with the Pod. "
        "Default: HostPath if `hostPath` is set, else SharedClaim.",
    )
    claim_name: Name | None = Field(
        default=None, description="Name of an existing PersistentVolumeClaim to use. Several VLLMDeployments can share it."
    )
    volume: ClaimVolume | None = Field(
        default=None, description="PersistentVolumeClaim that the operator creates for SharedClaim or ClaimPerReplica."
    )
    host_path: HostPath | None = Field(
        default=None, description="Directory on the nodes for HostPath. It is created if missing. Default: /var/cache/vllm-operator."
    )
    on_delete: OnDelete | None = Field(
        default=None,
        description="Retain or Delete the PersistentVolumeClaim that the operator created for SharedClaim when this object is deleted. "
        "Default: Retain.",
    )


class Priming(StrEnum):
    """Whether one Pod fills empty caches before the other Pods start."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class CacheSpec(StorageSpec):
    """Storage of compiled kernels and graphs between starts."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE))
    priming: Priming | None = Field(
        default=None, description="Whether one Pod fills empty caches before the other Pods start. Default: Auto."
    )


class WeightsSpec(StorageSpec):
    """Storage of downloaded weights between starts, separate from the caches."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE))
