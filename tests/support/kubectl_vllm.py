"""`kubectl vllm` as a process, as the plugin starts it."""

import asyncio
import json
import os
import sys
from typing import Any

from support.cluster import Cluster

PROGRAM = "import sys; from vllm_operator.__main__ import kubectl_plugin; sys.exit(kubectl_plugin())"


async def kubectl_vllm(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Run a command with the kubeconfig as an option, in the namespace of the test; return the exit status and what it said.

    Of `import`, only what it prints, without its report.
    """
    scope = ("--kubeconfig", str(cluster.kubeconfig), *(() if "-A" in arguments or "gpus" in arguments else ("-n", cluster.namespace)))
    is_import = arguments[0] == "import"
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments, *(() if is_import else scope)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if is_import else asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def as_json(cluster: Cluster, *arguments: str) -> Any:
    """What a command prints for programs."""
    status, said = await kubectl_vllm(cluster, *arguments, "-o", "json")
    assert status == 0, said
    return json.loads(said)
