"""The VLLMDeployment object as a whole."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from vllm_operator.api.base import Model
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import VLLMDeploymentStatus


class Metadata(Model):
    """The part of ObjectMeta that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class VLLMDeployment(Model):
    """A VLLMDeployment as read from the API server or from a file."""

    metadata: Metadata
    spec: VLLMDeploymentSpec
    status: VLLMDeploymentStatus = Field(default_factory=VLLMDeploymentStatus)

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> "VLLMDeployment":
        """Parse a manifest.

        Raises:
            pydantic.ValidationError: The manifest does not match the schema.
        """
        return cls.model_validate(manifest)
