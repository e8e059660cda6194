"""Compare the operator of this checkout with that of another commit, and with the floor.

    python hack/bench/compare.py [--against main] [--objects 200] [--rounds 1] [--phases burst,update] [--gate]

The floor is a client that only applies the same Deployments and Services. The contenders take turns on control planes of their own, all
equal and empty at first, on one machine in one run. What counts are the ratios. Elapsed times depend on the machine and on what else it
does. Writes and CPU time are almost the same on a busy machine.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.contenders import Contender, floor, other_commit, this_checkout
from bench.figures import Figure, crossed, summarize, table
from bench.load import Api, prepare
from bench.phases import Turn, held_pods
from testenv import Environment
from testenv.nodes import gpu_node

THRESHOLDS = Path(__file__).parent / "thresholds.yaml"
PHASES: dict[str, Callable[[Turn], Awaitable[None]]] = {
    phase.__name__: phase for phase in (Turn.burst, Turn.ready, Turn.down, Turn.steady, Turn.update, Turn.restart, Turn.outage, Turn.churn)
}


async def take_turn(contender: Contender, options: argparse.Namespace) -> list[Figure]:
    nodes = [gpu_node("h100-sxm", f"gpu-{number}") for number in range(options.objects // 4 + 10)]
    with Environment(audit_level="Metadata") as environment:
        environment.create_nodes(nodes)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            api = Api(environment, session)
            await prepare(api, contender.checkout, **held_pods())
            await contender.start(environment.kubeconfig)
            turn = Turn(environment, api, contender, options.objects)
            try:
                for name in options.phases:
                    began = time.monotonic()
                    await PHASES[name](turn)
                    print(f"  {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            finally:
                await contender.stop()
    return turn.figures


async def compare(contenders: Sequence[Contender], options: argparse.Namespace) -> list[tuple[str, list[Figure]]]:
    """Let the contenders take turns. Each round begins with another one."""
    turns = []
    for number in range(options.rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            print(f"round {number + 1}: {contender.name}", file=sys.stderr, flush=True)
            turns.append((contender.name, await take_turn(contender, options)))
    return turns


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also measure the operator of this commit")
    parser.add_argument("--no-floor", action="store_true", help="leave out the floor")
    parser.add_argument("--objects", type=int, default=200, help="VLLMDeployments (default: 200)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each contender; the table has the medians (default: 1)")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"some of {','.join(PHASES)}; burst is always the first")
    parser.add_argument("--gate", action="store_true", help=f"exit with 1 if a figure crosses its threshold in {THRESHOLDS.name}")
    options = parser.parse_args(arguments)
    wanted = set(options.phases.split(",")) | {"burst"}
    if unknown := wanted - set(PHASES):
        parser.error(f"there is no phase {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    options.phases = [phase for phase in PHASES if phase in wanted]
    return options


def main() -> int:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="vllm-operator-bench-") as temporary, ExitStack() as stack:
        contenders = [this_checkout()]
        if options.against:
            contenders.append(stack.enter_context(other_commit(options.against, Path(temporary))))
        if not options.no_floor:
            contenders.append(floor(Path(temporary), [gpu_node("h100-sxm", "gpu")]))
        turns = asyncio.run(compare(contenders, options))
    rows = summarize(turns)
    print(table(rows, [contender.name for contender in contenders]))
    too_much = crossed(rows, yaml.safe_load(THRESHOLDS.read_text("utf-8")), contenders[0].name, contenders[-1].name) if options.gate else []
    print("\n".join(too_much), file=sys.stderr)
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
