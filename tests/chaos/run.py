"""One run: things happen at random for a while, then everything must settle, and nothing may be lost, foreign or unexplained."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import aiohttp
import yaml

from chaos.acts import Acts, draw
from chaos.client import EXISTS, GONE, INVALID, PatientCluster
from chaos.foreign import ForeignObjects, look_alikes
from chaos.journal import Journal
from chaos.operators import Operators, writes_beside_the_holder
from chaos.outages import Outages
from chaos.pods import ENGINE, FULL_VOLUME, Pods, crashes
from chaos.statuses import serves_for, unexplained, untrue
from chaos.updates import lost_plan, lost_updates
from chaos.users import SERVABLE, Users
from chaos.volumes import UNMARKED, Volumes
from support.audit import AuditTrail
from support.cluster import Cluster, Manifest, RefusedError, Simulator, is_ready
from support.operator_process import OperatorProcess, condition, has
from vllm_operator.api import labels
from vllm_operator.caches.address import folders_of

NAMES = ("first", "second", "third")
TAKEN = "taken"
"""A VLLMDeployment whose claim's name a user's own claim has."""
GENERATIONS: tuple[Manifest, ...] = ({"engine": {"version": "0.16.0"}}, {"engine": {"version": "0.24.0"}}, {})
"""Specs that run one after the other first, so that the volumes hold caches that nobody uses any more."""
OUTDATED: Manifest = {"engine": {"version": "0.18.0"}}
"""A spec that nothing else in the run has: its caches are unused once it has changed."""
CLEANED_WITHIN = 120.0
PAUSES = (0.0, 0.0, 0.1, 0.5, 2.0)
SETTLED_WITHIN = 150.0
IDLE_SECONDS = 6.0
EXPECTED = (GONE, EXISTS, INVALID)
FORBIDDEN_WORDS = ("Traceback", "never retrieved", "never awaited", "OperatorFailed")
CHILDREN = ("Deployment", "ControllerRevision", "ReplicaSet", "Service", "Pod", "Job", "PersistentVolumeClaim", "ResourceClaimTemplate")


class Run:
    """A run on the namespace of a test.

    Args:
        client: A client of the namespace.
        operators: One that serves it, and a second one that is not started yet, each with an account of its own.
        seed: What happens is drawn from it: the same for each run, although not what it meets.
        folder: For the volumes, and for the state if something is wrong.
        nodes: A node that may be lost, and one that stays.
        node_kind: Their kind of machine.
    """

    def __init__(
        self,
        client: PatientCluster,
        operators: tuple[OperatorProcess, OperatorProcess],
        *,
        seed: int,
        folder: Path,
        nodes: tuple[str, str],
        node_kind: str,
    ) -> None:
        self.journal = Journal(seed)
        self._client = client
        self._folder = folder
        self._steady = nodes[1]
        self._fields_of_others = ForeignObjects(client)
        self._users = Users(client, self._fields_of_others, self.journal, NAMES)
        self._pods = Pods(client, Simulator(client))
        self._outages = Outages(client, self.journal, nodes[0], node_kind)
        self._operators = Operators(*operators, self.journal)
        self.volumes = Volumes(client, self.journal, folder / "volumes")
        self._audit = AuditTrail(client.environment.control_plane.audit_log)
        self._accounts = f"system:serviceaccount:{client.namespace}:"

    async def run(self, seconds: float) -> None:
        """Runs for so long, settles, and checks; what is wrong is in the journal afterwards."""
        try:
            await self._prepare()
            async with self._background():
                await self._act(seconds)
                await self._expire_watches()
                await self._settle()
                await self._check_settled()
                await self._check_a_crash_is_named()
                await self._check_a_full_volume_is_cleaned()
                if self.journal.violations:
                    await self._save_state()
                await self._check_deletion()
            self.journal.violate(*writes_beside_the_holder(self._audit.writes(user=self._accounts)))
            self._check_log()
        finally:
            (self._folder / "acts.txt").write_text(self.journal.report())
            for name, log in zip(("operator", "second-operator"), self._operators.logs, strict=True):
                (self._folder / f"{name}.log").write_text(log)
            shutil.copy(self._client.environment.control_plane.audit_log, self._folder / "audit.log")

    def summary(self) -> str:
        """The run in one line."""
        kills = sum(" kill " in line for line in self.journal.lines)
        found = len(self.journal.violations)
        return (
            f"seed {self.journal.seed}: {found} violations, {self.journal.elapsed():.0f} s, {kills} kills, "
            f"{self._operators.starts} starts of operators, {self.volumes.removed} directories cleaned"
        )

    async def _prepare(self) -> None:
        for manifest in look_alikes(NAMES[0], TAKEN, self._steady):
            await self._fields_of_others.create(manifest)
        await self._pods.heal()
        for spec in GENERATIONS:
            for name in (*NAMES, TAKEN):
                await self._users.apply(name, spec)
            for name in NAMES:
                await self._client.wait_for("VLLMDeployment", name, _serves, within=SETTLED_WITHIN)
        for name in NAMES:
            record = {f"{labels.USED_ANNOTATION_PREFIX}{UNMARKED}": "2026-01-01T00:00:00Z"}
            await self._client.patch("PersistentVolumeClaim", f"{name}-cache", {"metadata": {"annotations": record}})

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        """Cleaning Pods run, and statuses are read again and again; an error of either ends the run."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.volumes.run()), group.create_task(self._watch_statuses())]
            yield
            for task in tasks:
                task.cancel()

    async def _watch_statuses(self) -> None:
        while True:
            for resource in await self._client.list_all("VLLMDeployment"):
                self.journal.violate(*unexplained(resource))
            await asyncio.sleep(0.5)

    async def _act(self, seconds: float) -> None:
        acts: Acts = {**self._users.acts, **self._pods.acts, **self._operators.acts, **self._outages.acts}
        number, end = 0, self.journal.elapsed() + seconds
        while self.journal.elapsed() < end:
            # each act draws from a source of its own, so that what one meets does not change the next
            random = Random(f"{self.journal.seed}/{number}")
            act = draw(acts, random)
            await self._operators.check()
            try:
                self.journal.note(await act(random))
            except RefusedError as refused:
                if refused.status not in EXPECTED:
                    raise
                self.journal.note(f"{act.__name__.strip('_').replace('_', ' ')}: refused, {refused}")
            await asyncio.sleep(random.choice(PAUSES))
            number += 1
            if number % 10 == 0:
                self.journal.violate(*await self._fields_of_others.check())
        self.journal.note(f"{number} acts are done")

    async def _expire_watches(self) -> None:
        """The operator must see `410 Gone` at least once: its watches begin anew, with a list."""
        await self._outages.end()
        await self._operators.end()
        before = self._lists()
        await self._users.apply(NAMES[0], {})
        path = f"/apis/vllm-operator.dev/v1alpha1/namespaces/{self._client.namespace}/vllmdeployments"
        version = (await self._client.request("GET", path))["metadata"]["resourceVersion"]
        await self._client.patch("VLLMDeployment", NAMES[0], {"metadata": {"annotations": {"example.com/changed": "before"}}})
        # What no watch of the operator sees: otherwise one that is up to date would not be too old.
        await self._client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "history-"}})
        await self._outages.expire_watches()
        if '"code":410' not in await self._client.read(path, watch="1", resourceVersion=version, timeoutSeconds="1"):
            self.journal.violate("a watch from before the history was compacted was served")
        try:
            async with asyncio.timeout(60):
                while self._lists() == before:
                    await self._operators.check()  # the outage may have cost the first one the Lease, so that it ends
                    await asyncio.sleep(0.5)
        except TimeoutError:
            self.journal.violate("no watch began anew after 410 Gone")
        self.journal.note(f"watches began anew after 410 Gone; {self._lists()} lists by {self._operators.starts} operators")

    def _lists(self) -> int:
        """How often watches of the operator have listed VLLMDeployments."""
        asked = self._audit.requests(agent="vllm-operator/", user=self._accounts)
        return sum(request.verb == "list" and request.resource == "vllmdeployments" for request in asked)

    async def _settle(self) -> None:
        """Puts right what can be, and updates each spec a last time, some of them several times in a row."""
        random = Random(f"{self.journal.seed}/end")
        await self._outages.end()
        await self._operators.end()
        # after outages the garbage collector may wait for many minutes before it tries again
        await self._outages.restart_controllers()
        await self._users.settle()
        await self._pods.heal()
        for number, name in enumerate(NAMES):
            for spec in random.choices(SERVABLE, k=random.choice((1, 2, 3))):
                manifest = await self._users.apply_last(name, spec)
            if number == 1:
                await self._operators.kill_first(new_pod=random.choice((True, False)))
            token = f"{self.journal.seed} at the end"
            await self._client.patch("VLLMDeployment", name, {"metadata": {"annotations": {"vllm-operator.dev/replan": token}}})
            self.journal.note(f"the last spec of {name}: {manifest['spec']}")
        for name in NAMES:
            try:
                await self._client.wait_for("VLLMDeployment", name, _serves, within=SETTLED_WITHIN)
            except AssertionError:
                resource = await self._client.get("VLLMDeployment", name)
                self.journal.violate(f"{name} does not serve at the end: {_conditions(resource)}")
        await self._until_idle()

    async def _until_idle(self) -> None:
        trail = AuditTrail(self._client.environment.control_plane.audit_log)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(90):
                while True:
                    trail.mark()
                    await asyncio.sleep(IDLE_SECONDS)
                    if not self._writes(trail):
                        return
        self.journal.violate(f"it goes on writing although nothing happens: {sorted(self._writes(trail))}")

    def _writes(self, trail: AuditTrail) -> set[tuple[str, str, str]]:
        """What the operator has written; the Lease is renewed for as long as it runs."""
        asked = trail.writes(user=self._accounts, namespace=self._client.namespace)
        return {(it.verb, it.resource, it.name) for it in asked if it.resource != "leases"}

    async def _check_settled(self) -> None:
        nodes, pods = await self._client.list_all("Node"), await self._client.list_all("Pod")
        live = [child for kind in ("Deployment", "Service", "ControllerRevision") for child in await self._listed(kind)]
        for name in NAMES:
            resource = await self._client.get("VLLMDeployment", name)
            self.journal.violate(*lost_updates(resource, nodes, live), *lost_plan(resource, live))
            self.journal.violate(*untrue(resource, serves_for(resource, pods)))
        taken = await self._client.get("VLLMDeployment", TAKEN)
        self.journal.violate(*untrue(taken, serves_for(taken, pods)))
        await self._check_foreign()

    async def _listed(self, kind: str) -> list[Manifest]:
        return [{"kind": kind, **item} for item in await self._client.list_all(kind)]

    async def _check_foreign(self) -> None:
        self.journal.violate(*await self._fields_of_others.check(), *self.volumes.changed())
        plurals = {(f"{kind.lower()}s", name): kind for kind, name in self._fields_of_others.names()}
        for request in self._audit.writes(user=self._accounts, namespace=self._client.namespace):
            if request.status < 300 and (request.resource, request.name) in plurals and not request.name.startswith(NAMES):
                self.journal.violate(f"the operator did {request.verb} the user's {request.resource} {request.name}")

    async def _check_a_crash_is_named(self) -> None:
        random = Random(f"{self.journal.seed}/crash")
        name, recording = random.choice(NAMES), random.choice(list(crashes()))
        resource = await self._client.get("VLLMDeployment", name)
        pods = serves_for(resource, await self._client.list_all("Pod", selector=ENGINE))
        if (pod := await self._fresh_pod(resource, pods)) is None:
            return
        self.journal.note(f"crash Pod {pod} of {name} for good with {recording}")
        await self._pods.crash(pod, recording, times=2, backoff=60)
        reason = crashes()[recording] if crashes()[recording] != "Unknown" else "UnknownCrash"
        try:
            await self._client.wait_for("VLLMDeployment", name, lambda r: _has_crashed(r, reason), within=60)
        except AssertionError:
            resource = await self._client.get("VLLMDeployment", name)
            self.journal.violate(f"the crash {reason} of {pod} is not told: {_conditions(resource)}")
        await self._pods.heal()

    async def _check_a_full_volume_is_cleaned(self) -> None:
        random = Random(f"{self.journal.seed}/full")
        name = random.choice(NAMES)
        keys = []
        for spec in (OUTDATED, {}):
            # without priming: a Pod that fills the cache first may wait for a GPU, and the rollout for it, for five minutes
            await self._users.apply(name, {**spec, "cache": {"priming": "Never"}})
            resource = await self._client.wait_for("VLLMDeployment", name, _serves, within=SETTLED_WITHIN)
            keys.append(resource["status"]["cache"]["key"])
        claim = await self._client.get("PersistentVolumeClaim", f"{name}-cache")
        pods = serves_for(resource, await self._client.list_all("Pod", selector=ENGINE))
        if (pod := await self._fresh_pod(resource, pods)) is None:
            self.journal.violate(f"{name} serves without a Pod")
            return
        jobs = await self._users.delete_cleaning_jobs(name)
        self.volumes.is_disturbed = False  # what must be removed is nobody's, and the program ends by itself
        await self._until_unused(name, keys[0])
        recording = random.choice([each for each, crash in crashes().items() if crash == FULL_VOLUME])
        self.journal.note(f"Pod {pod} of {name} finds its volume full for good ({recording}); without the Jobs {jobs}")
        await self._pods.crash(pod, recording, times=2, backoff=60)
        try:
            async with asyncio.timeout(CLEANED_WITHIN):
                while not self.volumes.has_removed(claim["metadata"]["uid"], keys[0]):  # noqa: ASYNC110 - a directory tells nobody
                    await asyncio.sleep(0.5)
        except TimeoutError:
            resource = await self._client.get("VLLMDeployment", name)
            self.journal.violate(f"{keys[0]} stays on the full volume of {name}: {_conditions(resource)}")
        await self._pods.heal()

    async def _until_unused(self, name: str, key: str) -> None:
        """Waits until no Pod uses the directory of a cache any more, and no cleaning Pod is left."""
        async with asyncio.timeout(SETTLED_WITHIN):
            while True:
                pods = await self._client.list_all("Pod", selector=f"app.kubernetes.io/instance={name}")
                cleaners = [pod for pod in pods if pod["metadata"]["labels"].get(labels.COMPONENT_LABEL) == "cleaning"]
                if not cleaners and not any(key in folders_of(pod["spec"], f"{name}-cache") for pod in pods):
                    return
                await asyncio.sleep(0.2)

    async def _fresh_pod(self, resource: Manifest, pods: Sequence[Manifest]) -> str | None:
        """Replaces a Pod by one that has never crashed, and returns its name; None if nothing serves."""
        known = {pod["metadata"]["name"] for pod in pods}
        ready = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
        if not ready:
            return None
        await self._client.delete("Pod", ready[0])
        async with asyncio.timeout(SETTLED_WITHIN):
            while True:
                pods = serves_for(resource, await self._client.list_all("Pod", selector=ENGINE))
                if fresh := [pod["metadata"]["name"] for pod in pods if is_ready(pod) and pod["metadata"]["name"] not in known]:
                    return str(fresh[0])
                await asyncio.sleep(0.2)

    async def _check_deletion(self) -> None:
        """Everything of the operator goes with its VLLMDeployments, but claims that are to be retained."""
        for number, name in enumerate((*NAMES, TAKEN)):
            await self._client.delete_with("VLLMDeployment", name, ("Background", "Foreground")[number % 2])
        await self._outages.restart_controllers()  # for the same reason as before
        left: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(90):
                while True:
                    if not (left := await self._leftovers()):
                        break
                    await asyncio.sleep(1)
        if left:
            self.journal.violate(f"left behind after deletion: {', '.join(left)}")
        await self._check_foreign()

    async def _leftovers(self) -> list[str]:
        selector = "app.kubernetes.io/name=vllm"
        found = [
            item for kind in CHILDREN for item in await self._client.list_all(kind, selector=selector) for item in [{"kind": kind, **item}]
        ]
        staying = {(item["kind"], item["metadata"]["name"]) for item in found if self._may_stay(item)}
        left = [item for item in found if not (self._is_foreign(item) or self._may_stay(item) or staying.intersection(_owners(item)))]
        return sorted(f"{item['kind']} {item['metadata']['name']}" for item in left)

    def _is_foreign(self, item: Manifest) -> bool:
        """Whether an object is a user's, or a controller has made it for one of these."""
        return not self._fields_of_others.names().isdisjoint([(item["kind"], item["metadata"]["name"]), *_owners(item)])

    def _may_stay(self, item: Manifest) -> bool:
        """Whether users have wanted an object to outlive its VLLMDeployment."""
        instance = item["metadata"]["labels"].get("app.kubernetes.io/instance")
        if item["kind"] == "PersistentVolumeClaim":
            return not item["metadata"].get("ownerReferences")
        return (
            item["kind"] in ("ControllerRevision", "Job", "Pod", "ReplicaSet")
            and instance in self._users.orphaned
            and not item["metadata"].get("ownerReferences")
        )

    def _check_log(self) -> None:
        for log in self._operators.logs:
            lines = log.splitlines()
            for number, line in enumerate(lines):
                if any(word in line for word in FORBIDDEN_WORDS):
                    self.journal.violate("an operator's log has\n" + "\n".join(lines[max(0, number - 3) : number + 25]))
                    break

    async def _save_state(self) -> None:
        """Writes all objects into the folder."""
        kinds = ("VLLMDeployment", *CHILDREN, "Event", "Node")
        state = [{"kind": kind, **item} for kind in kinds for item in await self._client.list_all(kind)]
        (self._folder / "state.yaml").write_text(yaml.safe_dump_all(state))


def _serves(resource: Manifest) -> bool:
    status = resource.get("status", {})
    return bool(status.get("observedGeneration") == resource["metadata"]["generation"] and has("Ready", "True")(resource))


def _conditions(resource: Manifest) -> str:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return "; ".join(f"{it['type']}={it['status']} {it['reason']}: {it['message']}" for it in conditions)


def _has_crashed(resource: Manifest, reason: str) -> bool:
    crashed = condition(resource, "Crashed")
    return crashed.get("status") == "True" and crashed.get("reason") == reason and has("Ready", "False")(resource)


@contextlib.asynccontextmanager
async def patient(cluster: Cluster) -> AsyncIterator[PatientCluster]:
    """A client of the same namespace whose requests outlive an outage."""
    async with aiohttp.ClientSession() as session:
        yield PatientCluster(cluster.environment, session, cluster.namespace)


def _owners(item: Manifest) -> list[tuple[str, str]]:
    """Kinds and names of the owners of an object."""
    return [(owner["kind"], owner["name"]) for owner in item["metadata"].get("ownerReferences") or ()]
