"""Keeps the log files in step with the simulated containers.

What kwok makes of a Pod is known to the API only. This watches all Pods and does with their log files what a kubelet's
container runtime does: the log of a container that runs exists, a run that has ended is marked as ended, and the logs of a deleted Pod
go with it. So open log streams end when their containers do, whoever ended them.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from testenv.api import ApiClient, ApiError

_PODS = "/api/v1/pods"
_RETRY_AFTER = 0.2


class ContainerWatch:
    """Watches the Pods of one API server.

    Args:
        client: acts as an account that may watch all Pods.
        root: the folder of the log files.
    """

    def __init__(self, client: ApiClient, root: Path) -> None:
        self._client = client
        self._root = root

    def run(self) -> None:
        """Watches for ever, over outages of the server."""
        while True:
            try:
                self._watch_once()
            except (OSError, ApiError, ValueError) as error:
                print(f"watching Pods: {error}", file=sys.stderr, flush=True)
            time.sleep(_RETRY_AFTER)

    def _watch_once(self) -> None:
        listing = self._client.request("GET", _PODS)
        for pod in listing["items"]:
            self.pod_changed(pod)
        version = listing["metadata"]["resourceVersion"]
        for line in self._client.stream(f"{_PODS}?watch=1&resourceVersion={version}"):
            event = json.loads(line)
            if event["type"] == "DELETED":
                self.pod_gone(event["object"])
            elif event["type"] in ("ADDED", "MODIFIED"):
                self.pod_changed(event["object"])
            else:
                return

    def pod_changed(self, pod: dict[str, Any]) -> None:
        """Makes the log of the first run, and marks the runs that have ended."""
        for container in pod.get("status", {}).get("containerStatuses", []):
            folder = self._folder(pod) / str(container["name"])
            if "running" in container["state"] and container["restartCount"] == 0:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "0.log").touch()
            log = folder / f"{_last_ended_run(container)}.log"
            if log.exists():
                log.with_suffix(".exit").touch()

    def pod_gone(self, pod: dict[str, Any]) -> None:
        """Removes the logs of a deleted Pod."""
        shutil.rmtree(self._folder(pod), ignore_errors=True)

    def _folder(self, pod: dict[str, Any]) -> Path:
        return self._root / str(pod["metadata"]["namespace"]) / str(pod["metadata"]["name"])


def _last_ended_run(container: dict[str, Any]) -> int:
    """The number of the newest run that is over; -1 if none is. A container that backs off counts the run that died."""
    state, restarts = container["state"], int(container["restartCount"])
    has_ended = "terminated" in state or state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
    return restarts if has_ended else restarts - 1
