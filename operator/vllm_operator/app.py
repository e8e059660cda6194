"""The operator as a process: read the settings, build the parts, start and stop them in order.

    probes and metrics -> leadership (the Lease) -> workers -> supervisor (API server, permissions, CRD, first list, watches)

Without the Lease, the process is a standby: it reads only the Lease, and writes nothing.

The parts run for as long as the operator. The end of one of them ends the operator, and the kubelet starts it again. What can be restarted
without that is restarted by its owner: watches and mirror by the supervisor, the reading of a log by the followers.

Exit status: 0 after SIGTERM or SIGINT; 1 if the port is taken, a part ended, or another operator took the Lease over; 2 if a setting or the
kubeconfig is invalid. The operator waits for everything that may still come: the API server, the CRD, a permission.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from vllm_operator import __version__
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.catalog.user_entries import UserEntries
from vllm_operator.cluster import responses
from vllm_operator.cluster.client import NAMESPACE, Key, Kind, Manifest
from vllm_operator.cluster.connection import MissingConnectionError, configuration_paths, context_namespace, load_configuration
from vllm_operator.cluster.hub import HttpHub
from vllm_operator.cluster.inventory import InventoryCache
from vllm_operator.cluster.kube import KubeClient
from vllm_operator.cluster.lease import Fence
from vllm_operator.cluster.mirror import Mirror
from vllm_operator.cluster.shard import ServedNamespaces, Shard
from vllm_operator.planning.artifact import ArtifactTrust
from vllm_operator.planning.inventory.nodes import read_inventory
from vllm_operator.runtime import memory
from vllm_operator.runtime.cache_reconciler import CacheReconciler
from vllm_operator.runtime.event_writer import EventWriter
from vllm_operator.runtime.follower import FollowerSettings
from vllm_operator.runtime.followers import Followers
from vllm_operator.runtime.health import HealthServer, Readiness
from vllm_operator.runtime.leadership import Leadership, LeadershipLost
from vllm_operator.runtime.log_output import configure, describe_end, handle_loop_error
from vllm_operator.runtime.log_share import LogShare
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.mirroring import Mirroring
from vllm_operator.runtime.model_configs import ModelConfigs
from vllm_operator.runtime.permissions import REQUIRED, SHARD
from vllm_operator.runtime.presets import Presets
from vllm_operator.runtime.queue import WorkQueue
from vllm_operator.runtime.reconciler import Reconciler
from vllm_operator.runtime.supervisor import Parts, Supervisor
from vllm_operator.runtime.user_data import KnownCatalog, KnownCrashes, UserData, qualified_name
from vllm_operator.runtime.watches import Watches
from vllm_operator.runtime.workers import Workers
from vllm_operator.settings import PREFIX, ArtifactNaming, LogFormat, Settings, SettingsError
from vllm_operator.status.pacing import PACE, later_pace

log = logging.getLogger(__name__)

STOP_SECONDS = 1.8
"""Maximum time to stop all parts. The kubelet would wait 30 s, but nobody at a terminal would."""
SOON_SECONDS = 1.0
"""Delay after a watch event of `Urgency.SOON`."""
LATER_SECONDS = PACE.total_seconds()
"""Delay after a watch event of `Urgency.LATER`. A rollout causes about ten of them within seconds, and the status does not show each."""
SECONDS_PER_KEY = 0.01
"""Additional delay for each key that waits: about how long a reconciliation takes. Under load, more events are handled together."""
RELEASE_SECONDS = 1.0
"""Maximum time to release the Lease. Otherwise the next operator waits until it expires."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments: all settings are environment variables."""
    parser.epilog = "Settings are environment variables VLLM_OPERATOR_*; see docs."


def run(arguments: argparse.Namespace) -> int:
    """Run the operator until a signal stops it; return the exit status."""
    try:
        settings = _with_qualified_names(Settings.from_environment())
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return 2
    configure(as_json=settings.log_format is LogFormat.JSON, level=settings.log_level)
    responses.install_decoder()
    try:
        return uvloop.run(serve(settings))
    except KeyboardInterrupt:
        return 0


def _with_qualified_names(settings: Settings) -> Settings:
    """Complete the names of the ConfigMaps and the Lease with a namespace. Raises SettingsError."""
    names: dict[str, Any] = {}
    for field in ("rules_config_map", "signatures_config_map", "instance_types_config_map"):
        try:
            names[field] = qualified_name(getattr(settings, field))
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{field.upper()}: {error}") from error
    try:
        names["lease"] = qualified_name(settings.lease)
    except ValueError:  # not in a Pod
        names["lease"] = f"{context_namespace(configuration_paths())}/{settings.lease}"
    return replace(settings, **names)


