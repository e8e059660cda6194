"""A replica on two nodes whose ranks are two processes of the real vLLM on CPUs, and what the operator tells about it.

The Pods are those that the operator renders, with the states that a kubelet would show. No CPU has these parts of them:

| rendered | here |
|---|---|
| `$(LWS_...)` | what the webhook of LeaderWorkerSet puts there; `/etc/hosts` has the name of the leader |
| the ports | free ones: both ranks are on loopback, which the spec names as their network interface |
| the volume of the model | a folder |
| variables with folders of the volume of caches | left out: bytecode alone would take a minute, and on CPUs there is nothing else |
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support import observations as o
from support.gpus import inventory_of, real_node
from support.plans import known
from support.vllm_on_cpus import MODEL, VARIABLES, Server, free_port, wait_until
from vllm_operator.api.conditions import CRASHED, Reason, find_condition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.logs.parser import StartupParser
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.manifests import render
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.report import Report, report

LEADER, FOLLOWER = "vllm-a-0", "vllm-a-0-1"
NAMES = (LEADER, FOLLOWER)
ADDRESS = "vllm-a-0.vllm-a.models"
SERVED = "models/tiny"
FLAGS = {"enforce-eager": None, "dtype": "float32", "max-model-len": "4096", "max-num-seqs": "2", "kv-cache-memory-bytes": "67108864"}
SETTLED = timedelta(seconds=15)
"""The operator waits so long at most for the logs of other ranks."""


def seconds(moment: datetime) -> float:
    """As the builders of observations take it."""
    return (moment - o.NOW).total_seconds()


class Group:
    """Starts and ends ranks, and reports on them each second as the operator does, each report with the status of the last one."""

    def __init__(self, folder: Path, *, deadline: int = 600, resolves: bool = True) -> None:
        self.folder, self.knowledge = folder, load_knowledge()
        args = [{"name": name} | ({"value": value} if value is not None else {}) for name, value in FLAGS.items()]
        spec = {
            "model": {"uri": f"pvc://{SERVED}"},
            "engine": {"version": "0.32.0", "args": args, "env": [{"name": name, "value": value} for name, value in VARIABLES.items()]},
            "parallelism": {"tensor": 2, "pipeline": 1, "nodes": 2},
            "network": {"interface": "lo"},
            "cache": {"storage": "EmptyDir"},
            "startup": {"deadlineSeconds": deadline},
        }
        self.resource = VLLMDeployment.parse({"metadata": o.resource().metadata.model_dump(by_alias=True, exclude_none=True), "spec": spec})
        self.outcome = plan(self.resource, inventory_of(*(real_node("h100-sxm", f"node-{name}") for name in "ab")), known())
        assert self.outcome.plan is not None, self.outcome
        [self.workload] = [it for it in render(self.resource, self.outcome.plan) if it["kind"] == "LeaderWorkerSet"]
        template = self.workload["spec"]["leaderWorkerTemplate"]
        self.pods: dict[int, dict[str, Any]] = {
            rank: deepcopy(template[name]) for rank, name in enumerate(("leaderTemplate", "workerTemplate"))
        }
        self.ports = {"8000": str(free_port()), "29501": str(free_port())}
        self.hosts = folder / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost {ADDRESS if resolves else ''}\n")
        self.ranks: dict[int, Server] = {}
        self.parsers: dict[int, StartupParser] = {}
        self.read: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []
        self.created = datetime.now(UTC)
        self.ready_at: datetime | None = None
        self.is_ready = False
        self.status = VLLMDeploymentStatus()
        self.told: list[Report] = []

    def start(
        self, rank: int, *, model: str = MODEL, flags: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start a rank. `flags` differ in its Pod; the content of the folder of its model and `variables` only in its process."""
        [container] = self.pods[rank]["spec"]["containers"]
        for flag, value in (flags or {}).items():
            container["args"][container["args"].index(flag) + 1] = value
        values = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": ADDRESS, "VLLM_HOST_IP": "127.0.0.1"}
        words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]
        (*_, path), given = container["command"], {it["name"]: it.get("value", "") for it in container["env"]}
        assert path == "/models/tiny"
        kept = {name: value for name, value in given.items() if not value.startswith(("/cache", "/weights"))}
        self.ranks[rank] = Server(
            self.folder / str(rank),
            [model, *(self.ports.get(word, word) for word in words)],
            kept | {"VLLM_HOST_IP": values["VLLM_HOST_IP"]} | dict(variables or {}),
            port=int(self.ports["8000"]),
            hosts=str(self.hosts),
        )
        self.parsers[rank], self.read[rank] = StartupParser(self.knowledge.startup), 0

    @property
    def leader(self) -> Server:
        return self.ranks[0]

    def look(self) -> Report:
        """Report on what is now."""
        if 0 in self.ranks and self.leader.exit_code is None and not self.events:
            self.is_ready = self.leader.answers("/health") is not None
            self.ready_at = self.ready_at or (datetime.now(UTC) if self.is_ready else None)
        return self._report(datetime.now(UTC))

    def settle(self) -> Report:
        """Report on what is now, once there is nothing more to wait for."""
        return self._report(datetime.now(UTC) + SETTLED)

    def _report(self, now: datetime) -> Report:
        states = {(f"uid-{NAMES[rank]}", 0): self._read_log(rank) for rank in self.ranks}
        pods = [o.member(self._pod(rank), rank, created=seconds(self.created)) for rank in self.pods if rank in self.ranks or rank == 0]
        observed = o.observe(
            pods[0],
            followers=pods[1:],
            resource=self.resource,
            outcome=self.outcome,
            now=now,
            startups=states,
            claim=None,
            claim_name=None,
            deployment=self.workload,
            pod_events=self.events,
        )
        made = report(o.following(observed, self.status))
        self.status = made.status
        if (
            not self.told
            or made.events
            or [it.message for it in made.status.conditions] != [it.message for it in self.told[-1].status.conditions]
        ):
            self.told.append(made)
        return made

    def _read_log(self, rank: int) -> Any:
        server, parser = self.ranks[rank], self.parsers[rank]
        has_ended = server.exit_code is not None
        lines = server.lines[self.read[rank] :]
        for moment, line in lines:
            parser.feed(line, moment)
        self.read[rank] += len(lines)
        if has_ended:
            parser.end()
        return parser.final_state if has_ended else parser.state

    def _pod(self, rank: int) -> dict[str, Any]:
        name = NAMES[rank]
        if rank not in self.ranks:
            return o.pending_pod("ContainerCreating", name=name)
        server = self.ranks[rank]
        since, code = seconds(server.began), server.exit_code
        if code is not None:
            message = server.log[-2048:] if code else ""  # FallbackToLogsOnError
            made = o.crashed_pod(name, code=code, seconds=seconds(server.ended_at), ran=seconds(server.ended_at) - since, message=message)
        elif rank == 1:
            made = o.ready_pod(name, since=since, ready=since)
        elif self.ready_at is None:
            made = o.starting_pod(name, since=since)
        else:
            made = o.ready_pod(name, since=since, ready=seconds(self.ready_at)) if self.is_ready else o.unready_pod(name)
        return made | {"spec": self.pods[rank]["spec"] | made["spec"]}

    def until(self, condition: Callable[[], object], *, within: float = 400) -> Report:
        """Look each second until it is so."""

        def is_so() -> bool:
            self.look()
            return bool(condition())

        wait_until(is_so, seconds=within)
        return self.told[-1]

    def until_ended(self, *ranks: int, within: float = 400) -> Report:
        return self.until(lambda: all(self.ranks[rank].exit_code is not None for rank in ranks), within=within)

    def until_logged(self, rank: int, text: str, *, within: float = 400) -> Report:
        return self.until(lambda: text in self.ranks[rank].log, within=within)

    def serve(self) -> None:
        """Start both ranks, and wait until they have answered a request."""
        for rank in (0, 1):
            self.start(rank)
        self.until(lambda: self.is_ready or all(server.ended.is_set() for server in self.ranks.values()))
        assert self.is_ready, self.leader.log[-4000:]
        self.leader.send(8, model=SERVED).join()

    def said(self, type: str) -> str:
        found = find_condition(self.status.conditions, type)
        return found.message if found is not None else ""

    @property
    def crashes_told(self) -> list[tuple[str, str]]:
        """The reasons of the condition Crashed and the Pods that it named, each once, in their order; without those still being read."""
        found = []
        for it in self.told:
            condition, last = find_condition(it.status.conditions, CRASHED), it.status.last_crash
            if condition is not None and condition.reason != Reason.DIAGNOSING_CRASH and last is not None:
                found.append((condition.reason, last.pod))
        return list(dict.fromkeys(found))

    def gives_up_at(self, rank: int) -> datetime:
        """When a rank that waits for the other one gives up first, by the arguments that it has."""
        [container] = self.pods[rank]["spec"]["containers"]
        began = self.parsers[rank].state.stage_since
        assert began is not None
        return began + timedelta(seconds=int(container["args"][container["args"].index("--distributed-timeout-seconds") + 1]))

    def wait_for_the_other(self) -> None:
        """Look until both ranks have ended, or for a minute."""
        with suppress(AssertionError):
            self.until_ended(0, 1, within=60)

    def fail_probe(self, said: str) -> Report:
        """The readiness probe of the leader has failed with these words."""
        self.events, self.is_ready = (
            [o.event("Unhealthy", f"Readiness probe failed: {said}\n", name=LEADER, seconds=seconds(datetime.now(UTC)))],
            False,
        )
        return self.look()

    def close(self) -> None:
        for server in self.ranks.values():
            server.close()
