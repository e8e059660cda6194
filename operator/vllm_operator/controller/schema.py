"""The fields of a Pod that the API server accepts, from its OpenAPI schema."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from vllm_operator.api.conditions import Verdict
from vllm_operator.kube.client import ClusterClient, ClusterError
from vllm_operator.planning.pod_template import SCHEMA_PATH, PodSchema, find_unknown_fields, read_pod_schema, refuse_unknown_fields

log = logging.getLogger(__name__)

AGE_SECONDS = 3600.0
"""Maximum age of the schema. It has about 700 kB, and is read only for a VLLMDeployment with a `podTemplate`."""
REFUSAL_AGE_SECONDS = 60.0
"""Maximum age of the schema for refusing a field, because the API server may have been upgraded."""


class PodSchemas:
    """Reads and caches the fields of a Pod."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._schema: PodSchema | None = None
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def refusal(self, template: Mapping[str, Any] | None) -> Verdict | None:
        """Return why a `podTemplate` is refused; None if the API server knows all its fields, or does not publish its schema."""
        for age in (AGE_SECONDS, REFUSAL_AGE_SECONDS) if template else ():
            fields = find_unknown_fields(template, await self._read(age))
            if not fields:
                return None
        return refuse_unknown_fields(fields) if template else None

    async def _read(self, age: float) -> PodSchema | None:
        """Return the fields of the last successful read; None if there is none."""
        async with self._reading:  # concurrent callers wait for one read
            limit = age if self._schema is not None else REFUSAL_AGE_SECONDS
            if self._read_at is not None and self._clock() - self._read_at < limit:
                return self._schema
            self._read_at = self._clock()
            try:
                self._schema = read_pod_schema(await self._client.get_path(SCHEMA_PATH)) or self._schema
            except ClusterError as error:
                log.warning("the schema of Pods cannot be read, so unknown fields of podTemplate are not found beforehand: %s", error)
        return self._schema
