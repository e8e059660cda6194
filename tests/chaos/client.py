"""A client whose requests outlive an outage of the API server."""

import asyncio
from typing import Any

import aiohttp

from support.cluster import Cluster, Manifest, RefusedError

GONE, EXISTS, INVALID = 404, 409, 422
OUTAGE_SECONDS = 120.0
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})


class PatientCluster(Cluster):
    """Repeats what an outage has broken off.

    A request may so be made twice: `EXISTS` and `GONE` can mean that the first one got through.
    """

    async def request(
        self, method: str, path: str, *, body: object = None, content_type: str = "application/json", params: dict[str, str] | None = None
    ) -> Any:
        async with asyncio.timeout(OUTAGE_SECONDS):
            while True:
                try:
                    return await super().request(method, path, body=body, content_type=content_type, params=params)
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(0.2)
                except RefusedError as refused:
                    if refused.status not in _TRY_AGAIN:
                        raise
                    await asyncio.sleep(0.2)

    async def delete_with(self, kind: str, name: str, propagation: str) -> None:
        """Deletes as `kubectl delete --cascade` does: Background, Foreground or Orphan."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        await self.request("DELETE", self._path(kind, name, None), body=body)

    async def find(self, kind: str, name: str) -> Manifest | None:
        """Returns an object, or None if there is none of this name."""
        try:
            return await self.get(kind, name)
        except RefusedError as refused:
            if refused.status != GONE:
                raise
            return None
