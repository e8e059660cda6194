"""Specs that the API server must refuse, and words that its answer must contain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """A spec (merged over a valid one) that is refused; `before` is stored first where the rule is about a change."""

    name: str
    spec: Mapping[str, Any]
    want: tuple[str, ...]
    before: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


MODEL = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}}


def args(*names: str) -> dict[str, Any]:
    return {"engine": {"args": [{"name": name} for name in names]}}


def words(*words: str) -> dict[str, Any]:
    return {"engine": {"extraArgs": list(words)}}


def mig(**fields: Any) -> dict[str, Any]:
    return {"mig": fields}


GPU = "GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5"
UUID = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9"
PLUGIN = {"allocation": "DevicePlugin"}

REFUSALS = (
    Refusal("no model", {"model": None}, ("spec.model: Required value",)),
    Refusal(
        "a model without a scheme", {"model": {"uri": "meta-llama/Llama-3.1-8B"}}, ("spec.model.uri", "hf://organisation/name", "pvc://")
    ),
    Refusal("a model on the hub without an organisation", {"model": {"uri": "hf://llama"}}, ("hf://organisation/name",)),
    Refusal("a model with spaces", {"model": {"uri": "hf://a/b c"}}, ("hf://organisation/name",)),
    Refusal("a revision of a model on a claim", {"model": {"uri": "pvc://models/llama", "revision": "main"}}, ("directory in uri",)),
    Refusal("an unknown field", {"modle": {"uri": "hf://a/b"}}, ('unknown field "spec.modle"',)),
    Refusal("an unknown field of the Pod template", {"podTemplate": {"containers": []}}, ('unknown field "spec.podTemplate.containers"',)),
    Refusal(
        "an unknown quantization", {"model": {"uri": "hf://a/b", "facts": {"quantization": "fp8"}}}, ("supported values", '"FP8Block"')
    ),
    Refusal("a weight size in words", {"model": {"uri": "hf://a/b", "facts": {"weightSize": "640 GB"}}}, ("such as 640Gi",)),
    Refusal(
        "a negative number of experts", {"model": {"uri": "hf://a/b", "facts": {"experts": -1}}}, ("experts", "greater than or equal to 0")
    ),
    Refusal("a context of no tokens", {"sizing": {"contextLength": 0}}, ("contextLength", "greater than or equal to 1")),
    Refusal("a fraction of a request", {"sizing": {"concurrency": "many"}}, ("concurrency", "integer")),
    Refusal("a version that is none", {"engine": {"version": "latest"}}, ("such as 0.20.1",)),
    Refusal("an image with a space", {"engine": {"image": "vllm/vllm-openai: v0.20.1"}}, ("without spaces",)),
    Refusal("a flag with its value in the name", args("--max-model-len=4096"), ("put its value into the field value",)),
    Refusal("two flags in one name", args("--max-model-len 4096"), ("put its value into the field value",)),
    Refusal("one flag twice", args("max-model-len", "max-model-len"), ("Duplicate value",)),
    Refusal("one flag with and without dashes", args("max-model-len", "--max-model-len"), ("given twice", "keep one")),
    Refusal("one flag with dashes and underscores", args("--max_model_len", "--max-model-len"), ("given twice",)),
    Refusal("the port as a flag", args("--port"), ("use service.port",)),
    Refusal("the host as a flag without dashes", args("host"), ("use service.port",)),
    Refusal("the model as a flag", args("--model"), ("use model.uri",)),
    Refusal("the served name as a flag", args("--served_model_name"), ("use model.servedName",)),
    Refusal("tensor parallelism as a flag", args("--tensor-parallel-size"), ("use parallelism.tensor",)),
    Refusal("tensor parallelism as a short flag", args("-tp"), ("use parallelism.tensor",)),
    Refusal("pipeline parallelism as a short flag", args("-pp"), ("use parallelism.pipeline",)),
    Refusal("data parallelism as a flag", args("--data-parallel-size"), ("use parallelism.data",)),
    Refusal("expert parallelism as a flag", args("--enable-expert-parallel"), ("use parallelism.expert",)),
    Refusal("one value and several", {"engine": {"args": [{"name": "a", "value": "1", "values": ["2"]}]}}, ("either value or values",)),
    Refusal("a flag of no values", {"engine": {"args": [{"name": "a", "values": []}]}}, ("at least 1 items",)),
    Refusal("the port as a word", words("--seed", "7", "--port=80"), ("use service.port", "extraArgs")),
    Refusal("tensor parallelism as a word", words("--tensor_parallel_size", "2"), ("use parallelism.tensor",)),
    Refusal("tensor parallelism as a short word", words("-tp", "2"), ("use parallelism.tensor",)),
    Refusal("two words in one", words("--seed 7"), ("write each word by itself",)),
    Refusal("a word that is no flag first", words("a/b", "--seed"), ("the first word must be a flag",)),
    Refusal("a variable with its value in the name", {"engine": {"env": [{"name": "HF_HOME=/x"}]}}, ("the value into the field value",)),
    Refusal(
        "a variable with a value and a source",
        {"engine": {"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}},
        ("either value or valueFrom",),
    ),
    Refusal("one variable twice", {"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, ("Duplicate value",)),
    Refusal("an architecture with a dot", {"accelerator": {"architectures": ["sm_9.0"]}}, ("sm_90 (H100, H200)",)),
    Refusal("an architecture by its product", {"accelerator": {"architectures": ["H100"]}}, ("sm_90 (H100, H200)",)),
    Refusal("a product with spaces", {"accelerator": {"products": ["NVIDIA H200"]}}, ("nvidia.com/gpu.product",)),
    Refusal("no GPU", {"accelerator": {"count": 0}}, ("greater than or equal to 1",)),
    Refusal("MIG without saying which", {"accelerator": mig()}, ("give mode, profile or uuids",)),
    Refusal("no MIG slice, but a profile", {"accelerator": mig(mode="Disabled", profile="1g.10gb")}, ("or set mode to Enabled",)),
    Refusal("a MIG profile in capitals", {"accelerator": mig(profile="1G.10GB")}, ("such as 1g.10gb",)),
    Refusal("a MIG profile as a resource", {"accelerator": mig(profile="nvidia.com/mig-1g.10gb")}, ("without nvidia.com/mig-",)),
    Refusal("the UUID of a whole GPU", {"accelerator": mig(uuids=["GPU-1"])}, ("starts with MIG-",)),
    Refusal("a MIG UUID with the device plugin", {"accelerator": mig(uuids=[UUID]) | PLUGIN}, ("only with DRA", "use mig.profile")),
    Refusal("fewer MIG UUIDs than replicas", {"accelerator": mig(uuids=[UUID]), "replicas": 2}, ("fewer UUIDs",)),
    Refusal("a GPU UUID with the device plugin", {"accelerator": {"uuids": [GPU], **PLUGIN}}, ("only with DRA", "nodeSelector")),
    Refusal("the UUID of a slice as a GPU", {"accelerator": {"uuids": [UUID]}}, ("starts with GPU-",)),
    Refusal("GPUs and slices at once", {"accelerator": mig(profile="1g.10gb") | {"uuids": [GPU], "allocation": "DRA"}}, ("not both",)),
    Refusal(
        "fewer GPU UUIDs than GPUs",
        {"accelerator": {"uuids": [GPU], "allocation": "DRA"}, "parallelism": {"tensor": 2}},
        ("fewer UUIDs in accelerator.uuids",),
    ),
    Refusal(
        "tensor parallelism over MIG slices",
        {"accelerator": mig(profile="3g.40gb"), "parallelism": {"tensor": 2}},
        ("do not work with MIG slices", "more replicas"),
    ),
    Refusal(
        "pipeline parallelism over MIG slices",
        {"accelerator": mig(profile="3g.40gb"), "parallelism": {"pipeline": 2}},
        ("do not work with MIG slices",),
    ),
    Refusal(
        "fewer GPUs than the parallelism needs",
        {"accelerator": {"count": 4}, "parallelism": {"tensor": 4, "data": 2}},
        ("less than parallelism.tensor times pipeline times data", "remove count"),
    ),
    Refusal(
        "expert parallelism of a dense model",
        {"model": MODEL["model"] | {"facts": {"experts": 0}}, "parallelism": {"expert": "Enabled"}},
        ("needs a model with experts",),
    ),
    Refusal("a switch as a boolean", {"parallelism": {"expert": True}}, ("spec.parallelism.expert", "must be of type string")),
    Refusal("an empty backend", {"backends": {"moe": ""}}, ("spec.backends.moe",)),
    Refusal("two backends in one field", {"backends": {"moe": "MARLIN,TRITON"}}, ("write Auto, or the name",)),
    Refusal("an artifact from nowhere", {"cache": {"artifact": {"policy": "Required"}}}, ("give repository", "reference")),
    Refusal(
        "a publication to a digest",
        {"cache": {"artifact": {"reference": f"r.example/a@sha256:{'0' * 64}", "publish": "WhenPrimed"}}},
        ("publish needs a repository",),
    ),
    Refusal("a repository with a tag", {"cache": {"artifact": {"repository": "r.example/a:1"}}}, ("without a tag",)),
    Refusal("a reference without a digest", {"cache": {"artifact": {"reference": "r.example/a:1"}}}, ("and a digest",)),
    Refusal("more replicas at least than at most", {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, ("lower minReplicas or raise",)),
    Refusal(
        "no replicas without anything that tells of requests",
        {"autoscaling": {"minReplicas": 0, "maxReplicas": 2, "keda": {"prometheusAddress": "http://prometheus:9090"}}},
        ("minReplicas 0 needs keda.activationQuery",),
    ),
    Refusal(
        "a part of the KV cache above 100 percent",
        {"autoscaling": {"maxReplicas": 2, "metric": "KVCacheUsage", "target": 101}},
        ("use at most 100",),
    ),
    Refusal("both a claim and a volume", {"cache": {"claimName": "caches", "volume": {"size": "20Gi"}}}, ("not both",)),
    Refusal("a claim of no size", {"cache": {"volume": {"size": "0Gi"}}}, ("such as 20Gi",)),
    Refusal("a fraction as a claim's size", {"cache": {"volume": {"size": "1.5Ti"}}}, ("such as 20Gi",)),
    Refusal("an unknown access mode", {"cache": {"volume": {"accessMode": "RWX"}}}, ("supported values", "ReadWriteMany")),
    Refusal(
        "several replicas on a claim for one Pod",
        {"replicas": 2, "cache": {"volume": {"accessMode": "ReadWriteOncePod"}}},
        ("only one replica", "use ReadWriteMany"),
    ),
    Refusal(
        "several replicas on a claim of weights for one Pod",
        {"replicas": 2, "weights": {"volume": {"accessMode": "ReadWriteOncePod"}}},
        ("only one replica", "ClaimPerReplica"),
    ),
    Refusal(
        "one more Pod in a rollout, on a claim for one Pod",
        {"rollout": {"maxSurge": 1}, "weights": {"volume": {"accessMode": "ReadWriteOncePod"}}},
        ("remove maxSurge", "ReadWriteOncePod"),
    ),
    Refusal(
        "weights that a Job fetches to a claim for one Pod",
        {"weights": {"prefetch": "BeforeStart", "volume": {"accessMode": "ReadWriteOncePod"}}},
        ("a Job cannot fetch", "remove weights.prefetch"),
    ),
    Refusal(
        "weights that a Job fetches to a claim for one Pod, as the caches have it",
        {"weights": {"prefetch": "BeforeStart"}, "cache": {"volume": {"accessMode": "ReadWriteOncePod"}}},
        ("a Job cannot fetch", "remove weights.prefetch"),
    ),
    Refusal(
        "a claim for each replica that exists already",
        {"cache": {"storage": "ClaimPerReplica", "claimName": "a"}},
        ("remove storage and hostPath",),
    ),
    Refusal(
        "a named claim and a directory of the node",
        {"weights": {"claimName": "a", "hostPath": "/mnt"}},
        ("remove storage and hostPath",),
    ),
    Refusal(
        "a claim's size for a directory of the node",
        {"cache": {"hostPath": "/mnt", "volume": {"size": "1Gi"}}},
        ("volume describes a PersistentVolumeClaim",),
    ),
    Refusal(
        "a directory of the node on a claim",
        {"cache": {"storage": "SharedClaim", "hostPath": "/mnt"}},
        ("hostPath needs storage HostPath",),
    ),
    Refusal("all of the node as a directory", {"cache": {"hostPath": "/"}}, ("write an absolute path",)),
    Refusal(
        "a claim that shrinks",
        {"cache": {"volume": {"size": "10Gi"}}},
        ("grow but not shrink",),
        before={"cache": {"volume": {"size": "40Gi"}}},
    ),
    Refusal("a claim below the default it was made with", {"cache": {"volume": {"size": "10Gi"}}}, ("default size 20Gi",), before={}),
    Refusal("an adapter in an object store", {"adapters": [{"name": "a", "uri": "s3://bucket/a"}]}, ("pvc://claim/path for an adapter",)),
    Refusal("a revision of a model in an object store", {"model": {"uri": "s3://a/b", "revision": "main"}}, ("only what is on the hub",)),
    Refusal("an object store without a path", {"model": {"uri": "s3://bucket"}}, ("s3://bucket/path",)),
    Refusal("weights fetched to directories of nodes", {"weights": {"prefetch": "BeforeStart", "hostPath": "/mnt"}}, ("remove prefetch",)),
    Refusal(
        "weights fetched to claims of Pods", {"weights": {"prefetch": "BeforeStart", "storage": "ClaimPerReplica"}}, ("remove prefetch",)
    ),
    Refusal(
        "weights fetched that are on a claim already",
        {"model": {"uri": "pvc://models/llama"}, "weights": {"prefetch": "BeforeStart"}},
        ("remove weights.prefetch",),
    ),
    Refusal(
        "another access mode for an existing claim",
        {"cache": {"volume": {"accessMode": "ReadWriteMany"}}},
        ("the access mode of a PersistentVolumeClaim cannot change", "cache.claimName"),
        before={},
    ),
    Refusal(
        "another class for an existing claim",
        {"cache": {"volume": {"storageClassName": "fast"}}},
        ("the storage class of a PersistentVolumeClaim cannot change", "cache.claimName"),
        before={"cache": {"volume": {"storageClassName": "slow"}}},
    ),
    Refusal("a negative number of replicas", {"replicas": -1}, ("greater than or equal to 0",)),
    Refusal("replicas as text", {"replicas": "two"}, ("spec.replicas", "must be of type integer")),
    Refusal("a fraction of a second", {"startup": {"stallTimeoutSeconds": 60.5}}, ("must be of type integer",)),
    Refusal(
        "a start that may stall for longer than it may take",
        {"startup": {"deadlineSeconds": 60, "stallTimeoutSeconds": 600}},
        ("raise deadlineSeconds",),
    ),
    Refusal("surge for a rollout that recreates", {"rollout": {"strategy": "Recreate", "maxSurge": 1}}, ("set strategy to RollingUpdate",)),
    Refusal("a rollout that cannot move", {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, ("cannot both be 0", "maxUnavailable 1")),
    Refusal("a port that does not exist", {"service": {"port": 70000}}, ("less than or equal to 65535",)),
    Refusal(
        "an annotation of the operator on the Service",
        {"service": {"annotations": {"vllm-operator.dev/applied-digest": "1"}}},
        ("use another prefix",),
    ),
    Refusal("a class without a load balancer", {"service": {"loadBalancerClass": "a.example/b"}}, ("needs type LoadBalancer",)),
    Refusal(
        "another class of a load balancer",
        {"service": {"type": "LoadBalancer", "loadBalancerClass": "a.example/c"}},
        ("set type to ClusterIP first",),
        before={"service": {"type": "LoadBalancer", "loadBalancerClass": "a.example/b"}},
    ),
    Refusal("a key without a Secret", {"auth": {}}, ("apiKeySecretRef: Required value",)),
    Refusal("a name that is too long for a Service", {}, ("at most 52",), metadata={"name": "a" * 53}),
    Refusal("a name that no Service can have", {}, ("name of a Service",), metadata={"name": "4x.llama"}),
)


def manifest(name: str, spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A VLLMDeployment with a valid model and this spec over it; None removes a field."""
    merged = {key: value for key, value in {**MODEL, **spec}.items() if value is not None}
    return {
        "apiVersion": "vllm-operator.dev/v1alpha1",
        "kind": "VLLMDeployment",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": merged,
    }
