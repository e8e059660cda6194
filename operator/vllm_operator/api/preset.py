"""VLLMPreset and ClusterVLLMPreset: defaults of a platform team for VLLMDeployments that name them in `spec.presetRef`.

Both kinds have the same spec: those parts of the spec of a VLLMDeployment that depend on the cluster and not on the model.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from vllm_operator.api import rules
from vllm_operator.api.base import Architecture, EngineVersion, Image, Model, Name, Product, checked_by, cut_depth, list_atomic, list_map
from vllm_operator.api.operation import CacheSpec, PresetKind, RolloutSpec, WeightsSpec
from vllm_operator.api.spec import AcceleratorPolicy, Distribution, EngineArgument, EnvironmentVariable, VLLMDeploymentSpec

PRESET_PLURALS = {PresetKind.VLLM_PRESET: "vllmpresets", PresetKind.CLUSTER_VLLM_PRESET: "clustervllmpresets"}
"""Name of each kind in URLs."""


class PresetEngineSpec(Model):
    """Defaults for the vLLM server."""

    image: Image | None = Field(
        default=None,
        description="Container image. `image`, `version` and `distribution` are taken together, for objects that set none of them.",
    )
    version: EngineVersion | None = Field(default=None, description="vLLM version in the image.")
    distribution: Distribution | None = Field(default=None, description="Build of vLLM in the image.")
    args: list[EngineArgument] | None = Field(
        default=None,
        max_length=64,
        description="Flags for `vllm serve`. A flag that the object sets, in `args` or `extraArgs`, is not taken.",
        json_schema_extra=list_map("name") | checked_by(*rules.ARGUMENTS),
    )
    env: list[EnvironmentVariable] | None = Field(
        default=None,
        max_length=128,
        description="Environment variables of the engine container. A variable that the object sets is not taken.",
        json_schema_extra=list_map("name"),
    )


class PresetAcceleratorSpec(Model):
    """Defaults for the choice of GPUs."""

    architectures: list[Architecture] | None = Field(
        default=None, min_length=1, max_length=16, description="Allowed GPU architectures.", json_schema_extra=list_atomic()
    )
    products: list[Product] | None = Field(
        default=None, min_length=1, max_length=32, description="Allowed GPU products.", json_schema_extra=list_atomic()
    )
    policy: AcceleratorPolicy | None = Field(default=None, description="Which GPUs are taken, as in a VLLMDeployment.")
    runtime_class_name: Name | None = Field(default=None, description="RuntimeClass of the Pods.")


class PresetSpec(Model):
    """Defaults for VLLMDeployments. A value that an object sets itself takes precedence."""

    engine: PresetEngineSpec | None = Field(default=None, description="Defaults for the vLLM server.")
    accelerator: PresetAcceleratorSpec | None = Field(default=None, description="Defaults for the choice of GPUs.")
    cache: CacheSpec | None = Field(
        default=None, description="Defaults for the storage of caches. Those of another kind of storage than the object's are not taken."
    )
    weights: WeightsSpec | None = Field(default=None, description="Defaults for the storage of weights, as those for caches.")
    rollout: RolloutSpec | None = Field(
        default=None,
        description="Defaults for the replacement of Pods. `strategy`, `maxSurge` and `maxUnavailable` are taken together, for objects "
        "that set none of them.",
    )
    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(cut_depth)] = Field(
        default=None,
        description="Pod template over which that of the object is merged: lists by name, tolerations appended.",
        json_schema_extra=VLLMDeploymentSpec.model_fields["pod_template"].json_schema_extra,
    )
