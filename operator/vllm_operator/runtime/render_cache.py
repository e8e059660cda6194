"""The latest manifests of each VLLMDeployment: most reconciliations find nothing changed that they are rendered from."""

import hashlib
import marshal
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Metadata, VLLMDeployment
from vllm_operator.cluster.kept import DICTIONARY_LIMIT, compress, decompress
from vllm_operator.cluster.recent import Recent
from vllm_operator.rendering.manifests import render

MAX_OBJECTS = 8192
"""Objects whose manifests are remembered. Those of one take 0.5 KiB beside the plan, which others remember too."""
MAX_PLANS = 2
"""Plans of an object whose manifests are remembered: its plan, and the one with the commit of fetched weights."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Manifests, serialized and compressed, and what they were rendered from. `spec` is a digest."""

    spec: bytes
    plan: Plan
    packed: bytes
    dictionary: bytes


class RenderCache:
    """Renders, and remembers the latest manifests of each object. They are kept as bytes, so each caller gets manifests of its own."""

    def __init__(self) -> None:
        self._rendered: Recent[tuple[_Rendered, ...]] = Recent(MAX_OBJECTS)  # by namespace and name
        self._dictionary = b""
        """The manifests that were rendered first. The others are compressed with them."""

    def render(self, resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
        """Render all children of a VLLMDeployment, as `render` does.

        Raises:
            PodTemplateError: `spec.podTemplate` cannot be merged.
        """
        metadata = resource.metadata
        metadata = Metadata(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
        key, spec = f"{metadata.namespace}/{metadata.name}", resource.spec.model_dump_json()
        digest = hashlib.blake2b(f"{metadata.uid} {spec}".encode(), digest_size=16).digest()
        known = self._rendered.get(key) or ()
        for each in known:
            if each.spec == digest and (each.plan is plan or each.plan == plan):
                found: list[dict[str, Any]] = marshal.loads(decompress(each.packed, each.dictionary))
                return found
        # without what is not compared, so that nothing else can be rendered
        manifests = render(VLLMDeployment(metadata=metadata, spec=resource.spec), plan)
        serialized = marshal.dumps(manifests)
        self._dictionary = self._dictionary or serialized[:DICTIONARY_LIMIT]
        rendered = _Rendered(digest, plan, compress(serialized, self._dictionary), self._dictionary)
        self._rendered.put(key, (rendered, *known)[:MAX_PLANS])
        return manifests
