"""An observation, read once: what every condition is judged from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vllm_operator.caches.address import cache_address
from vllm_operator.messages import Messages
from vllm_operator.observation.knowledge import Knowledge
from vllm_operator.observation.observation import Observation
from vllm_operator.observation.stalls import StallCheck, check_stall
from vllm_operator.pods import reading
from vllm_operator.pods.events import EventLog, refine
from vllm_operator.pods.reading import Manifest
from vllm_operator.pods.view import Phase, PodView, read_pod
from vllm_operator.startup.state import Stage, StartupState
from vllm_operator.startup.timeline import allowed_silence_seconds, infer_silence

_ON_THE_WAY = frozenset(
    {
        Phase.UNSCHEDULABLE,
        Phase.IMAGE_PULL_FAILED,
        Phase.CONTAINER_FAILED,
        Phase.WAITING_FOR_VOLUME,
        Phase.IMAGE_PULLING,
        Phase.SCHEDULING,
        Phase.CREATING,
        Phase.STARTING,
    }
)


@dataclass(frozen=True, slots=True)
class ObservedState:
    """An observation with its Pods read.

    `pods` are all replicas, worst first; `primers` the Pods that only fill a cache. `cache_keys` are the folders of
    their caches by the uid of the Pod, where its spec tells.
    """

    observation: Observation
    knowledge: Knowledge
    log: EventLog
    pods: tuple[PodView, ...]
    primers: tuple[PodView, ...] = ()
    cache_keys: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, observation: Observation, knowledge: Knowledge) -> "ObservedState":
        """Read an observation. Pods without a name are left out: nothing can be said about them."""
        log = EventLog(observation.pod_events)
        observed = cls(observation, knowledge, log, ())
        pods, primers = (
            tuple(sorted((v for pod in found if (v := _wait_for_claim(refine(read_pod(pod), log))).name), key=observed._severity))
            for found in (observation.pods, observation.primers)
        )
        return cls(observation, knowledge, log, pods, primers, _cache_keys((*observation.pods, *observation.primers)))

    @property
    def messages(self) -> Messages:
        """The sentences."""
        return self.knowledge.messages

    @property
    def serving(self) -> int:
        """How many Pods serve."""
        return sum(view.phase is Phase.READY for view in self.pods)

    @property
    def starting(self) -> tuple[PodView, ...]:
        """Pods on their way to serving, worst first, then those that only fill a cache."""
        return tuple(view for view in (*self.pods, *self.primers) if view.phase in _ON_THE_WAY)

    @property
    def unhealthy(self) -> tuple[PodView, ...]:
        """Pods that should serve and do not, worst first. Pods that are over count only until others have taken their places."""
        living = tuple(v for v in self.pods if v.phase not in (Phase.READY, Phase.TERMINATING, Phase.FAILED))
        is_missing = self.serving + len(living) < self.observation.wanted
        over = tuple(v for v in self.pods if v.phase is Phase.FAILED) if is_missing else ()
        return tuple(sorted((*over, *living), key=self._severity))

    def state(self, view: PodView) -> StartupState | None:
        """What the log of the present run has told; None if nothing is known."""
        state = None if view.container else self.observation.startups.get(view.run)
        if state is None or view.phase is not Phase.STARTING:
            return state
        return infer_silence(state, self.observation.now, self.knowledge.startup)

    def stage(self, view: PodView) -> Stage:
        """The stage that a Pod on its way is in."""
        if not view.node and view.phase is not Phase.STARTING:
            return Stage.SCHEDULING
        if view.phase is not Phase.STARTING:
            return Stage.IMAGE_PULL
        state = self.state(view)
        return state.stage if state is not None else Stage.PROCESS_START

    def stall_check(self, view: PodView) -> StallCheck | None:
        """Whether a start is stalled; None for a Pod whose engine does not run, or serves."""
        if view.phase is not Phase.STARTING or view.container:
            return None
        startup = self.observation.resource.spec.startup
        stall_seconds = startup.stall_seconds if startup else None
        silent_seconds = allowed_silence_seconds(self.stage(view), self.knowledge.startup)
        return check_stall(
            view,
            self.state(view),
            stall_seconds=stall_seconds,
            silent_seconds=silent_seconds,
            now=self.observation.now,
            cores=self.observation.cores.get(view.uid),
        )

    def stalled(self, view: PodView) -> bool:
        """Whether a start shows no sign of progress."""
        stall_check = self.stall_check(view)
        return stall_check is not None and stall_check.stalled

    def _severity(self, view: PodView) -> tuple[int, int, float, str]:
        """Sort key: the phase, a stall among the worse ones, the earlier stage, the lesser progress, the name."""
        rank = list(Phase).index(view.phase)
        if self.stalled(view):
            rank = list(Phase).index(Phase.CONTAINER_FAILED)
        state = self.state(view)
        progress = state.progress if state is not None else None
        done = progress.completed / progress.total if progress and progress.total > 0 else 0.0
        return (rank, list(Stage).index(self.stage(view)), done, view.name)


def _cache_keys(pods: Iterable[Manifest]) -> dict[str, str]:
    addresses = {reading.text(pod, "metadata", "uid"): cache_address(pod.get("spec")) for pod in pods}
    return {uid: address.key for uid, address in addresses.items() if address is not None}


def _wait_for_claim(view: PodView) -> PodView:
    """Tell a Pod that waits for its claims from one that finds no room: a new claim is bound a moment later."""
    waits = view.phase is Phase.UNSCHEDULABLE and "persistentvolumeclaim" in view.message.lower()
    return replace(view, phase=Phase.WAITING_FOR_VOLUME) if waits else view
