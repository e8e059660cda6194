"""What the operator's process imports, and what it does not: each package costs memory for as long as the operator runs."""

import subprocess
import sys

import pytest

PRINT = "import sys, {}; print(*sorted(name for name, module in sys.modules.items() if module is not None))"


def imported_by(module: str) -> set[str]:
    run = subprocess.run([sys.executable, "-c", PRINT.format(module)], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["vllm_operator.app", "vllm_operator.runtime.watches", "vllm_operator.cluster.kube"])
def test_of_the_kubernetes_package_only_the_asynchronous_transport_is_imported(module: str) -> None:
    found = imported_by(module)
    assert not {name.partition(".")[0] for name in found} & {"requests", "urllib3", "oauthlib", "websocket", "dateutil"}
    assert not {
        name for name in found if name.startswith(("kubernetes.client", "kubernetes.aio.client.models", "kubernetes.aio.client.api"))
    }
    assert {"kubernetes.aio.client.rest", "kubernetes.aio.config.kube_config"} <= found


def test_of_kopf_only_the_watch_is_imported() -> None:
    found = imported_by("vllm_operator.app")
    assert "kopf._cogs.clients.watching" in found
    assert not {name for name in found if name.startswith(("kopf._core", "kopf._kits"))}


def test_the_operator_imports_no_commands() -> None:
    assert not {name for name in imported_by("vllm_operator.app") if name.startswith("vllm_operator.cli.")}


def test_a_process_that_has_imported_the_whole_package_keeps_it() -> None:
    program = (
        "import kubernetes.client, vllm_operator.cluster.library as library\n"
        "assert kubernetes.client.V1Pod and library.Configuration is kubernetes.aio.client.Configuration"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_certificate_authorities_are_loaded_before_a_connection_needs_them() -> None:
    program = (
        "import vllm_operator.app, aiohttp.connector as connector, ssl\n"
        "assert not connector._SSL_CONTEXT_VERIFIED.get_ca_certs()\n"
        "assert connector._SSL_CONTEXT_VERIFIED.verify_mode is ssl.CERT_REQUIRED\n"
        "assert ssl.SSLContext.set_default_verify_paths is not None\n"
        "context = ssl.create_default_context()\n"
        "import os, sys; print(len(context.get_ca_certs()), os.path.exists(ssl.get_default_verify_paths().cafile or ''))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    number, has_file = run.stdout.split()
    assert (int(number) > 0) == (has_file == "True")
