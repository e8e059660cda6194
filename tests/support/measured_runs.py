"""Runs that are measured on a cluster in memory: a new plan before its rollout, and a race of backends."""

import json
import random
from itertools import pairwise
from typing import Any

from support import speeds
from support.fleet import READY, Fleet
from support.operators import Bench
from vllm_operator.api import reading
from vllm_operator.api.labels import GATE_ANNOTATION, MEASURER, RACE_ANNOTATION, RUN_ANNOTATION
from vllm_operator.caches.measurement import RaceRecord, read_race
from vllm_operator.kube.client import DEPLOYMENT, EVENT, POD, REVISION, VLLM_DEPLOYMENT

GATED: dict[str, Any] = {"rollout": {"gate": "Measure"}, "cache": {"volume": {"accessMode": "ReadWriteMany"}}}


class Gate:
    """A replica serves, and a new version is to be rolled out."""

    def __init__(self, bench: Bench, fleet: Fleet) -> None:
        self.bench, self.fleet, self._chosen = bench, fleet, random.Random(1)

    async def begin(self) -> None:
        await self.fleet.serve(**GATED)
        self.serving = self.fleet.start()
        self.fleet.ready(self.serving)
        await self.fleet.settle()
        self.before = (self.fleet.deployment() or {})["spec"]
        await self.fleet.change(engine={"version": "0.24.0"})
        primer = self.fleet.start("llama.primer")  # fills the caches
        self.fleet.ready(primer)
        await self.fleet.settle()
        self.fleet.gone(primer)
        await self.fleet.settle()

    def run(self) -> str:
        """The number of the run that the primer measures."""
        annotations = reading.mapping(self.fleet.deployment("llama.primer"), "spec", "template", "metadata", "annotations")
        return str(annotations.get(RUN_ANNOTATION, "")).rpartition("/")[2]

    def version(self) -> str:
        spec = reading.mapping(self.fleet.deployment("llama.primer"), "spec", "template", "spec")
        image = reading.text(reading.named(spec, "vllm", "containers", key="name"), "image")
        return image.rpartition(":")[2].partition("-")[0]

    async def measured(self, **speed: Any) -> None:
        """The primer becomes ready and is measured."""
        found = speeds.run(self._chosen, **speed).to_json()
        await self.ended({"result": "Measured", **found})

    async def ended(self, report: dict[str, Any]) -> None:
        pod = self.fleet.start("llama.primer")
        self.fleet.show(pod, READY)
        ended = {"name": MEASURER, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "message": json.dumps(report)}}}
        statuses = next(it for it in self.bench.cluster.all(POD) if it["metadata"]["name"] == pod)["status"]["containerStatuses"]
        self.bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": [*statuses, ended]}})
        await self.fleet.settle()
        self.bench.pass_time(2)
        self.fleet.gone(pod)
        await self.fleet.settle()

    def is_held(self) -> bool:
        return bool((self.fleet.deployment() or {})["spec"]["template"] == self.before["template"])

    def event(self, reason: str) -> str:
        return next(str(event["message"]) for event in self.bench.cluster.all(EVENT) if event["reason"] == reason)

    def record(self) -> str:
        texts = (reading.text(it, "metadata", "annotations", GATE_ANNOTATION) for it in self.bench.cluster.all(REVISION))
        return next(filter(None, texts), "")


TUNED: dict[str, Any] = {"backends": {"tuning": "Measure"}, "cache": {"volume": {"accessMode": "ReadWriteMany"}}}


class Course:
    """A replica serves, and its backends race. Engines have the speed of their attention backend."""

    def __init__(self, bench: Bench, fleet: Fleet) -> None:
        self.bench, self.fleet, self._chosen = bench, fleet, random.Random(1)
        self.ran = list[str]()

    async def begin(self, **spec: Any) -> None:
        await self.fleet.serve(**{**TUNED, **spec})
        self.serving = self.fleet.start()
        self.fleet.ready(self.serving)
        self.complete()
        await self.settle()

    def complete(self) -> None:
        """The Deployment's controller has seen the Deployment, and all its Pods are ready."""
        generation = (self.fleet.deployment() or {})["metadata"].get("generation")
        numbers = {"observedGeneration": generation, "updatedReplicas": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        self.bench.cluster.edit(DEPLOYMENT, "default", "llama", {"status": numbers})

    async def settle(self) -> None:
        await self.fleet.settle()
        self.bench.pass_time(2)
        await self.fleet.settle()

    def primer(self) -> dict[str, Any]:
        return reading.mapping(self.fleet.deployment("llama.primer"), "spec", "template")  # type: ignore[return-value]  # it is a dict

    def run(self) -> str:
        """The run that the primer measures; empty without one."""
        return reading.text(self.primer(), "metadata", "annotations", RUN_ANNOTATION).rpartition("/")[2]

    def backend(self) -> str:
        """The attention backend of the engine that runs in the primer, which is the default if no flag sets it."""
        engine = reading.named(reading.mapping(self.primer(), "spec"), "vllm", "containers", key="name")
        words = [*(engine.get("command") or []), *(engine.get("args") or [])]
        return next((after for word, after in pairwise(words) if word == "--attention-backend"), "default")

    async def measured(self, **speeds_of: float) -> None:
        """The primer becomes ready and is measured."""
        found = speeds.run(self._chosen, noise=0.01, speed=speeds_of.get(self.backend(), 1.0)).to_json()
        await self.ended({"result": "Measured", **found})

    async def ended(self, report: dict[str, Any]) -> None:
        """The primer becomes ready, and the container that measures ends with this report."""
        self.ran.append(self.backend())
        pod = self.fleet.start("llama.primer")
        self.fleet.show(pod, READY)
        ended = {"exitCode": 0, "message": json.dumps(report)}
        statuses = next(it for it in self.bench.cluster.all(POD) if it["metadata"]["name"] == pod)["status"]["containerStatuses"]
        told = [*statuses, {"name": MEASURER, "restartCount": 0, "state": {"terminated": ended}}]
        self.bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": told}})
        await self.settle()
        self.fleet.gone(pod)
        await self.settle()

    async def to_the_end(self, **speeds_of: float) -> None:
        """Measure until the race is over and its result is rolled out."""
        while self.run():
            assert len(self.ran) < 12
            await self.measured(**speeds_of)
        self.complete()
        await self.settle()

    def records(self) -> list[RaceRecord]:
        return [record for it in self.bench.cluster.all(REVISION) if (record := read_race(it)) is not None]

    def said(self) -> str:
        return self.bench.status().race or ""

    def event(self) -> str:
        return next((str(event["message"]) for event in self.bench.cluster.all(EVENT) if event["reason"] == "Raced"), "")

    async def request(self, token: str) -> None:
        """A user requests a race."""
        self.bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {RACE_ANNOTATION: token}}})
        await self.settle()

    def backends(self) -> dict[str, str]:
        return {choice.component: choice.backend for choice in self.bench.plan().backends}
