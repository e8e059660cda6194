"""VLLMPreset and ClusterVLLMPreset: defaults of a platform team for VLLMDeployments that name them in `spec.presetRef`.

Both kinds have the same spec: those parts of the spec of a VLLMDeployment that depend on the cluster and not on the model.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from vllm_operator.api import rules
from vllm_operator.api.base import (
    Architecture,
    EngineVersion,
    Image,
    Model,
    Name,
    Product,
    checked_by,
    cut_depth,
    list_atomic,
    list_map,
    optional,
)
from vllm_operator.api.operation import CacheSpec, PresetKind, RolloutSpec, WeightsSpec
from vllm_operator.api.spec import POD_TEMPLATE, AcceleratorPolicy, Distribution, EngineArgument, EnvironmentVariable

PRESET_PLURALS = {PresetKind.VLLM_PRESET: "vllmpresets", PresetKind.CLUSTER_VLLM_PRESET: "clustervllmpresets"}
"""Name of each kind in URLs."""


class PresetEngineSpec(Model):
    """Defaults for the vLLM server."""

    image: Image | None = optional(
        "Container image. `image`, `version` and `distribution` are taken together, for objects that set none of them."
    )
    version: EngineVersion | None = optional("vLLM version in the image.")
    distribution: Distribution | None = optional("Build of vLLM in the image.")
    args: Annotated[list[EngineArgument], Field(max_length=64)] | None = optional(
        "Flags for `vllm serve`. A flag that the object sets, in `args` or `extraArgs`, is not taken.",
        list_map("name"),
        checked_by(*rules.ARGUMENTS),
    )
    env: list[EnvironmentVariable] | None = optional(
        "Environment variables of the engine container. A variable that the object sets is not taken.", list_map("name"), max_length=128
    )


class PresetAcceleratorSpec(Model):
    """Defaults for the choice of GPUs."""

    architectures: list[Architecture] | None = optional("Allowed GPU architectures.", list_atomic(), min_length=1, max_length=16)
    products: list[Product] | None = optional("Allowed GPU products.", list_atomic(), min_length=1, max_length=32)
    policy: AcceleratorPolicy | None = optional("Which GPUs are taken, as in a VLLMDeployment.")
    runtime_class_name: Name | None = optional("RuntimeClass of the Pods.")


class PresetSpec(Model):
    """Defaults for VLLMDeployments. A value that an object sets itself takes precedence."""

    engine: PresetEngineSpec | None = optional("Defaults for the vLLM server.")
    accelerator: PresetAcceleratorSpec | None = optional("Defaults for the choice of GPUs.")
    cache: CacheSpec | None = optional(
        "Defaults for the storage of caches. Those of another kind of storage than the object's are not taken."
    )
    weights: WeightsSpec | None = optional("Defaults for the storage of weights, as those for caches.")
    rollout: RolloutSpec | None = optional(
        "Defaults for the replacement of Pods. `strategy`, `maxSurge` and `maxUnavailable` are taken together, for objects that set none "
        "of them."
    )
    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(cut_depth)] = optional(
        "Pod template over which that of the object is merged: lists by name, tolerations appended.", POD_TEMPLATE
    )
