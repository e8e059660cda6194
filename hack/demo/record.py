"""Records moments of the demo, from which tests draw the pictures of the documentation: `python -m demo --record tests/golden/screens`."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from demo.history import History
from testenv.api import ApiClient

OF_METADATA = ("name", "namespace", "creationTimestamp", "generation", "labels", "ownerReferences")
OF_EVENTS = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "series")


def is_compiling(histories: Mapping[str, History]) -> bool:
    """Whether a first start is half through its kernels, one has crashed, and one finds no GPU."""
    startup = histories["deepseek"].status.get("startup") or {} if "deepseek" in histories else {}
    is_half = startup.get("stage") == "KernelWarmup" and 2 * startup.get("completed", 0) > startup.get("total", 0) > 0
    return is_half and len(histories) == 3 and all(each.is_settled for name, each in histories.items() if name != "deepseek")


def record(client: ApiClient, namespace: str, file: Path) -> None:
    """Write the objects, events and Pods of a namespace into a file."""
    core, group = f"/api/v1/namespaces/{namespace}", f"/apis/vllm-operator.dev/v1alpha1/namespaces/{namespace}"
    content = {
        "moment": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "objects": [_object(each) for each in client.request("GET", f"{group}/vllmdeployments")["items"]],
        "events": list(_events(client.request("GET", f"{core}/events")["items"])),
        "pods": [_pod(each) for each in client.request("GET", f"{core}/pods")["items"]],
    }
    file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _object(resource: Mapping[str, Any]) -> dict[str, Any]:
    header = {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment"}
    return {**header, "metadata": _metadata(resource), "spec": resource["spec"], "status": resource.get("status", {})}


def _metadata(resource: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in resource["metadata"].items() if name in OF_METADATA}
    owners = [{name: value for name, value in owner.items() if name != "uid"} for owner in metadata.pop("ownerReferences", ())]
    return metadata | ({"ownerReferences": owners} if owners else {})


def _events(events: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for event in events:
        about = event["involvedObject"]
        if about["kind"] == "VLLMDeployment":
            told = {name: event[name] for name in OF_EVENTS if event.get(name) is not None}
            yield {"involvedObject": {"kind": about["kind"], "name": about["name"]}, **told}


def _pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    containers = [{"name": each["name"], "resources": each.get("resources", {})} for each in pod["spec"]["containers"]]
    spec = {"nodeName": pod["spec"].get("nodeName"), "containers": containers}
    return {"metadata": _metadata(pod), "spec": spec, "status": {"phase": pod["status"]["phase"]}}
