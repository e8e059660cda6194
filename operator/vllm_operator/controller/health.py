"""Probes and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`.

The operator is alive if its event loop runs, workers take keys, and no reconciliation hangs. It is ready if all preconditions are met;
`/readyz` lists the missing ones, one per line.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from vllm_operator.controller.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Readiness:
    """Missing preconditions, as messages by name. The operator is ready if there are none."""

    missing: dict[str, str] = field(default_factory=dict)
    standby: str = ""
    """A message about the leader if this process is a standby. A standby is ready."""

    def set_missing(self, name: str, message: str) -> None:
        """Add a missing precondition. A new message is logged."""
        if self.missing.get(name) != message:
            log.warning("%s", message)
        self.missing[name] = message

    def clear_missing(self, *names: str) -> None:
        """Remove missing preconditions. A change is logged."""
        for name in names:
            if self.missing.pop(name, None) is not None:
                log.info("%s: not missing any more", name)

    def __bool__(self) -> bool:
        return not self.missing


class HealthServer:
    """Serves the probes and the metrics."""

    def __init__(self, metrics: Metrics, readiness: Readiness, *, stuck: Callable[[], str | None]) -> None:
        """Initialize. `stuck` returns why the operator should be restarted, or None."""
        self._metrics = metrics
        self._readiness = readiness
        self._stuck = stuck
        app = web.Application()
        app.add_routes([web.get("/healthz", self._healthz), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics_page)])
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)

    async def start(self, host: str, port: int) -> int:
        """Start to listen. Return the port, which the system chooses if `port` is 0. Raises OSError if the port is in use."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        reason = self._stuck()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._readiness.standby:
            return web.Response(text=f"{self._readiness.standby}\n")
        if self._readiness:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{message}\n" for message in self._readiness.missing.values()))

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
