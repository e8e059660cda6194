"""kubectl, as a user has it."""

import asyncio
import os
from pathlib import Path

from testenv.binaries import ensure_binaries


class KubectlError(Exception):
    """kubectl refused; the message is its own."""


class Kubectl:
    """kubectl with a kubeconfig, in a namespace, without settings of the person who runs the tests."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._command = [str(ensure_binaries(["kubectl"])["kubectl"]), f"--kubeconfig={kubeconfig}", f"--namespace={namespace}"]

    async def run(self, *arguments: str, stdin: str = "") -> str:
        """Run a command and return what it prints.

        Raises:
            KubectlError: It failed.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate(stdin.encode())
        if process.returncode:
            raise KubectlError(errors.decode().strip())
        return output.decode()
