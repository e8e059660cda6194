"""Presets of VLLMDeployments. They are read like all watched objects: from the object cache, or from the API server.

The CRDs of presets may be missing, for example after an upgrade of the operator alone. Then no preset is watched, and only objects that
name one are affected.
"""

from collections.abc import Iterator

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.operation import PresetReference
from vllm_operator.api.reading import mapping
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus
from vllm_operator.kube.client import CLUSTER_PRESET, PRESET, ClusterClient, ClusterError, Forbidden, Key, Kind, Manifest, NotFound
from vllm_operator.planning.presets import missing_definition, missing_preset, with_preset

KINDS = {"VLLMPreset": PRESET, "ClusterVLLMPreset": CLUSTER_PRESET}


class Presets:
    """Merges presets, and tracks which VLLMDeployments name them."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._users: dict[Key, tuple[Kind, Key]] = {}

    async def merge(self, resource: VLLMDeployment) -> VLLMDeployment | Verdict:
        """Merge the preset that an object names into its spec, or return a verdict why that is not possible. Raises ClusterError."""
        reference, key = resource.spec.preset_ref, (resource.metadata.namespace, resource.metadata.name)
        if reference is None:
            self.forget(key)
            return resource
        try:
            found = await self._find(reference, key)
        except ClusterError as error:
            unreadable = Verdict(ConditionStatus.UNKNOWN, Reason.PRESET_INVALID, f"{reference} cannot be read: {error}")
            merged = with_preset(resource, unreadable)
            if isinstance(merged, VLLMDeployment):
                return merged  # the current plan needs no preset
            raise
        return with_preset(resource, found)

    def forget(self, key: Key) -> None:
        """Remove an object that is gone or names no preset."""
        self._users.pop(key, None)

    def users_of(self, kind: Kind, preset: Key) -> Iterator[Key]:
        """Yield the VLLMDeployments that name a preset."""
        return (key for key, named in list(self._users.items()) if named == (kind, preset))

    async def _find(self, reference: PresetReference, key: Key) -> Manifest | Verdict:
        """Return the spec of a preset, or a verdict if it cannot be read. Raises ClusterError other than NotFound and Forbidden."""
        kind = KINDS[reference.kind]
        namespace = key[0] if kind.namespaced else None
        self._users[key] = kind, (namespace or "", reference.name)
        try:
            presets = await self._client.find(kind, namespace)  # the operator may list presets but not get one
        except NotFound:
            return missing_definition(reference)
        except Forbidden as error:
            message = f"The operator may not {error.verb} {error.resource}, so {reference} is unknown. Allow it in its ClusterRole."
            return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
        specs = {preset["metadata"]["name"]: mapping(preset, "spec") for preset in presets}
        return dict(specs[reference.name]) if reference.name in specs else missing_preset(reference, key[0], specs)
