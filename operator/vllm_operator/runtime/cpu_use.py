"""How much CPU silent starts use, where the cluster measures it (metrics.k8s.io, as metrics-server serves it).

Asked only about Pods whose log has said nothing for as long as the user allows: a handful, and only then.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cluster.client import POD_METRICS, ClusterClient, ClusterError, Forbidden, Manifest, NotFound, Unavailable
from vllm_operator.cluster.observe import is_ready
from vllm_operator.observation.stalls import DEFAULT_STALL_SECONDS, last_sign
from vllm_operator.pods.quantities import read_cores
from vllm_operator.pods.reading import mapping, sequence
from vllm_operator.pods.view import Phase, read_pod
from vllm_operator.startup.state import StartupState

ABSENT_SECONDS = 300.0
"""A cluster that does not measure is asked again after this."""


class CpuUse:
    """Reads the metrics of Pods."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self._client = client
        self._clock = clock
        self._absent_until = 0.0

    async def read(
        self, resource: VLLMDeployment, pods: Iterable[Manifest], states: Mapping[tuple[str, int], StartupState], now: datetime
    ) -> Mapping[str, float]:
        """The CPUs that the engines of silent starts use, by uid of the Pod; empty where that cannot be known."""
        startup = resource.spec.startup
        allowed = timedelta(seconds=(startup.stall_seconds if startup else None) or DEFAULT_STALL_SECONDS)
        found: dict[str, float] = {}
        for pod in pods:
            if self._clock() < self._absent_until:
                break
            if is_ready(pod) or (view := read_pod(pod)).phase is not Phase.STARTING:
                continue
            since = last_sign(view, states.get(view.run), now)
            if since is None or now - since < allowed:
                continue
            cores = await self._ask(view.name, resource.metadata.namespace)
            if cores is not None:
                found[view.uid] = cores
        return found

    async def _ask(self, pod: str, namespace: str) -> float | None:
        try:
            metrics = await self._client.get(POD_METRICS, pod, namespace)
        except NotFound as error:
            # a Pod without metrics is named; an API that is not there is not
            if pod not in str(error):
                self._absent_until = self._clock() + ABSENT_SECONDS
            return None
        except (Forbidden, Unavailable):
            self._absent_until = self._clock() + ABSENT_SECONDS
            return None
        except ClusterError:
            return None
        engine = next((one for one in map(mapping, sequence(metrics.get("containers"))) if one.get("name") == CONTAINER), {})
        return read_cores(mapping(engine.get("usage")).get("cpu"))
