"""Write the status of VLLMDeployments, and its events."""

import logging
from collections.abc import Callable
from datetime import datetime

from pydantic import ValidationError

from vllm_operator.api import labels
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.controller.metrics import Metrics
from vllm_operator.kube.client import ClusterClient, Manifest
from vllm_operator.kube.events import EventRecorder, Occurrence
from vllm_operator.status.events import EventDraft
from vllm_operator.status.report import Report, status_with_failure
from vllm_operator.text import wording

log = logging.getLogger(__name__)


class StatusWriter:
    """Writes differences from the last written status."""

    def __init__(self, client: ClusterClient, metrics: Metrics, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._metrics = metrics
        self._now = now
        self._recorder = EventRecorder(client)

    async def write(self, resource: VLLMDeployment, manifest: Manifest, reported: Report) -> None:
        """Write the events of a report, then the status if it changed.

        An operator that is killed in between makes the same report after its restart, and finds the events that it has written.

        Raises:
            ClusterError: The API server failed. Make the same report again.
        """
        for event in reported.events:
            await self._record(manifest, event)
        self._metrics.reported(resource.metadata.namespace, resource.metadata.name, reported.status, reported.start)
        if reported.status != resource.status:
            await self._apply(manifest, reported.status)

    async def write_failure(self, manifest: Manifest, reason: str, message: str) -> None:
        """Report a failure in the condition Ready, and keep the rest of the status. Raises ClusterError."""
        try:
            status = VLLMDeploymentStatus.model_validate(manifest.get("status") or {})
        except ValidationError:
            status = VLLMDeploymentStatus()
        metadata = manifest["metadata"]
        changed = status_with_failure(
            status,
            reason=reason,
            message=wording.clean(message),
            generation=metadata.get("generation", 0),
            now=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        self._metrics.reported(metadata["namespace"], metadata["name"], changed)
        if changed != status:
            await self._apply(manifest, changed)

    async def _record(self, manifest: Manifest, event: EventDraft) -> None:
        occurrence = Occurrence(event.type, event.reason, event.message, event.key, event.series)
        if verb := await self._recorder.record(manifest, occurrence, now=self._now()):
            self._metrics.wrote(verb, "Event")
            metadata = manifest["metadata"]
            log.info("%s: %s", event.reason, event.message, extra={"key": f"{metadata['namespace']}/{metadata['name']}"})

    async def _apply(self, manifest: Manifest, status: VLLMDeploymentStatus) -> None:
        # The API server ignores a wrong UID in a status. Only the resourceVersion protects a new object with the same name.
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
        body = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": metadata, "status": status.to_json()}
        await self._client.apply_status(body, manager=labels.STATUS_FIELD_MANAGER)
        self._metrics.wrote("status", labels.KIND)
