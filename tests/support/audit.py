"""What was asked of the API server, from its audit log."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the API server answered."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    agent: str
    status: int
    received: str
    """When it arrived, in UTC: the texts of two times compare as the times do."""


class AuditTrail:
    """The requests since the trail was made, or since it was last marked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.mark()

    def mark(self) -> None:
        """Forgets what has been asked so far."""
        self._position = self._path.stat().st_size

    def requests(self, *, agent: str = "", user: str = "", namespace: str = "") -> list[Request]:
        """Returns requests, of the user agents and users whose names contain these, in a namespace if one is given."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines = file.read().rpartition(b"\n")[0].splitlines()
        found = [_request(json.loads(line)) for line in lines]
        return [it for it in found if agent in it.agent and user in it.user and (not namespace or it.namespace == namespace)]

    def writes(self, *, agent: str = "", user: str = "", namespace: str = "") -> list[Request]:
        """Returns those of the requests that change something."""
        return [it for it in self.requests(agent=agent, user=user, namespace=namespace) if it.verb in _WRITES]


def _request(event: dict[str, Any]) -> Request:
    target = event.get("objectRef", {})
    return Request(
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=event["user"].get("username", ""),
        agent=event.get("userAgent", ""),
        status=event.get("responseStatus", {}).get("code", 0),
        received=event.get("requestReceivedTimestamp", ""),
    )
