"""Reads the builds of vLLM in images, with a Job each, and keeps what the Jobs find out (`rendering/image_reading.py`)."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from vllm_operator.api import reading
from vllm_operator.api.resource import Role, VLLMDeployment
from vllm_operator.caches.jobs import has_role
from vllm_operator.catalog.builds import PACKED_LIMIT
from vllm_operator.catalog.versions import Versions
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Conflict, Forbidden, Invalid, LogRequest, Manifest, NotFound
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.pods.view import PodView
from vllm_operator.rendering import image_reading
from vllm_operator.rendering.image_reading import ImageReading

log = logging.getLogger(__name__)

LOG_BYTES, LOG_SECONDS = 2 * PACKED_LIMIT, 10.0
"""Maximum size of the output of a Job, and time to read it."""


@dataclass(frozen=True, slots=True)
class BuildReader:
    """Reads builds for all VLLMDeployments. `count` is called with the verb and kind of each write."""

    client: ClusterClient
    tools_image: str
    count: Callable[[str, str], None]

    async def read(
        self, resource: VLLMDeployment, versions: Versions, records: Sequence[Manifest], pods: Iterable[PodView]
    ) -> ImageReading | None:
        """Return what is known of the build in the image; None if it needs no reading, or was not read for the current plan.

        `records` are those about its images, possibly without their data. Raises ClusterError.
        """
        image, namespace = image_reading.image_to_read(resource, versions), resource.metadata.namespace
        if image is None:
            return None
        if (record := image_reading.find_build_record(resource, image, records)) is not None:
            return image_reading.read_build_record(image, await self.client.get(kube.REVISION, record["metadata"]["name"], namespace))
        if is_in_force(resource.pinned, resource):
            return None
        job = image_reading.render_reading(resource, image, self.tools_image)
        try:
            live = await self.client.get(kube.JOB, job["metadata"]["name"], namespace)
        except NotFound:
            return ImageReading(image=image, job=job)
        if reading.controller_of(live).get("uid") != resource.metadata.uid:
            return image_reading.failed(resource, image, f"Job {job['metadata']['name']} is not controlled by this object")
        own = (it for it in pods if has_role(it.manifest, Role.READING))
        pod = next((it for it in own if reading.controller_of(it.manifest).get("uid") == live["metadata"]["uid"]), None)
        output = await self._output(namespace, pod.name) if pod is not None and image_reading.end_of(pod).get("exitCode") == 0 else None
        return image_reading.conclude(resource, image, live, pod, output)

    async def keep(self, resource: VLLMDeployment, found: ImageReading, records: Sequence[Manifest]) -> None:
        """Create the Job that reads the build, or keep what it has found out instead of earlier `records`. Raises ClusterError."""
        if found.job is not None:
            try:
                await self.client.create(found.job)
                self.count("create", kube.JOB.kind)
            except Conflict:
                pass
            except (Forbidden, Invalid) as error:
                found = image_reading.failed(resource, found.image, f"the Job that reads it is refused: {error}")
        if found.record is None:
            return
        try:
            with suppress(Conflict):
                await self.client.create(found.record)
                self.count("create", kube.REVISION.kind)
            for metadata in (record["metadata"] for record in records):
                await self.client.delete(kube.REVISION, metadata["name"], metadata["namespace"], uid=metadata["uid"])
                self.count("delete", kube.REVISION.kind)
        except (Forbidden, Invalid) as error:
            log.warning("cannot keep what image %s contains: %s", found.image, error)

    async def _output(self, namespace: str, pod: str) -> str | None:
        """Return the beginning of what a container has printed; None if its log cannot be read now."""
        request = LogRequest(namespace, pod, image_reading.READER, follow=False, limit_bytes=LOG_BYTES)
        try:
            async with asyncio.timeout(LOG_SECONDS):
                return (await kube.read_log(self.client, request, LOG_BYTES)).decode(errors="replace")
        except (ClusterError, TimeoutError) as error:
            log.warning("cannot read the log of Pod %s: %s", pod, error)
            return None
