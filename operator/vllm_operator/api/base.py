"""Base of all API models (camelCase on the wire, snake_case in Python, immutable), schema helpers, and string types with a format.

Each string type has a bound, a pattern, and a message about what a valid value looks like. For a pattern that does not match, the API
server quotes only the pattern, so `vllm_operator.api.crd` turns it into a CEL rule with this message. `vllm_operator.planning.validation`
checks a file with the same rule.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from vllm_operator.api.labels import NAME_LIMIT, NAME_PATTERN

DEPTH_LIMIT = 100
"""Maximum depth of an object without a schema, in levels. Deeper levels are not read."""


class Model(BaseModel):
    """An API object.

    Unknown fields are dropped, not refused: the API server has already validated the object, and a newer CRD must not
    crash an older operator.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """Return the object as JSON: camelCase keys, without unset and null fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema markers of a list whose entries are identified by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def list_set() -> dict[str, Any]:
    """Return the schema markers of a list with unique values."""
    return {"x-kubernetes-list-type": "set"}


def list_atomic() -> dict[str, Any]:
    """Return the schema markers of a list that is replaced as a whole."""
    return {"x-kubernetes-list-type": "atomic"}


def map_atomic() -> dict[str, Any]:
    """Return the schema markers of an object that is replaced as a whole, with one field owner for all of it."""
    return {"x-kubernetes-map-type": "atomic"}


def open_map() -> dict[str, Any]:
    """Return the schema markers of an object that is replaced as a whole and that the API server neither validates nor prunes."""
    return {**map_atomic(), "x-kubernetes-preserve-unknown-fields": True}


def open_objects(**fields: str) -> dict[str, Any]:
    """Return the schema of an object with these fields (name to description), which are objects that the API server does not validate."""
    return {
        "properties": {
            name: {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}
            for name, description in fields.items()
        }
    }


def checked_by(*validations: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema entry for CEL rules. Each has `rule` and `message`, and optionally `fieldPath`."""
    return {"x-kubernetes-validations": [dict(rule) for rule in validations]}


def cut_depth(value: Any, depth: int = DEPTH_LIMIT) -> Any:
    """Remove levels below the limit, because pydantic serializes at most 255 levels."""
    if isinstance(value, dict):
        return {key: cut_depth(inner, depth - 1) for key, inner in value.items()} if depth else None
    if isinstance(value, list):
        return [cut_depth(inner, depth - 1) for inner in value] if depth else None
    return value


FORM = "x-form"
"""Key of the message for a pattern in a JSON schema. Not part of the CRD."""


def form(limit: int, pattern: str, words: str, **constraints: Any) -> Any:
    """Return the form of a string: its maximum length, its pattern, and `words` that say what a valid value looks like."""
    return Field(max_length=limit, pattern=pattern, json_schema_extra={FORM: words}, **constraints)


def optional(description: str, *markers: Mapping[str, Any], **constraints: Any) -> Any:
    """Return a field that may be absent, because the operator has a default. `markers` are further entries of its schema."""
    extra = {name: value for each in markers for name, value in each.items()}
    return Field(default=None, description=description, json_schema_extra=extra or None, **constraints)


