"""A Prometheus that scrapes what it is told, from a pinned module."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testenv.binaries import ensure_binaries
from testenv.processes import ProcessGroup, free_ports

_UP_WITHIN = 30.0


class PrometheusError(Exception):
    """Prometheus does not come up, or refuses a query."""


class Prometheus:
    """A Prometheus on this machine, which scrapes `jobs` (its `scrape_configs`) and evaluates rules once a second."""

    def __init__(self, folder: Path, jobs: Sequence[dict[str, Any]], *, rule_files: Sequence[Path] = ()) -> None:
        self._folder, self._jobs, self._rule_files = folder, jobs, rule_files
        self._processes = ProcessGroup(folder)
        self._url = ""

    def start(self) -> None:
        """Start it; return when it answers. Raises PrometheusError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self._url = f"http://{address}"
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in self._rule_files],
            "scrape_configs": list(self._jobs),
        }
        file = self._folder / "prometheus.yml"
        file.write_text(json.dumps(configuration))
        options = [f"--config.file={file}", f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={address}"]
        child = self._processes.start("prometheus", [str(ensure_binaries(["prometheus"])["prometheus"]), *options])
        deadline = time.monotonic() + _UP_WITHIN
        while not self._is_ready():
            if child.poll() is not None or time.monotonic() > deadline:
                raise PrometheusError(f"Prometheus does not come up:\n{(self._folder / 'prometheus.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._processes.stop_all()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now; return the series of the answer. Raises PrometheusError."""
        series: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return series

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as response:
                data: dict[str, Any] = json.load(response)["data"]
                return data
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{parameters}: {error.read().decode()}") from None

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False
