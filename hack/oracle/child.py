"""One process, one vLLM: prints its answers on each architecture as JSON."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from oracle.attention import Selector
from oracle.machine import Machine


def answer_all(vllm: Path, flashinfer: Path, architectures: list[str]) -> None:
    """Print a line for each architecture. Everything is imported once; then a fork becomes a machine and is asked."""
    machine = Machine((9, 0))
    machine.boot(vllm, flashinfer)
    selector = Selector()
    selector.import_backends()
    for architecture in architectures:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            number = int(architecture.removeprefix("sm_"))
            machine.become((number // 10, number % 10))
            answers = {name: asdict(answer) for name, answer in selector.answer_all().items()}
            print(json.dumps({"architecture": architecture, "answers": answers}), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    answer_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