Text = Annotated[str, Field(max_length=1024)]
"""A sentence or a short paragraph."""
Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=NAME_PATTERN)]
"""The name of a Kubernetes object."""
SPACES = r" \t\n\f\r"
"""The characters that \\s matches in RE2, which the API server uses. For pydantic, \\s would match all spaces of Unicode."""
_HUB_OR_CLAIM = rf"hf://[^/{SPACES}]+/[^/{SPACES}]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^{SPACES}]*)?"
ModelURI = Annotated[
    str,
    form(
        1024,
        rf"^({_HUB_OR_CLAIM}|(s3|gs|az)://[^/{SPACES}]+/[^{SPACES}]+)$",
        "write hf://organisation/name for a model on the hub, pvc://claim/path for a model on a PersistentVolumeClaim, or "
        "s3://bucket/path, gs://bucket/path or az://container/path for a model in an object store",
    ),
]
AdapterURI = Annotated[
    str,
    form(
        1024,
        rf"^({_HUB_OR_CLAIM})$",
        "write hf://organisation/name for an adapter on the hub, or pvc://claim/path for an adapter on a PersistentVolumeClaim",
    ),
]
Image = Annotated[str, form(1024, rf"^[^{SPACES}]+$", "write an image as in a Pod, without spaces, for example vllm/vllm-openai:v0.20.1")]
Repository = Annotated[
    str,
    form(
        255,
        r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9]+([._/-]+[a-z0-9]+)*$",
        "write a repository with its registry and without a tag, for example registry.example/team/vllm-caches",
    ),
]
ArtifactReference = Annotated[
    str,
    form(
        327,
        r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9]+([._/-]+[a-z0-9]+)*@sha256:[0-9a-f]{64}$",
        "write a repository with its registry and a digest, for example registry.example/team/caches@sha256:0123 and so on",
    ),
]
EngineVersion = Annotated[
    str, form(64, r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([.+-]?[A-Za-z0-9.+-]+)?$", "write a vLLM version such as 0.20.1 (not latest or nightly)")
]
FlagName = Annotated[
    str,
    form(
        128, r"^-{0,2}[A-Za-z][A-Za-z0-9._-]*$", "write the name of one flag, such as max-model-len, and put its value into the field value"
    ),
]
CommandLineWord = Annotated[
    str,
    form(
        4096,
        r"^($|[^-]|-([^-A-Za-z]|$)|--?[A-Za-z][A-Za-z0-9._-]*(=|$))",
        "write each word by itself: --max-model-len and then 8192, or --max-model-len=8192",
    ),
]
VariableName = Annotated[
    str,
    form(
        256,
        r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "write letters, digits and _ only, not starting with a digit, and put the value into the field value",
    ),
]
Architecture = Annotated[
    str,
    form(
        16,
        r"^sm_[0-9]{2,3}$",
        "write sm_ and the compute capability without a dot: sm_90 (H100, H200), sm_100 (B200), sm_120 (RTX PRO 6000)",
    ),
]
Product = Annotated[
    str,
    form(128, r"^[A-Za-z0-9][-A-Za-z0-9_.]*$", "write the product as in the node label nvidia.com/gpu.product, for example NVIDIA-H200"),
]
MigProfile = Annotated[
    str,
    form(
        32, r"^[0-9]+g\.[0-9]+gb(\+[a-z.]+)?$", "write a MIG profile such as 1g.10gb or 3g.40gb, in lower case and without nvidia.com/mig-"
    ),
]
MigUUID = Annotated[str, form(64, r"^MIG-[0-9A-Za-z/-]+$", "write the UUID of a MIG device as nvidia-smi -L shows it; it starts with MIG-")]
GpuUUID = Annotated[
    str,
    form(
        64,
        r"^GPU-[0-9A-Za-z-]+$",
        "write the UUID of a whole GPU as nvidia-smi -L shows it; it starts with GPU- (for MIG devices, use mig.uuids)",
    ),
]
Backend = Annotated[str, form(64, r"^[A-Za-z][A-Za-z0-9_-]*$", "write Auto, or the name of one backend in vLLM (letters, digits, _ and -)")]
WeightSize = Annotated[
    str, form(32, r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$", "write a size such as 640Gi (units Ki, Mi, Gi, Ti, k, M, G, T)")
]
HostPath = Annotated[
    str, form(1024, rf"^/[^/{SPACES}:.][^{SPACES}:]*$", "write an absolute path other than /, such as /var/cache/vllm-operator")
]
VolumeSize = Annotated[
    str,
    form(32, r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$", "write a whole number with a unit, such as 20Gi (units Ki, Mi, Gi, Ti, k, M, G, T)"),
]
