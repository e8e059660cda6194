"""The operator as a process: read the settings, build the parts, start and stop them in order.

    probes and metrics -> leadership (the Lease) -> preconditions (API server, permissions, CRD) -> kopf: workers, watches

Without the Lease, the process is a standby: it reads only the Lease, and writes nothing. kopf runs the watches, and the other parts start
and stop with it. If one of the parts ends, the operator exits, and the kubelet restarts it.

Exit status: 0 after SIGTERM or SIGINT; 1 if the port is in use, a part ended, or another operator acquired the Lease; 2 if a setting or the
kubeconfig is invalid. The operator waits for a missing API server, CRD or permission.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import uuid
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import uvloop

from vllm_operator import __version__
from vllm_operator.caches.claims import find_orphans, requested_bytes
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.leadership import Leadership, LeadershipLost
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.log_output import configure, describe_end, handle_loop_error
from vllm_operator.controller.log_share import LogShare, Slots
from vllm_operator.controller.metrics import HealthServer, Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.object_cache import ObjectCache, ObjectCacheUpdater
from vllm_operator.controller.observed_pods import PodObserver
from vllm_operator.controller.preconditions import Preconditions, Readiness, WatchesOutdated
from vllm_operator.controller.queue import Priority, WorkQueue
from vllm_operator.controller.reconciler import Reconciler, Workers
from vllm_operator.controller.settings import PREFIX, Settings, SettingsError
from vllm_operator.controller.user_data import KnownCatalog, KnownStarts, UserData, qualified_name
from vllm_operator.controller.watches import Watches
from vllm_operator.hub.client import HttpHub
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.kube.api_client import ConnectionOutdated, Fence, KubeClient
from vllm_operator.kube.client import CLAIM, VLLM_DEPLOYMENT, Key, Kind, Manifest
from vllm_operator.kube.connection import MissingConnectionError, context_namespace, load_configuration

log = logging.getLogger(__name__)

STOP_SECONDS = 1.8
"""Maximum time to stop all parts. The kubelet would wait 30 s, but a user at a terminal would not."""
KOPF_SECONDS = 6.0
"""Maximum time that kopf may take to end after the operator's own parts. kopf itself waits up to 5 s for tasks that remain."""
RELEASE_SECONDS = 1.0
"""Maximum time to release the Lease. Without a release, the next operator waits until it expires."""
STUCK_SECONDS = 120
"""The liveness probe fails if a reconciliation takes longer, or if keys are due and no worker has taken one for this long."""


def run(arguments: argparse.Namespace) -> int:
    """Run the operator until a signal stops it. Return the exit status."""
    try:
        settings = _with_qualified_names(Settings.from_environment())
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return 2
    configure(as_json=settings.log_format == "json", level=settings.log_level)
    gc.freeze()  # objects loaded so far are never garbage
    try:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        status = runner.run(serve(settings))
        if status:
            # After an error, tasks of kopf may not end (`Operator._watch`), and closing the loop would wait for them.
            runner.get_loop().set_exception_handler(lambda loop, context: None)
        else:
            runner.close()
        return status
    except KeyboardInterrupt:
        return 0


def _with_qualified_names(settings: Settings) -> Settings:
    """Complete the names of the ConfigMaps and the Lease with a namespace. Raises SettingsError."""
    names: dict[str, Any] = {}
    for field in ("rules_config_map", "signatures_config_map", "instance_types_config_map", "lease"):
        name = getattr(settings, field)
        try:
            names[field] = qualified_name(name)
        except ValueError as error:  # not in a Pod
            if field != "lease":
                raise SettingsError(f"{PREFIX}{field.upper()}: {error}") from error
            names[field] = f"{context_namespace()}/{name}"
    return settings.model_copy(update=names)


async def serve(settings: Settings) -> int:
    """Run the operator in this event loop. Return the exit status."""
    asyncio.get_running_loop().set_exception_handler(handle_loop_error)
    stop = asyncio.Event()
    _stop_on_signals(stop)
    fence = Fence() if settings.lease else None
    try:
        configuration = await load_configuration()
        client = KubeClient(configuration, reload=load_configuration, fence=fence)
    except MissingConnectionError as error:
        log.error("%s", error)
        return 2
    log.info("vllm-operator %s, API server %s", __version__, configuration.host)
    try:
        return await Operator(settings, client).run(stop)
    finally:
        await client.close()


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


