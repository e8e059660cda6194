"""The stand-in for the device plugin speaks the kubelet's API over its socket, and comes back when the kubelet does."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import nodeenv.deviceplugin as stand_in
from nodeenv.deviceplugin import messages, services


class Kubelet(services.RegistrationServicer):  # type: ignore[misc]  # grpc makes it as it reads the protocol
    """The kubelet's side: takes registrations, and asks back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[Any] = []

    def Register(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 the API names it
        self.registered.append(request)
        return messages.Empty()

    @contextmanager
    def running(self) -> Iterator[None]:
        for path in self.folder.glob("*.sock"):  # as a kubelet that starts does
            path.unlink()
        server = grpc.server(ThreadPoolExecutor(2))
        services.add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.folder / stand_in.KUBELET}")
        server.start()
        yield
        server.stop(grace=None).wait()

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline, self.registered
            time.sleep(0.02)

    @contextmanager
    def plugin(self, resource: str) -> Iterator[Any]:
        [request] = [each for each in self.registered if each.resource_name == resource]
        with grpc.insecure_channel(f"unix:{self.folder / request.endpoint}") as channel:
            yield services.DevicePluginStub(channel)


@pytest.fixture
def folder() -> Iterator[Path]:
    # a socket's path may not be long
    folder = Path(tempfile.mkdtemp(prefix="plugins-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    command = [sys.executable, "-m", stand_in.__name__, str(folder), "nvidia.com/gpu=8", "nvidia.com/mig-1g.10gb=2"]
    environment = os.environ | {"PYTHONPATH": str(Path(str(stand_in.__file__)).parent.parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        yield Kubelet(folder)
        process.kill()


def test_it_offers_devices_and_names_them_to_the_container(kubelet: Kubelet) -> None:
    with kubelet.running():
        kubelet.until(lambda: len(kubelet.registered) == 2)
        assert {(each.version, each.resource_name) for each in kubelet.registered} == {
            ("v1beta1", "nvidia.com/gpu"),
            ("v1beta1", "nvidia.com/mig-1g.10gb"),
        }
        for resource, count, prefix in (("nvidia.com/gpu", 8, "GPU-"), ("nvidia.com/mig-1g.10gb", 2, "MIG-")):
            with kubelet.plugin(resource) as plugin:
                assert not plugin.GetDevicePluginOptions(messages.Empty(), timeout=20).pre_start_required
                devices = next(plugin.ListAndWatch(messages.Empty(), timeout=20)).devices
                assert len({device.ID for device in devices}) == count
                assert all(device.ID.startswith(prefix) and device.health == "Healthy" for device in devices)
                wanted = messages.ContainerAllocateRequest(devices_ids=[devices[1].ID, devices[0].ID])
                [given] = plugin.Allocate(messages.AllocateRequest(container_requests=[wanted])).container_responses
                assert given.envs == {"NVIDIA_VISIBLE_DEVICES": f"{devices[1].ID},{devices[0].ID}"}


def test_it_registers_again_with_a_kubelet_that_starts_anew(kubelet: Kubelet) -> None:
    with kubelet.running():
        kubelet.until(lambda: len(kubelet.registered) == 2)
    kubelet.registered.clear()
    with kubelet.running():
        kubelet.until(lambda: len(kubelet.registered) == 2)
        with kubelet.plugin("nvidia.com/gpu") as plugin:
            assert len(next(plugin.ListAndWatch(messages.Empty(), timeout=20)).devices) == 8
