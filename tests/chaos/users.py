"""What users do to VLLMDeployments, to what belongs to them, and to their own objects beside it."""

import asyncio
import contextlib
from random import Random

from chaos.acts import Acts
from chaos.client import GONE, PatientCluster
from chaos.foreign import ForeignObjects, claim, labels_like
from chaos.journal import Journal
from support.cluster import Manifest, RefusedError
from support.operator_process import llama
from vllm_operator.api import labels

CLAIM = "PersistentVolumeClaim"
POD_TEMPLATES: tuple[Manifest, ...] = (
    {"metadata": {"annotations": {"example.com/scrape": "yes"}, "labels": {"team": "a"}}},
    {"spec": {"containers": [{"name": "vllm", "env": [{"name": "HTTP_PROXY", "value": "http://proxy:3128"}]}]}},
    {"spec": {"containers": [{"name": "sidecar", "image": "example.com/sidecar:1"}], "priorityClassName": "system-cluster-critical"}},
    {"spec": {"terminationGracePeriodSeconds": 1}},
    {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "chat"}}},
)
SERVABLE: tuple[Manifest, ...] = (
    {},
    {"replicas": 2},
    {"replicas": 2, "cache": {"onDelete": "Delete"}, "weights": {"onDelete": "Delete"}},
    {"engine": {"version": "0.16.0"}},
    {"engine": {"version": "0.24.0"}},
    {"engine": {"version": "0.20.1", "args": [{"name": "seed", "value": "7"}]}},
    {"backends": {"attention": "TRITON_ATTN"}},
    {"remediation": {"mode": "Auto"}},
    {"cache": {"storage": "EmptyDir"}},
    {"cache": {"storage": "ClaimPerReplica"}},
    {"cache": {"priming": "Always"}},
    *({"podTemplate": template} for template in POD_TEMPLATES),
)
"""Specs that the GPUs of the run can serve, all at once."""
SPECS: tuple[Manifest, ...] = (
    *SERVABLE,
    {"replicas": 0},
    {"replicas": 3, "cache": {"volume": {"accessMode": "ReadWriteMany"}}},
    {"parallelism": {"tensor": 2}},
    {"parallelism": {"tensor": 16}},
    {"accelerator": {"products": ["NVIDIA-B200"]}},
    {"remediation": {"onUnrecoverableCrash": "ScaleToZero"}},
    {"engine": {"version": "0.20.1", "args": [{"name": "--nonsense", "value": "1"}]}},
    {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}}},
)
"""Most can be planned, some have no GPU, some are slips."""
CHILDREN = ("Deployment", "Service", CLAIM)
PROPAGATION = ("Background", "Foreground", "Orphan")
WAIT_SECONDS = 15.0
"""For so long a user waits, while other things could happen, until Pods are gone: after outages the garbage collector may take longer."""
SETTLE_SECONDS = 120.0