class Operator:
    """Builds, starts and stops all parts of the operator."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self._settings = settings
        self._client = client
        self._stop = asyncio.Event()
        self._has_failed = False
        self._is_ending = False
        self._tasks: list[asyncio.Task[object]] = []
        self.metrics = Metrics()
        self.readiness = Readiness()
        self._health = HealthServer(self.metrics, self.readiness, stuck=self._stuck)
        self.leadership: Leadership | None = None
        if client.fence is not None:
            identity, host = settings.identity or f"{socket.gethostname()}_{uuid.uuid4()}", client.configuration.host
            leadership = Leadership(client, client.fence, self.readiness, lease=settings.lease, identity=identity, host=host)
            self.leadership = leadership
            self.metrics.observe_leader(client.fence.is_open, lambda: leadership.since)
        self.queue: WorkQueue[Key] = WorkQueue()
        self.cache = ObjectCache(client)
        known, crashes = KnownCatalog.of(load_catalog()), KnownStarts.of(load_startup())
        share = LogShare(parsed=self.metrics.log_parse_seconds.inc)
        self.followers = Followers(
            self.cache,
            make_parser=crashes.make_parser,
            changed=partial(self.queue.add, priority=Priority.EVENT),
            slots=Slots(settings.log_streams),
            restarted=self.metrics.task_restarts.labels("log").inc,
            share=share,
            skipped=lambda namespace, seconds: self.metrics.log_skipped_seconds.labels(namespace).inc(seconds),
        )
        self.pod_observer = PodObserver(client, crashes, self.metrics, settings=settings, share=share) if settings.observe else None
        self._all_followers = (self.followers, *([self.pod_observer.followers] if self.pod_observer is not None else ()))
        hub = HttpHub(settings.hub_endpoint) if settings.hub_endpoint else None
        self.configs = ModelConfigs(client, hub, wait_seconds=settings.hub_wait_seconds, changed=self.queue.add) if hub else None
        inventory = InventoryCache(client, partial(read_inventory, gpus=known.shipped.gpus), sees_all_pods=not settings.namespaces)
        self.reconciler = Reconciler(
            self.cache,
            known,
            crashes,
            inventory=inventory,
            logs=self.followers,
            metrics=self.metrics,
            configs=self.configs,
            settings=settings,
        )
        self.workers = Workers(self.queue, self.reconciler, self.metrics, number=settings.workers, resync_seconds=settings.resync_seconds)
        self.metrics.observe_queue(lambda: len(self.queue), self.queue.oldest_seconds)
        self.metrics.observe_streams(self.followers.streams)
        self.metrics.observe_orphans(self._orphans)
        self.preconditions = Preconditions(client, self.readiness, namespaces=settings.namespaces, host=client.configuration.host)
        client.refused = self.preconditions.recheck
        self.updater = ObjectCacheUpdater(
            cache=self.cache, add=self.queue.add, namespaces=settings.namespaces, seconds=settings.resync_seconds
        )
        uses = {
            "rules": (known.use, self.updater.add_all),
            "signatures": (crashes.use, self._read_crashes_again),
            "instance_types": (known.use_instance_types, self.updater.add_all),
        }
        self.user_data = [
            UserData(client, use, what=what, config_map=name, metrics=self.metrics, changed=changed)
            for what, (use, changed) in uses.items()
            if (name := getattr(settings, f"{what}_config_map"))
        ]

    async def _read_crashes_again(self) -> None:
        """Apply new signatures to current crashes: read the logs again, and reconcile all objects."""
        for followers in self._all_followers:
            followers.read_again()
        await self.updater.add_all()

    def _orphans(self) -> dict[str, list[int]]:
        """Return the sizes of the volumes without a VLLMDeployment, in bytes, by namespace."""
        unowned, sizes = self.cache.unowned(CLAIM), defaultdict[str, list[int]](list)
        namespaces = {claim["metadata"]["namespace"] for claim in unowned}
        for claim in find_orphans(unowned, (it for each in namespaces for it in self.cache.known(VLLM_DEPLOYMENT, each))):
            sizes[claim["metadata"]["namespace"]].append(requested_bytes(claim))
        return sizes

    async def run(self, stop: asyncio.Event) -> int:
        """Run until a signal, until `stop` is set, or until a part ends. Return the exit status."""
        self._stop = stop
        host, port = self._settings.http_host, self._settings.http_port
        try:
            log.info("probes and metrics on port %d", await self._health.start(host, port))
        except OSError as error:
            log.error("cannot listen on %s:%d for probes and metrics: %s", host, port, error.strerror)
            return 1
        self._start("connection", self._client.watch_connection())
        if self.leadership is not None:
            self._start("leadership", self.leadership.run())
        try:
            if (kinds := await self._prepare()) is not None:
                await self._watch(kinds)
        except Exception:
            log.exception("the watches failed; the operator exits, to be started again")
            self._has_failed = True
        finally:
            await self._end_parts()
        return 1 if self._has_failed else 0

    async def _prepare(self) -> tuple[Kind, ...] | None:
        """Wait until this process leads and can serve. Return the kinds to watch, or None if it must stop first."""
        stopping = asyncio.create_task(self._stop.wait())
        preparing = asyncio.create_task(self._until_ready(), name="preconditions")
        try:
            await asyncio.wait((stopping, preparing), return_when=asyncio.FIRST_COMPLETED)
            return await preparing if preparing.done() else None
        finally:
            stopping.cancel()
            preparing.cancel()
            await asyncio.gather(stopping, preparing, return_exceptions=True)

    async def _until_ready(self) -> tuple[Kind, ...]:
        if self.leadership is not None:
            await self.leadership.begun.wait()
        self.readiness.missing.setdefault("first list", "first list: not complete yet")
        kinds = await self.preconditions.wait()
        for data in self.user_data:
            await data.load()
        return kinds

    async def _watch(self, kinds: Sequence[Kind]) -> None:
        watches = Watches(
            kinds=kinds,
            configuration=lambda: self._client.configuration,
            notice=self._notice,
            listed=self.updater.recheck,
            namespaces=self._settings.namespaces,
            started=partial(self._start_parts, kinds),
            stopped=self._end_parts,
        )
        watching = asyncio.create_task(watches.run(self._stop), name="kopf")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            await self._end_parts()
            # kopf 1.45.2 waits for its watches before it calls us, and for some of them for ever.
            await asyncio.wait((watching,), timeout=KOPF_SECONDS)
            if not watching.done():
                log.warning("the watches do not end; the operator exits without them")
                self._has_failed = True
                return
            await watching
        finally:
            stopping.cancel()

    async def _start_parts(self, kinds: Sequence[Kind], **_: object) -> None:
        self._start("object cache", self.updater.run(kinds))
        self._start("workers", self._work())
        self._start("preconditions", self.preconditions.watch(kinds))
        for data in self.user_data:
            self._start("user data", data.run())
        if self.pod_observer is not None:
            self._start("observed Pods", self.pod_observer.run())

    async def _work(self) -> None:
        await self.updater.loaded.wait()
        _stop_on_signals(self._stop)  # kopf has replaced the handlers by its own, which wait for all watches
        self.readiness.clear_missing("first list")
        log.info("serving %s", self._settings.scope)
        await self.workers.run()

    def _start(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start a part. If it ends, the operator exits."""
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._end_with)
        self._tasks.append(task)

    def _end_with(self, task: asyncio.Task[object]) -> None:
        if self._stop.is_set():
            return
        self._has_failed = True
        self._stop.set()
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, LeadershipLost | WatchesOutdated | ConnectionOutdated):  # expected, so a traceback would be misleading
            role = " as a standby" if isinstance(failure, LeadershipLost) else ""
            log.warning("%s. The operator exits, to be started again%s", failure, role)
        else:
            log.error("the task %r %s; the operator exits, to be started again", task.get_name(), describe_end(task), exc_info=failure)

    async def _end_parts(self, **_: object) -> None:
        """Stop all parts in order. Release the Lease last, because the next operator must be the only one that writes."""
        if self._is_ending:
            return
        self._is_ending = True
        self._stop.set()
        log.info("stopping")
        if self._client.fence is not None:
            self._client.fence.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for task in self._tasks:
                    task.cancel()
                # Stop the tasks first: a reconciliation in progress could follow another log, or ask the hub.
                await asyncio.gather(*self._tasks, return_exceptions=True)
                # Then stop all others, because kopf waits for remaining tasks.
                parts = [part.close() for part in (*self._all_followers, self.configs) if part is not None]
                await asyncio.gather(*parts, self._health.stop(), return_exceptions=True)
        if self.leadership is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.leadership.release()

    def _notice(self, kind: Kind, manifest: Manifest, deleted: bool) -> None:
        self.metrics.watch_events.labels(kind.kind).inc()
        self.updater.notice(kind, manifest, deleted=deleted)

    def _stuck(self) -> str | None:
        if (seconds := self.queue.longest_processing_seconds()) > STUCK_SECONDS:
            return f"a reconciliation has been going on for {seconds:.0f} s"
        if (seconds := self.queue.stalled_seconds()) > STUCK_SECONDS:
            return f"no key was handed out for {seconds:.0f} s although one is ready"
        return None
