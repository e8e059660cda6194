"""Run the demo: `make demo`, or `make demo-keep` to leave it running."""

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from demo.cluster import NAMESPACE, ROOT, Cluster, DemoError
from demo.history import History
from demo.record import is_compiling, record
from demo.screen import Lines, draw
from demo.situations import NAMES, SITUATIONS, failures
from testenv.binaries import BuildError
from testenv.controlplane import ControlPlaneError
from testenv.processes import ProcessGroup
from testenv.toolchain import ToolchainError

SPEED = 20.0
LOOK_EVERY = 0.1
APPLY_EVERY = 2.5
"""Seconds between two situations, so that a person can read each one as it comes."""
SETTLED_WITHIN = 120.0
REPORTED_WITHIN = 10.0
KEPT = ROOT / "build" / "demo"


class Show:
    def __init__(self, cluster: Cluster, console: Console, *, speed: float, folder: Path | None = None) -> None:
        self._cluster = cluster
        self._console = console
        self._speed = speed
        self._folder = folder
        self._began = time.monotonic()
        self._lines = Lines(console)
        self._waiting = list(SITUATIONS)
        self._applied_last = -APPLY_EVERY
        self.histories: dict[str, History] = {}

    def run(self) -> None:
        """Run until all have settled. Raises DemoError."""
        live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else nullcontext()
        with live:
            while not self._is_over():
                self._apply_next()
                self._look()
                if isinstance(live, Live):
                    live.update(self.table(), refresh=True)
                else:
                    self._lines.show(self._in_order(), now=self._now)
                self._check_operator()
                time.sleep(LOOK_EVERY)

    def _is_over(self) -> bool:
        """Whether all have settled, and what their logs say has been reported: that may take a moment longer than Ready."""
        settled_at = [history.settled_at for history in self.histories.values()]
        if self._waiting or not all(settled_at):
            return False
        return not failures(self.histories) or self._now - max(at for at in settled_at if at) > REPORTED_WITHIN

    def table(self) -> RenderableType:
        title = f"{self._now:.0f} s, recorded starts are replayed {self._speed:.0f} times as fast"
        return draw(self._in_order(), title=title, width=self._console.width)

    def _in_order(self) -> list[History]:
        return [self.histories[name] for name in NAMES if name in self.histories]

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _apply_next(self) -> None:
        settled = {None, *(name for name, history in self.histories.items() if history.settled_at is not None)}
        situation = next((each for each in self._waiting if each.after in settled), None)
        if situation is None or self._now - self._applied_last < APPLY_EVERY:
            return
        self._waiting.remove(situation)
        self._applied_last = self._now
        self._console.print(
            f"\n# {situation.title}\n$ kubectl apply -f {situation.manifest.relative_to(ROOT)}", style="bold", highlight=False
        )
        self._cluster.kubectl("apply", "-f", str(situation.manifest))
        self.histories[situation.name] = History(situation.name)

    def _look(self) -> None:
        for resource in self._cluster.resources():
            self.histories[resource["metadata"]["name"]].update(resource, self._now)
        if self._folder is not None and is_compiling(self.histories):
            record(self._cluster.client, NAMESPACE, self._folder / "starting.json")
            self._folder = None

    def _check_operator(self) -> None:
        if not self._cluster.is_operator_alive():
            raise DemoError(f"the operator ended. Its last words:\n{self._cluster.operator_words()}")
        if self._now > SETTLED_WITHIN:
            late = ", ".join(name for name, history in self.histories.items() if not history.settled_at)
            words = self._cluster.operator_words()
            raise DemoError(f"these have not settled after {SETTLED_WITHIN:.0f} s: {late}. The operator's last words:\n{words}")


def main() -> int:
    """Run the demo; 0 if all five situations end as they should."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running and say how to use it")
    parser.add_argument("--stop", action="store_true", help="end what --keep left running")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write what the pictures of the documentation are drawn from")
    parser.add_argument("--speed", type=float, default=SPEED, help="how much faster than recorded (20)")
    arguments = parser.parse_args()
    console = Console()
    if arguments.stop:
        stopped = ProcessGroup(KEPT).stop_leftovers()
        console.print(f"ended: {', '.join(stopped)}" if stopped else "nothing was running")
        return 0
    try:
        return show(console, keep=arguments.keep, speed=arguments.speed, folder=arguments.record)
    except (DemoError, ControlPlaneError, BuildError, ToolchainError) as error:
        console.print(f"The demo failed: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130


def show(console: Console, *, keep: bool, speed: float, folder: Path | None = None) -> int:
    began = time.monotonic()
    if keep and ProcessGroup(KEPT).leftovers():
        explain(console, KEPT / "kubeconfig")
        raise DemoError("it runs already, see above")
    with Cluster(KEPT if keep else None, keep=keep, speed=speed) as cluster:
        cluster.prepare(lambda text: console.print(f"{time.monotonic() - began:6.1f} s  {text}", highlight=False, soft_wrap=True))
        performance = Show(cluster, console, speed=speed, folder=folder)
        performance.run()
        if folder is not None:
            record(cluster.client, NAMESPACE, folder / "settled.json")
        report(console, cluster)
        complaints = failures(performance.histories)
        for complaint in complaints:
            console.print(f"✘ {complaint}", style="red", markup=False, highlight=False, soft_wrap=True)
        verdict = "[bold red]not as it should be" if complaints else "[bold green]all five situations are as they should be"
        console.print(f"{verdict}[/] · {time.monotonic() - began:.0f} s")
        if keep:
            explain(console, cluster.environment.kubeconfig)
        return 1 if complaints else 0


def report(console: Console, cluster: Cluster) -> None:
    commands = [["get", "vllm"], *(["describe", "vllm", name] for name in NAMES)]
    for command in commands:
        console.rule(f"kubectl -n {NAMESPACE} {' '.join(command)}", align="left")
        console.print(cluster.kubectl("-n", NAMESPACE, *command), markup=False, highlight=False, soft_wrap=True)


def explain(console: Console, kubeconfig: Path) -> None:
    console.print(
        f"\nThe cluster and the operator go on running. Point kubectl at them:\n\n"
        f"    export KUBECONFIG={kubeconfig}\n    kubectl -n {NAMESPACE} get vllm --watch\n\n"
        f"Engines are simulated in namespace {NAMESPACE} only. A model of your own replays the start of a small one, without its figures.\n"
        f"In other namespaces, Pods are Ready at once, without an engine.\n\n"
        f"End them with: make demo-stop",
        soft_wrap=True,
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