async def serve(settings: Settings) -> int:
    """Run the operator in this event loop; return the exit status."""
    asyncio.get_running_loop().set_exception_handler(handle_loop_error)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    fence = Fence() if settings.lease else None
    try:
        configuration = await load_configuration()
        client = KubeClient(configuration, timeout_seconds=settings.request_timeout_seconds, reload=load_configuration, fence=fence)
    except MissingConnectionError as error:
        log.error("%s", error)
        return 2
    log.info("vllm-operator %s, API server %s", __version__, configuration.host)
    operator = Operator(settings, client)
    try:
        return await operator.run(stop)
    finally:
        await client.close()


class Operator:
    """All parts of the operator."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self._settings = settings
        self._client = client
        self.metrics = Metrics()
        self.readiness = Readiness()
        self.leadership = self._make_leadership()
        self.queue: WorkQueue[Key] = WorkQueue(
            base_seconds=settings.retry_base_seconds,
            limit_seconds=settings.retry_limit_seconds,
            rest_seconds=settings.rest_milliseconds / 1000,
        )
        shard = ServedNamespaces(Shard.parse(settings.shard)) if settings.shard else None
        mirror = Mirror(client) if shard is None else Mirror(client, serves=shard.serves)
        self.mirroring = Mirroring(
            mirror,
            self.queue.add,
            namespaces=settings.namespaces,
            shard=shard,
            seconds=settings.resync_seconds,
            add_soon=lambda key: self._add_after(key, SOON_SECONDS),
            add_later=lambda key: self._add_after(key, LATER_SECONDS, urgent=False),
            add_last=self._add_last,
            add_unchanged=lambda key: self.queue.add(key, urgent=False),
        )
        known, crashes = KnownCatalog.of(load_catalog()), KnownCrashes.of(load_startup())
        self.followers = self._make_followers(mirror, crashes)
        self.configs = self._make_configs()
        inventory = InventoryCache(
            client,
            partial(read_inventory, gpus=known.shipped.gpus),
            seconds=settings.node_cache_seconds,
            sees_all_pods=not settings.namespaces,
        )
        caches = CacheReconciler(
            mirror,
            known,
            crashes,
            inventory=inventory,
            count=self.metrics.wrote,
            primer_patience_seconds=settings.priming_patience_seconds,
        )
        self.presets = Presets(client, namespaces=settings.namespaces, seconds=settings.resync_seconds, changed=self.queue.add)
        self.events = EventWriter(mirror, count=self.metrics.wrote, busy=self.queue.has_urgent, calm=self.queue.until_calm)
        self.reconciler = Reconciler(
            mirror,
            known,
            crashes,
            caches=caches,
            inventory=inventory,
            logs=self.followers,
            metrics=self.metrics,
            configs=self.configs,
            trust=ArtifactTrust(settings.artifact_repositories, settings.artifact_naming is ArtifactNaming.DIGEST),
            presets=self.presets,
            events=self.events,
            integrations=settings.integrations,
            namespaces=settings.namespaces,
            busy=self.queue.has_urgent,
        )
        self.workers = Workers(self.queue, self.reconciler, self.metrics, number=settings.workers, resync_seconds=settings.resync_seconds)
        self.metrics.observe_queue(lambda: len(self.queue), self.queue.oldest_seconds)
        self.metrics.observe_streams(self.followers.streams)
        self.user_data = (
            self._make_user_data(known.use, "rules", settings.rules_config_map, self.mirroring.add_all),
            self._make_user_data(crashes.use, "signatures", settings.signatures_config_map, self._read_crashes_again),
            self._make_user_data(known.use_instance_types, "instance_types", settings.instance_types_config_map, self.mirroring.add_all),
        )
        self.supervisor = Supervisor(
            Parts(
                client=client,
                readiness=self.readiness,
                metrics=self.metrics,
                mirror=self.mirroring,
                make_watches=self._watches,
                namespaces=settings.namespaces,
                scope=settings.scope,
                host=client.configuration.host,
                prepare=self._load_user_data,
                required=(*REQUIRED, *SHARD) if settings.shard else REQUIRED,
            )
        )
        client.refused = self.supervisor.recheck_access
        memory.tune()

    def _add_after(self, key: Key, seconds: float, *, urgent: bool = True) -> None:
        self.queue.add_after(key, seconds + len(self.queue) * SECONDS_PER_KEY, urgent=urgent)

    def _add_last(self, key: Key) -> None:
        """Add a key after a watch event of `Urgency.LAST`."""
        self._add_after(key, later_pace(self.reconciler.rollouts.recent()).total_seconds(), urgent=False)

    def _make_leadership(self) -> Leadership | None:
        """Return None if leader election is off."""
        fence = self._client.fence
        if fence is None:
            return None
        self.metrics.observe_leader(fence.is_open)
        identity = self._settings.identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        return Leadership(
            self._client, fence, self.readiness, lease=self._settings.lease, identity=identity, host=self._client.configuration.host
        )

    def _make_followers(self, mirror: Mirror, crashes: KnownCrashes) -> Followers:
        settings = self._settings
        return Followers(
            mirror,
            make_parser=crashes.make_parser,
            changed=self.queue.add,
            streams=settings.log_streams,
            settings=FollowerSettings(
                line_bytes=settings.log_line_bytes,
                replay_bytes=settings.log_replay_bytes,
                interval_seconds=settings.status_interval_seconds,
                step_percent=settings.status_step_percent,
            ),
            restarted=lambda: self.metrics.restarted("log"),
            share=LogShare(parsed=self.metrics.parsed),
            skipped=self.metrics.skipped,
        )

    def _make_configs(self) -> ModelConfigs | None:
        """Return None if the operator uses no model hub."""
        endpoint, wait = self._settings.hub_endpoint, self._settings.hub_wait_seconds
        return ModelConfigs(self._client, HttpHub(endpoint), wait_seconds=wait, changed=self.queue.add) if endpoint else None

    async def _read_crashes_again(self) -> None:
        """Apply new signatures also to current crashes."""
        self.followers.read_again()
        await self.mirroring.add_all()

    def _make_user_data(
        self, use: Callable[[Mapping[str, str]], UserEntries[Any]], what: str, config_map: str, changed: Callable[[], Awaitable[None]]
    ) -> UserData:
        return UserData(
            self._client,
            use,
            what=what,
            config_map=config_map,
            metrics=self.metrics,
            changed=changed,
        )

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set or a part ends; return the exit status."""
        health = HealthServer(self.metrics, self.readiness, stuck=self._stuck)
        try:
            await health.start(self._settings.http_host, self._settings.http_port)
        except OSError as error:
            log.error(
                "cannot listen on %s:%d for probes and metrics: %s", self._settings.http_host, self._settings.http_port, error.strerror
            )
            return 1
        log.info("probes and metrics on port %d", health.port)
        tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in self._parts(stop)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            ended = next(task for task in tasks if task in done)
            _log_end(ended)
        log.info("stopping")
        if self._client.fence is not None:
            self._client.fence.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for task in tasks:
                    task.cancel()
                # First the tasks: a reconciliation in progress could follow another log, or ask the hub.
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.gather(self.followers.close(), self._close_configs(), health.stop(), return_exceptions=True)
        if self.leadership is not None:  # at the end, because the next operator must be the only one that writes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.leadership.release()
        return 0 if stop.is_set() else 1

    def _parts(self, stop: asyncio.Event) -> Iterator[tuple[str, Coroutine[Any, Any, object]]]:
        """Yield name and coroutine of each part. All of them run for as long as the operator."""
        yield "stop", stop.wait()
        yield "memory", memory.return_unused()
        if self.leadership is not None:
            yield "leadership", self.leadership.run()
        yield "workers", self._lead(self.workers.run)
        yield "supervisor", self._lead(self.supervisor.run)
        yield "presets", self._lead(self.presets.run)
        yield "events", self._lead(self.events.run)
        for data in self.user_data:
            if data.is_wanted:
                yield "user data", self._lead(data.run)

    async def _lead(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part as soon as this process leads."""
        if self.leadership is not None:
            await self.leadership.begun.wait()
        await run()

    async def _close_configs(self) -> None:
        if self.configs is not None:
            await self.configs.close()

    async def _load_user_data(self) -> None:
        for data in self.user_data:
            await data.load()

    def _watches(self, kinds: Sequence[Kind]) -> Watches:
        return Watches(
            self._client.configuration,
            notice=self._notice,
            outdated=self.mirroring.recheck,
            kinds=(*kinds, NAMESPACE) if self._settings.shard else kinds,
            versions=self.mirroring.versions(),
            namespaces=self._settings.namespaces,
            request_timeout_seconds=self._settings.request_timeout_seconds,
        )

    def _notice(self, kind: Kind, type: str, manifest: Manifest) -> None:
        self.metrics.watched(kind.kind)
        self.mirroring.notice(kind, type, manifest)

    def _stuck(self) -> str | None:
        """Return why the operator should be started again; None if it works."""
        limit = self._settings.stuck_seconds
        if (seconds := self.queue.longest_processing_seconds()) > limit:
            return f"a reconciliation has been going on for {seconds:.0f} s"
        if (seconds := self.queue.stalled_seconds()) > limit:
            return f"no key was handed out for {seconds:.0f} s although one is ready"
        return None


def _log_end(task: asyncio.Task[object]) -> None:
    """Log why the operator exits: a part of it has ended."""
    failure = None if task.cancelled() else task.exception()
    if isinstance(failure, LeadershipLost):  # expected where two operators run, so the traceback of a bug would mislead
        log.warning("%s. The operator exits, to be started again as a standby", failure)
        return
    log.error("the task %r %s; the operator exits, to be started again", task.get_name(), describe_end(task), exc_info=failure)
