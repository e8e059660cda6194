"""The test environment from the command line: `python hack/testenv/__main__.py build|up|down|status`."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testenv.binaries import BINARIES, OF_TESTS, BuildError, cache_root, ensure_binaries
from testenv.controlplane import ControlPlaneError
from testenv.environment import Environment
from testenv.nodes import node_kinds
from testenv.processes import ProcessGroup
from testenv.toolchain import ToolchainError

_DEFAULT_NODES = "h100-sxm,h200,b200,rtx-pro-6000,h100-mig-single,gb10"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A Kubernetes control plane with simulated GPU nodes, for tests and demos")
    parser.add_argument(
        "--folder", type=Path, default=cache_root() / "running", help="where its data, logs and kubeconfig go (%(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="find the binaries, or build them")
    build.add_argument("names", nargs="*", default=list(OF_TESTS), metavar="NAME", help=f"any of {', '.join(BINARIES)}")
    up = commands.add_parser("up", help="start it and leave it running")
    up.add_argument("--nodes", default=_DEFAULT_NODES, help=f"machines, separated by commas: {', '.join(node_kinds())} (%(default)s)")
    commands.add_parser("down", help="stop it")
    commands.add_parser("status", help="say whether it runs")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            return _build(options.names)
        if options.command == "up":
            return _up(options.folder, [kind for kind in options.nodes.split(",") if kind])
        return _down(options.folder) if options.command == "down" else _status(options.folder)
    except (BuildError, ToolchainError, ControlPlaneError) as error:
        print(error, file=sys.stderr)
        return 1


def _build(names: list[str]) -> int:
    if unknown := [name for name in names if name not in BINARIES]:
        print(f"There is no binary {', '.join(unknown)}; there are {', '.join(BINARIES)}.", file=sys.stderr)
        return 2
    for name, path in ensure_binaries(names).items():
        print(f"{name:26} {path}")
    return 0


def _up(folder: Path, kinds: list[str]) -> int:
    if unknown := [kind for kind in kinds if kind not in node_kinds()]:
        print(f"There is no node {', '.join(unknown)}; there are {', '.join(node_kinds())}.", file=sys.stderr)
        return 2
    started = time.monotonic()
    environment = Environment(folder, keep=True)
    environment.start()
    names = environment.add_nodes(*kinds)
    print(f"Up after {time.monotonic() - started:.1f} s, with the nodes {', '.join(names)}.")
    print(f"export KUBECONFIG={environment.kubeconfig}")
    return 0


def _down(folder: Path) -> int:
    stopped = ProcessGroup(folder).stop_leftovers()
    print(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")
    return 0


def _status(folder: Path) -> int:
    running = ProcessGroup(folder).leftovers()
    for name, identity in running.items():
        print(f"{name:26} pid {identity.pid}")
    print(f"export KUBECONFIG={folder / 'kubeconfig'}" if running else "Nothing is running.")
    return 0 if running else 1


if __name__ == "__main__":
    sys.exit(main())
