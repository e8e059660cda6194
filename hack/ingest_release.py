"""Add a vLLM release to the catalog: `make ingest RELEASE=0.34.0`.

It downloads the wheel of vLLM and that of the FlashInfer which it needs, and keeps their Python files. From them it writes the
variables, flags and names of the release (see ingest_vllm.py), and what the release's own selectors answer (see oracle).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import ingest_vllm
from oracle.wheels import COMPONENTS, SOURCES, add, fetch


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Add a vLLM release to the catalog.")
    parser.add_argument("release")
    parser.add_argument("--python", default=sys.executable, help="interpreter with requirements/oracle.txt")
    parser.add_argument("--sources", type=Path, default=SOURCES, help="folder for the Python files of wheels")
    arguments = parser.parse_args(argv)
    wheel = fetch("vllm", arguments.release, arguments.sources)
    add([arguments.release], COMPONENTS, arguments.python, arguments.sources)  # first, because it may fail
    return ingest_vllm.main([str(wheel)])


if __name__ == "__main__":
    sys.exit(main())
