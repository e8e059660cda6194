"""`spec.adapters` of a VLLMDeployment: LoRA adapters that are served in addition to the model."""

from typing import Annotated

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import AdapterURI, Model, Name, checked_by, form

AdapterName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        json_schema_extra=form("use letters, digits, dots, dashes and underscores"),
    ),
]


class SecretReference(Model):
    """A Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")


class SecretKeyReference(Model):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(default="token", min_length=1, max_length=253, description="Key in the Secret. Default: token.")


class AdapterSpec(Model):
    """A LoRA adapter. Clients use it by its name, as they use a model."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.REVISION_ON_HUB))
    name: AdapterName = Field(description="Model name in client requests.")
    uri: AdapterURI = Field(
        description="Location of the adapter: `hf://organisation/name` on the model hub, or `pvc://claim/path` on a "
        "PersistentVolumeClaim in the same namespace.",
    )
    revision: str | None = Field(default=None, min_length=1, max_length=256, description="Branch, tag or commit on the hub.")
    token_secret_ref: SecretKeyReference | None = Field(
        default=None, description="Secret with the token for this adapter on the hub. Default: `model.tokenSecretRef`."
    )
    rank: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Rank of the adapter. Default: the rank in its adapter_config.json, if the operator can read it on the hub.",
    )
