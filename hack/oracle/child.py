"""One process, one vLLM: prints its answers on each architecture as JSON."""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from oracle.machine import Machine


def answer_all(vllm: Path, flashinfer: Path, components: Sequence[str], architectures: Sequence[str]) -> None:
    """Print a line for each component and architecture: everything is imported once; then a fork becomes a machine and is asked."""
    machine = Machine()
    machine.boot(vllm, flashinfer)
    selectors = {component: importlib.import_module(f"oracle.{component}").Selector() for component in components}
    for selector in selectors.values():
        selector.import_backends()
    for component, selector in selectors.items():
        for architecture in architectures:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                number = int(architecture.removeprefix("sm_"))
                machine.become((number // 10, number % 10))
                answers = {name: asdict(answer) for name, answer in selector.answer_all().items()}
                print(json.dumps({"component": component, "architecture": architecture, "answers": answers}), flush=True)
                os._exit(0)
            os.waitpid(child, 0)


if __name__ == "__main__":
    answer_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:])