class Users:
    """Users of the VLLMDeployments of these names."""

    def __init__(self, client: PatientCluster, foreign: ForeignObjects, journal: Journal, names: tuple[str, ...]) -> None:
        self._client = client
        self._fields_of_others = foreign
        self._journal = journal
        self._names = names
        self.orphaned: set[str] = set()
        """Names of which a VLLMDeployment was deleted without its children."""
        self.acts: Acts = {
            self._apply: 8,
            self._scale: 4,
            self._change_on_delete: 2,
            self._replan: 1,
            self._delete: 2,
            self._recreate: 3,
            self._restart_rollout: 2,
            self._edit_metadata: 3,
            self._change_child: 3,
            self._delete_child: 4,
            self._delete_cleaning_jobs: 3,
            self._take_claim: 2,
            self._give_claim_back: 1,
        }

    async def apply(self, name: str, spec: Manifest) -> Manifest:
        # What happens to Pods has nothing to do with the spec, so no revision is to be given up for it.
        manifest = llama(self._client.namespace, name, rollout={"onFailure": "Hold"}, **spec)
        try:
            return await self._client.apply(manifest)
        except RefusedError as refused:
            if 'Invalid value: "null"' not in refused.message:
                raise
            # Server-side apply, if the last field of a group goes and somebody's patch had added the group: docs/troubleshooting.md
            gone = {field: None for field in ("cache", "weights") if field not in manifest["spec"]}
            await self._client.patch("VLLMDeployment", name, {"spec": gone})
            return await self._client.apply(manifest)

    async def apply_last(self, name: str, spec: Manifest) -> Manifest:
        """Applies a spec, with the access mode of the object's PersistentVolumeClaim, which cannot change."""
        found = await self._client.find("VLLMDeployment", name)
        volume = ((found or {}).get("spec", {}).get("cache") or {}).get("volume") or {}
        if "accessMode" in volume:
            spec = {**spec, "cache": {**spec.get("cache", {}), "volume": {"accessMode": volume["accessMode"]}}}
        return await self.apply(name, spec)

    async def _apply(self, random: Random) -> str:
        name, spec = random.choice(self._names), random.choice(SPECS)
        await self.apply(name, spec)
        return f"apply {name} {spec}"

    async def _scale(self, random: Random) -> str:
        name, replicas = random.choice(self._names), random.randrange(4)
        kind = random.choice(("VLLMDeployment", "VLLMDeployment", "Deployment"))
        await self._client.patch(kind, name, {"spec": {"replicas": replicas}}, subresource="scale")
        return f"scale {kind} {name} to {replicas}"

    async def _change_on_delete(self, random: Random) -> str:
        name, field, value = random.choice(self._names), random.choice(("cache", "weights")), random.choice(("Retain", "Delete"))
        await self._client.patch("VLLMDeployment", name, {"spec": {field: {"onDelete": value}}})
        return f"set spec.{field}.onDelete of {name} to {value}"

    async def _replan(self, random: Random) -> str:
        name, token = random.choice(self._names), str(random.randrange(1000))
        await self._client.patch("VLLMDeployment", name, {"metadata": {"annotations": {"vllm-operator.dev/replan": token}}})
        return f"ask for a new plan of {name}"

    async def _delete(self, random: Random) -> str:
        name, propagation = random.choice(self._names), random.choice(PROPAGATION)
        await self._client.delete_with("VLLMDeployment", name, propagation)
        if propagation == "Orphan":
            self.orphaned.add(name)
        return f"delete VLLMDeployment {name} ({propagation})"

    async def _recreate(self, random: Random) -> str:
        name, propagation, spec = random.choice(self._names), random.choice(PROPAGATION[:2]), random.choice(SPECS)
        await self._client.delete_with("VLLMDeployment", name, propagation)
        await self.apply(name, spec)
        return f"delete VLLMDeployment {name} ({propagation}) and create it again at once with {spec}"

    async def _restart_rollout(self, random: Random) -> str:
        name, time = random.choice(self._names), f"2026-11-22T12:00:{random.randrange(60):02d}Z"
        annotations = {"kubectl.kubernetes.io/restartedAt": time}
        await self._client.patch("Deployment", name, {"spec": {"template": {"metadata": {"annotations": annotations}}}})
        return f"kubectl rollout restart deployment {name}"

    def _child(self, random: Random) -> tuple[str, str]:
        kind, name = random.choice(CHILDREN), random.choice(self._names)
        return kind, f"{name}-cache" if kind == CLAIM else name

    async def _edit_metadata(self, random: Random) -> str:
        kind, name = self._child(random)
        edits: tuple[Manifest, ...] = (
            {"labels": {"team": "b"}, "annotations": {"note": "mine"}},
            {"labels": {"app.kubernetes.io/managed-by": "Helm"}},
            {"labels": {"app.kubernetes.io/instance": None}},
            {"ownerReferences": None},
        )
        edit = random.choice(edits)
        if (kind, name) in self._fields_of_others.names():
            return f"{kind} {name} is a user's"
        await self._client.patch(kind, name, {"metadata": edit})
        return f"edit {kind} {name}: {edit}"

    async def _change_child(self, random: Random) -> str:
        kind, name = random.choice(CHILDREN[:2]), random.choice(self._names)
        spec: Manifest = {"replicas": 5} if kind == "Deployment" else {"selector": {"foreign": "yes"}}
        await self._client.patch(kind, name, {"spec": spec})
        return f"change {kind} {name}: {spec}"

    async def _delete_child(self, random: Random) -> str:
        kind, name = self._child(random)
        propagation = random.choice(PROPAGATION)
        if (kind, name) in self._fields_of_others.names():
            return f"{kind} {name} is a user's"
        await self._client.delete_with(kind, name, propagation)
        return f"delete {kind} {name} ({propagation})"

    async def _delete_cleaning_jobs(self, random: Random) -> str:
        name = random.choice(self._names)
        return f"delete the cleaning Jobs of {name}: {await self.delete_cleaning_jobs(name)}"

    async def delete_cleaning_jobs(self, name: str) -> list[str]:
        """Deletes the finished and running Jobs, so that the operator need not pause before the next one; returns their names."""
        jobs = await self._client.list_all("Job", selector=f"app.kubernetes.io/instance={name}")
        names = [job["metadata"]["name"] for job in jobs if ("Job", job["metadata"]["name"]) not in self._fields_of_others.names()]
        for job in names:
            with contextlib.suppress(RefusedError):  # it is gone by now
                await self._client.delete_with("Job", job, "Background")
        return names

    async def _take_claim(self, random: Random) -> str:
        """A user's own claim gets the name that the operator would give to one."""
        name = random.choice(self._names)
        claim_name = f"{name}-cache"
        if (CLAIM, claim_name) in self._fields_of_others.names():
            return f"{CLAIM} {claim_name} is a user's already"
        if not await self._free_claim(name, within=WAIT_SECONDS):
            return f"Pods go on using {CLAIM} {claim_name}: no claim of one's own"
        await self._remove(CLAIM, claim_name)
        await self._fields_of_others.create(claim(claim_name))
        return f"delete VLLMDeployment {name} and create a claim {claim_name} of one's own"

    async def _give_claim_back(self, random: Random) -> str:
        mine = [name for name in self._names if (CLAIM, f"{name}-cache") in self._fields_of_others.names()]
        if not mine:
            return "no claim to give back"
        name = random.choice(mine)
        if not await self._return_claim(name, within=WAIT_SECONDS):
            return f"Pods go on using one's own claim {name}-cache"
        return f"delete VLLMDeployment {name} and one's own claim {name}-cache"

    async def _return_claim(self, name: str, *, within: float) -> bool:
        """Deletes a user's own claim, and before it what may use it; False if that stays for longer."""
        if not await self._free_claim(name, within=within):
            return False
        self._journal.violate(*await self._fields_of_others.remove(CLAIM, f"{name}-cache"))
        return True

    async def _free_claim(self, name: str, *, within: float) -> bool:
        """Deletes what may use the claim of a VLLMDeployment, also what it has left behind as an orphan; whether all Pods went."""
        await self._remove("VLLMDeployment", name)
        for deployment in (name, f"{name}.primer"):
            if ("Deployment", deployment) not in self._fields_of_others.names():
                await self._remove("Deployment", deployment)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while True:
                    if not any(_uses(pod, f"{name}-cache") for pod in await self._client.list_all("Pod")):
                        return True
                    await asyncio.sleep(0.2)
        return False

    async def settle(self) -> None:
        """Gives claims back, removes children that an edit of their labels has taken away from the operator, and waits for deletions."""
        for name in self._names:
            is_taken = (CLAIM, f"{name}-cache") in self._fields_of_others.names()
            if is_taken and not await self._return_claim(name, within=SETTLE_SECONDS):
                self._journal.violate(f"Pods go on using {name}-cache although VLLMDeployment {name} and its Deployments are deleted")
            for kind in CHILDREN:
                child = await self._client.find(kind, f"{name}-cache" if kind == CLAIM else name)
                ours = labels_like(name, "").items() - {(labels.COMPONENT_LABEL, "")}
                if child is not None and "deletionTimestamp" in child["metadata"]:
                    # no Pod may use what is to go
                    await self.apply(name, {"replicas": 0})
                    self._journal.note(f"scale {name} to 0: {kind} {child['metadata']['name']} is being deleted")
                    await self._delete_pods_of_orphaned_jobs(child["metadata"]["name"])
                    await self._wait_until_replaced(child, kind)
                elif child is not None and not ours <= child["metadata"].get("labels", {}).items():
                    await self._remove(kind, child["metadata"]["name"])
                    self._journal.note(f"delete {kind} {child['metadata']['name']}, which is not the operator's any more")
            found = await self._client.find("VLLMDeployment", name)
            if found is not None and "deletionTimestamp" in found["metadata"]:  # what is applied to it would go with it
                await self._client.wait_until_gone("VLLMDeployment", name, within=SETTLE_SECONDS)

    async def _wait_until_replaced(self, child: Manifest, kind: str) -> None:
        name = child["metadata"]["name"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    found = await self._client.find(kind, name)
                    if found is None or found["metadata"]["uid"] != child["metadata"]["uid"]:
                        return
                    await asyncio.sleep(0.2)
        users = [pod["metadata"] for pod in await self._client.list_all("Pod") if _uses(pod, name)]
        waiting = [f"{pod['name']} ({'being deleted' if 'deletionTimestamp' in pod else 'runs'})" for pod in users]
        self._journal.violate(f"{kind} {name} is not gone after {SETTLE_SECONDS:.0f} s without replicas; Pods that use it: {waiting}")

    async def _delete_pods_of_orphaned_jobs(self, claim_name: str) -> None:
        """What status.cache tells a user to do: nobody else deletes them, and they keep a claim."""
        jobs = {job["metadata"]["uid"] for job in await self._client.list_all("Job") if not job["metadata"].get("ownerReferences")}
        for pod in await self._client.list_all("Pod"):
            owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()}
            if _uses(pod, claim_name) and owners & jobs:
                await self._remove("Pod", pod["metadata"]["name"])
                self._journal.note(f"delete Pod {pod['metadata']['name']} of an orphaned Job")

    async def _remove(self, kind: str, name: str) -> None:
        try:
            await self._client.delete(kind, name)
        except RefusedError as refused:
            if refused.status != GONE:
                raise
        await self._client.wait_until_gone(kind, name, within=SETTLE_SECONDS)


def _uses(pod: Manifest, claim_name: str) -> bool:
    volumes = pod["spec"].get("volumes") or ()
    return any(volume.get("persistentVolumeClaim", {}).get("claimName") == claim_name for volume in volumes)
