"""Which fields of a Pod the API server knows, as it says itself."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from vllm_operator.cluster.client import ClusterClient, ClusterError
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.pod_fields import SCHEMA_PATH, PodSchema, find_unknown_fields, read_pod_schema, refuse_unknown_fields

log = logging.getLogger(__name__)

AGE_SECONDS = 3600.0
"""How old the schema may be. It has about 700 kB, and is only read where there is a `podTemplate`."""
REFUSAL_AGE_SECONDS = 60.0
"""How old it may be where it makes the difference: the API server may have been upgraded."""


class PodSchemas:
    """Reads the fields of a Pod, and remembers them."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._schema: PodSchema | None = None
        self._asked_at: float | None = None

    async def refusal(self, template: Mapping[str, Any] | None) -> Verdict | None:
        """Why the API server would refuse a Pod template of a user; None if it knows all fields, or does not tell which it knows."""
        for age in (AGE_SECONDS, REFUSAL_AGE_SECONDS) if template else ():
            fields = find_unknown_fields(template, await self._read(age))
            if not fields:
                return None
        return refuse_unknown_fields(fields) if template else None

    async def _read(self, age: float) -> PodSchema | None:
        """The fields, or what was read last where they cannot be read now; None where they never could."""
        limit = age if self._schema is not None else REFUSAL_AGE_SECONDS
        if self._asked_at is None or self._clock() - self._asked_at >= limit:
            self._asked_at = self._clock()
            try:
                self._schema = read_pod_schema(await self._client.get_path(SCHEMA_PATH)) or self._schema
            except ClusterError as error:
                log.warning("the API server does not tell which fields it knows, so slips in podTemplate are told in its words: %s", error)
        return self._schema
