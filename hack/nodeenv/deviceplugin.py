"""A stand-in for NVIDIA's device plugin: offers GPUs and slices to the kubelet that are not there.

    python -m nodeenv.deviceplugin FOLDER nvidia.com/gpu=8 nvidia.com/mig-1g.10gb=2

FOLDER is where the kubelet has its socket. A container that is given devices finds their UUIDs in NVIDIA_VISIBLE_DEVICES,
as with the real one. A kubelet that starts anew forgets all plugins and removes their sockets, so each registers again.
"""

import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_LOOKS_EVERY = 0.2
_ANSWERS_WITHIN = 5.0

# what is generated from the .proto has no types
messages: Any
services: Any
messages, services = grpc.protos_and_services("nodeenv/deviceplugin.proto")


class Plugin(services.DevicePluginServicer):  # type: ignore[misc]  # as said above
    def __init__(self, resource: str, count: int) -> None:
        self.resource = resource
        self.devices = device_names(resource, count)

    def GetDevicePluginOptions(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 the API names it
        return messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802 the API names it
        """Tell of the devices once, and keep the stream open: its end would take them away."""
        over = threading.Event()
        context.add_callback(over.set)
        yield messages.ListAndWatchResponse(devices=[messages.Device(ID=name, health="Healthy") for name in self.devices])
        over.wait()

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 the API names it
        given = [",".join(container.devices_ids) for container in request.container_requests]
        say(f"{self.resource}: {' and '.join(given)} for a Pod")
        return messages.AllocateResponse(
            container_responses=[messages.ContainerAllocateResponse(envs={VARIABLE: names}) for names in given]
        )


def device_names(resource: str, count: int) -> Sequence[str]:
    """UUIDs as the driver gives them, the same ones each time."""
    kind = "MIG" if "/mig-" in resource else "GPU"
    return [f"{kind}-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{number}.{resource}')}" for number in range(count)]


def serve(folder: Path, plugin: Plugin) -> None:
    """Offer a resource to each kubelet that comes, for ever."""
    while True:
        kubelet = identity(folder / KUBELET)
        if kubelet is None:
            time.sleep(_LOOKS_EVERY)
            continue
        endpoint = folder / f"stand-in-{plugin.resource.replace('/', '-')}.sock"
        endpoint.unlink(missing_ok=True)
        # the kubelet holds one stream open and asks for the rest now and then
        server = grpc.server(ThreadPoolExecutor(4))
        services.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{endpoint}")
        server.start()
        try:
            register(folder / KUBELET, endpoint.name, plugin.resource)
            say(f"{plugin.resource}: {len(plugin.devices)} registered")
            while identity(folder / KUBELET) == kubelet and endpoint.exists():
                time.sleep(_LOOKS_EVERY)
        except grpc.RpcError as error:
            say(f"{plugin.resource}: {error}")
            time.sleep(_LOOKS_EVERY)
        finally:
            server.stop(grace=None)


def register(kubelet: Path, endpoint: str, resource: str) -> None:
    """Say to the kubelet where a resource is offered. Raises grpc.RpcError if it does not want to know."""
    request = messages.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource)
    with grpc.insecure_channel(f"unix:{kubelet}") as channel:
        services.RegistrationStub(channel).Register(request, timeout=_ANSWERS_WITHIN)


def identity(path: Path) -> tuple[int, int] | None:
    """Tells one socket from the next at the same place; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main(folder: Path, offers: Sequence[str]) -> None:
    plugins = [Plugin(resource, int(count)) for resource, _, count in (offer.partition("=") for offer in offers)]
    threads = [threading.Thread(target=serve, args=(folder, plugin)) for plugin in plugins]
    for thread in threads:
        thread.start()
    # once the first thread has ended, no pool of threads takes work any more
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
