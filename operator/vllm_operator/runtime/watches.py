"""Watches: what happens in the cluster, event by event. The only place, with the app, that knows kopf.

kopf is used as plumbing: discovery, list and watch, bookmarks, reconnects. Its handlers hand an event on and return
nothing, so it writes nothing to any object: no finalizer, no annotation. It runs in a thread and an event loop
of its own, because when it ends it cancels every task of its loop, and reconciliations must not end with it.

Nodes are not watched: they are large, and change with every heartbeat.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import kopf
import uvloop

from vllm_operator.api import labels
from vllm_operator.cluster.client import Kind, Manifest
from vllm_operator.cluster.selectors import selector_of
from vllm_operator.runtime.kopf_storage import NoDifferences, NoProgress
from vllm_operator.runtime.loop_errors import handle_loop_error

CHUNK = 500
EXIT_SECONDS = 1.5
RECONNECT_SECONDS = (0.5, 0.5, 1.0, 1.0, *(2.0,) * 30)
"""Waits between tries to reach the API server. Short ones: after an outage this is how late we are."""


class Watches:
    """The watches, for as long as `run` runs."""

    def __init__(
        self,
        *,
        notice: Callable[[Kind, str | None, Manifest], None],
        login: Callable[[], kopf.ConnectionInfo],
        kinds: Sequence[Kind],
        namespaces: Sequence[str] = (),
        request_timeout_seconds: float = 15.0,
    ) -> None:
        """`notice` is called with each event (kind, type, object) in the event loop that calls `run`; `login` in kopf's thread."""
        self._notice = notice
        self._login = login
        self._kinds = tuple(kinds)
        self._namespaces = tuple(namespaces)
        self._timeout = request_timeout_seconds
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled, or until kopf gives up.

        Raises:
            Exception: What made kopf give up.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None) if error is None else ended.set_exception(error)

        def serve() -> None:
            try:
                uvloop.run(self._serve(loop))
            except BaseException as error:  # it must not be lost with the thread
                failure = error if isinstance(error, Exception) else RuntimeError(f"the watches ended with {error!r}")
                _call(loop, lambda: tell(failure))
            else:
                _call(loop, lambda: tell(None))

        thread = threading.Thread(target=serve, name="watches", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._stop.set()
            if thread.is_alive():
                await asyncio.wait({ended}, timeout=EXIT_SECONDS)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.get_running_loop().set_exception_handler(handle_loop_error)
        await kopf.operator(
            registry=self._registry(loop),
            settings=self._settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return self._login()

        for kind in self._kinds:
            self._watch(registry, loop, kind)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, loop: asyncio.AbstractEventLoop, kind: Kind) -> None:
        async def handle(event: kopf.RawEvent, **_: Any) -> None:
            _call(loop, lambda: self._notice(kind, event["type"], cast(Manifest, event["object"])))

        kopf.on.event(kind.group, kind.api_version.rpartition("/")[2], kind.plural, id=kind.plural, registry=registry)(handle)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # the CRD is there before this starts; needs no right to read all CRDs
        settings.watching.chunk_size = CHUNK
        settings.networking.request_timeout = self._timeout
        settings.networking.connect_timeout = self._timeout
        settings.networking.error_backoffs = RECONNECT_SECONDS
        settings.process.ultimate_exiting_timeout = None  # that would end the process, not the thread
        settings.persistence.finalizer = f"{labels.GROUP}/finalizer"  # never used; but it must not be a foreign name
        settings.persistence.progress_storage = NoProgress()
        settings.persistence.diffbase_storage = NoDifferences()
        for kind in self._kinds:
            if selector := selector_of(kind):
                words = ",".join(f"{label}={value}" for label, value in selector.items())
                settings.watching.label_selectors[kind.group, kind.api_version.rpartition("/")[2], kind.plural] = words
        return settings


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the main loop has ended already
        loop.call_soon_threadsafe(function)
