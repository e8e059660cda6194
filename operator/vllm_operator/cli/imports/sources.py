"""The tools whose deployments can be imported: a Deployment, KServe, LLMKube, and values of the vLLM production stack."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_operator.api.reading import integer, mapping, objects, read_integer, sequence, text
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, words_of_settings
from vllm_operator.cli.imports.pod import CONTAINER_FIELDS, POD_FIELDS

Manifest = Mapping[str, Any]

_GPU = "nvidia.com/gpu"
_KINDS = (
    "a Deployment, an InferenceService or LLMInferenceService of KServe, an InferenceService of LLMKube, or values of the production stack"
)
_EXPOSING = "of KServe. See the page about exposing a model."
_ROUTER = "The router of the production stack finds engines by labels. Point it at the Services of the VLLMDeployments."

_LLMKUBE = frozenset(
    ("modelRef", "runtime", "image", "skipModelInit", "replicas", "vllmConfig", "extraArgs", "env", "endpoint", "resources")
)
_MODEL_SPEC = frozenset(
    [
        "name",
        "repository",
        "tag",
        "modelURL",
        "replicaCount",
        "requestCPU",
        "requestMemory",
        "requestGPU",
        "requestGPUType",
        "limitCPU",
        "limitMemory",
        "vllmConfig",
        "env",
        "hf_token",
        "pvcStorage",
        "storageClass",
        "pvcAccessMode",
        "nodeSelector",
        "tolerations",
        "runtimeClassName",
    ]
)
_OF_API_SERVER = frozenset(("restartPolicy", "serviceAccount", "terminationMessagePath", "terminationMessagePolicy"))
"""Fields of Pods and containers that the API server adds."""


def find_engines(given: Iterable[Manifest]) -> list[Engine]:
    """Find the engines in the objects of a file.

    Raises:
        ImportRefusedError: There is none, or one of them does not run vLLM.
    """
    found = list(given)
    engines: list[Engine] = []
    for each in found:
        api, kind = text(each, "apiVersion"), text(each, "kind")
        if kind == "Deployment":
            if _container(mapping(each, "spec", "template", "spec")):
                engines.append(of_deployment(each, found))
        elif kind == "InferenceService" and api.startswith("serving.kserve.io/"):
            engines.append(of_inference_service(each, found))
        elif kind == "LLMInferenceService":
            engines.append(of_llm_inference_service(each))
        elif kind == "InferenceService" and api.startswith("inference.llmkube.dev/"):
            engines.append(of_llmkube(each, found))
        elif "servingEngineSpec" in each:
            engines += of_production_stack(each)
    if not engines:
        raise ImportRefusedError(f"no engine was found. This command reads {_KINDS}")
    return engines


def of_deployment(manifest: Manifest, others: Sequence[Manifest] = ()) -> Engine:
    """The engine of a Deployment. A Service in the same file that selects its Pods gives the port."""
    pod = mapping(manifest, "spec", "template", "spec")
    container = _container(pod)
    labels = mapping(manifest, "spec", "template", "metadata", "labels")
    advice = ["Clients reach the engine by a new Service, which has the name of the VLLMDeployment and port 8000 by default."]
    services = [each for each in others if text(each, "kind") == "Service" and _selects(mapping(each, "spec", "selector"), labels)]
    service = _service(services[0]) if services else {}
    return Engine(
        source=f"Deployment {text(manifest, 'metadata', 'name')}",
        name=text(manifest, "metadata", "name"),
        namespace=text(manifest, "metadata", "namespace") or None,
        image=text(container, "image") or None,
        words=_words(container),
        container=container,
        pod=pod,
        replicas=integer(manifest, "spec", "replicas"),
        service=service,
        dropped=[*_unread("Pod", pod, POD_FIELDS | _OF_API_SERVER), *_unread("container", container, CONTAINER_FIELDS | _OF_API_SERVER)],
        advice=[] if services else advice,
    )


def of_inference_service(manifest: Manifest, others: Sequence[Manifest] = ()) -> Engine:
    """The engine of an InferenceService of KServe, with its ServingRuntime if that is in the same file."""
    predictor = mapping(manifest, "spec", "predictor")
    model = mapping(predictor, "model")
    runtimes = {text(each, "metadata", "name"): each for each in others if text(each, "kind").endswith("ServingRuntime")}
    runtime = runtimes.get(text(model, "runtime"), {})
    base = next(objects(runtime, "spec", "containers"), {})
    own = model or _container(predictor)
    container = {**base, **{name: value for name, value in own.items() if name not in ("args", "env")}}
    container["env"] = [*objects(base, "env"), *objects(own, "env")]
    image = text(own, "image") or text(base, "image")
    image = "" if "huggingfaceserver" in image else image
    words = [word.replace("{{.Name}}", text(manifest, "metadata", "name")) for word in [*_words(base), *_words(own)]]
    # the runtime for Hugging Face models has a flag of its own that chooses vLLM
    words = [word for word in words if not word.startswith("--backend=")]
    location = next((text(each, "value") for each in objects(own, "env") if each.get("name") == "STORAGE_URI"), "")
    dropped = [
        f"spec.{part}: the operator runs engines only." for part in ("transformer", "explainer") if part in mapping(manifest, "spec")
    ]
    dropped += _unread("spec.predictor", predictor, POD_FIELDS | {"model", "minReplicas", "maxReplicas"})
    dropped += _unread("spec.predictor.model", model, CONTAINER_FIELDS | {"modelFormat", "runtime", "storageUri"})
    maximum = integer(predictor, "maxReplicas")
    advice = [f"Requests went through the gateway {_EXPOSING}"]
    if maximum is not None and maximum > (integer(predictor, "minReplicas") or 1):
        dropped.append(f"maxReplicas {maximum}: autoscaling needs metrics of the engines, which may be missing here.")
        advice.append(f"To scale up to {maximum} replicas, set spec.autoscaling.maxReplicas. See the page about autoscaling.")
    return Engine(
        source=f"InferenceService {text(manifest, 'metadata', 'name')} of KServe",
        name=text(manifest, "metadata", "name"),
        namespace=text(manifest, "metadata", "namespace") or None,
        image=image or None,
        words=words,
        container=container,
        pod=predictor,
        replicas=max(1, integer(predictor, "minReplicas") or 1),
        model=text(model, "storageUri") or location or None,
        dropped=dropped,
        advice=advice,
    )


def of_llm_inference_service(manifest: Manifest) -> Engine:
    """The engine of an LLMInferenceService of KServe."""
    spec = mapping(manifest, "spec")
    pod = mapping(spec, "template")
    container = _container(pod)
    sizes = {name: value for name, value in mapping(spec, "parallelism").items() if name in ("tensor", "pipeline", "data")}
    words = [*_words(container), *words_of_settings({f"{name}ParallelSize": value for name, value in sizes.items()})]
    words += ["--enable-expert-parallel"] if mapping(spec, "parallelism").get("expert") is True else []
    dropped = _unread("spec", spec, frozenset(("model", "replicas", "parallelism", "router", "template")))
    dropped += _unread("spec.model", mapping(spec, "model"), frozenset(("uri", "name")))
    dropped += _unread("spec.parallelism", mapping(spec, "parallelism"), frozenset(("tensor", "pipeline", "data", "expert")))
    dropped += _unread("spec.template", pod, POD_FIELDS)
    router = [f"Requests went through the router {_EXPOSING}"] if spec.get("router") else []
    return Engine(
        source=f"LLMInferenceService {text(manifest, 'metadata', 'name')} of KServe",
        name=text(manifest, "metadata", "name"),
        namespace=text(manifest, "metadata", "namespace") or None,
        image=text(container, "image") or None,
        words=words,
        container=container,
        pod=pod,
        replicas=integer(spec, "replicas"),
        model=text(spec, "model", "uri") or None,
        served_name=text(spec, "model", "name") or None,
        dropped=dropped,
        advice=router,
    )


def of_llmkube(manifest: Manifest, others: Sequence[Manifest] = ()) -> Engine:
    """The engine of an InferenceService of LLMKube, with the Model that it names, from the same file.

    Raises:
        ImportRefusedError: It runs another engine, or its Model is missing.
    """
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "runtime") != "vllm":
        raise ImportRefusedError(f"the InferenceService {name} has the runtime {text(spec, 'runtime') or 'llamacpp'}, not vllm")
    wanted = text(spec, "modelRef")
    model = next((each for each in others if text(each, "kind") == "Model" and text(each, "metadata", "name") == wanted), None)
    if model is None:
        raise ImportRefusedError(f"the InferenceService {name} names the Model {wanted}, which is not in the file. Add it to the file")
    config = mapping(spec, "vllmConfig")
    secret = mapping(config, "hfTokenSecretRef")
    resources = mapping(spec, "resources")
    amounts = {key: resources[key] for key in ("cpu", "memory") if resources.get(key)}
    gpus = integer(resources, "gpu") or integer(model, "spec", "hardware", "gpu", "count") or 1
    words = words_of_settings(config, without=("hfTokenSecretRef", "speculative", "extraArgs"))
    words += [*map(str, sequence(config.get("extraArgs"))), *map(str, sequence(spec.get("extraArgs")))]
    port, kind = integer(spec, "endpoint", "port"), text(spec, "endpoint", "type")
    return Engine(
        source=f"InferenceService {name} of LLMKube",
        name=name,
        namespace=text(manifest, "metadata", "namespace") or None,
        image=text(spec, "image") or None,
        words=words,
        container={"env": list(objects(spec, "env")), "resources": {"requests": amounts, "limits": {_GPU: gpus}}},
        pod=spec,
        replicas=integer(spec, "replicas"),
        model=text(model, "spec", "source") or None,
        token=(text(secret, "name"), text(secret, "key") or "token") if secret else None,
        service={**({"port": port} if port not in (None, 8000) else {}), **({"type": kind} if kind not in ("", "ClusterIP") else {})},
        dropped=[
            *(["vllmConfig.speculative: write it as the flag --speculative-config."] if config.get("speculative") else []),
            *_unread("spec", spec, POD_FIELDS | _LLMKUBE),
        ],
    )


def of_production_stack(values: Manifest) -> list[Engine]:
    """The engines in values of the chart of the vLLM production stack."""
    common = mapping(values, "servingEngineSpec")
    return [_of_model_spec(each, common, has_router="routerSpec" in values) for each in objects(common, "modelSpec")]


def _of_model_spec(each: Manifest, common: Manifest, *, has_router: bool) -> Engine:
    config = mapping(each, "vllmConfig")
    requests = {name: each[key] for name, key in (("cpu", "requestCPU"), ("memory", "requestMemory")) if each.get(key)}
    limits = {name: each[key] for name, key in (("cpu", "limitCPU"), ("memory", "limitMemory")) if each.get(key)}
    gpu = text(each, "requestGPUType") or _GPU
    env = list(objects(each, "env"))
    secret = each.get("hf_token")
    if isinstance(secret, str) and secret:
        env.append({"name": "HF_TOKEN", "value": secret})
    volume = {"size": each.get("pvcStorage"), "storageClassName": each.get("storageClass") or None}
    modes = sequence(each.get("pvcAccessMode"))
    volume |= {"accessMode": modes[0]} if modes and modes[0] != "ReadWriteOnce" else {}
    weights = {"volume": {name: value for name, value in volume.items() if value}} if any(volume.values()) else {}
    image = f"{text(each, 'repository')}:{text(each, 'tag') or 'latest'}" if text(each, "repository") else None
    pod = {**common, **{name: each[name] for name in ("nodeSelector", "tolerations", "runtimeClassName") if each.get(name)}}
    return Engine(
        source=f"model {text(each, 'name')} of the production stack",
        name=text(each, "name"),
        image=image,
        words=[*words_of_settings(config, without=("v1", "extraArgs", "v0")), *map(str, sequence(config.get("extraArgs")))],
        container={"env": env, "resources": {"requests": requests, "limits": {**limits, gpu: each.get("requestGPU") or 0}}},
        pod={name: pod[name] for name in ("nodeSelector", "tolerations", "runtimeClassName") if pod.get(name)},
        replicas=read_integer(each.get("replicaCount")),
        model=text(each, "modelURL") or None,
        token=(text(secret, "secretName"), text(secret, "secretKey")) if isinstance(secret, dict) else None,
        weights=weights,
        dropped=_unread("modelSpec", each, _MODEL_SPEC),
        advice=[_ROUTER] if has_router else [],
    )


def _unread(where: str, source: Manifest, known: frozenset[str]) -> list[str]:
    """A sentence for each setting that has a value and is not translated."""
    return [f"{where}.{name}: it has no counterpart here." for name, value in source.items() if name not in known and value]


def _container(pod: Manifest) -> Manifest:
    """The container that runs vLLM: by its image or command, else the first with a GPU."""
    containers = list(objects(pod, "containers"))
    by_words = [each for each in containers if any("vllm" in word for word in (text(each, "image"), *_words(each)))]
    by_gpu = [each for each in containers if any(name.startswith("nvidia.com/") for name in mapping(each, "resources", "limits"))]
    named = [each for each in containers if each.get("name") in ("main", "kserve-container")]
    return next(iter([*by_words, *by_gpu, *named]), {})


def _words(container: Manifest) -> list[str]:
    return [str(word) for name in ("command", "args") for word in sequence(container.get(name))]


def _selects(selector: Manifest, labels: Manifest) -> bool:
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


def _service(manifest: Manifest) -> dict[str, Any]:
    port = integer(next(objects(manifest, "spec", "ports"), {}), "port")
    kind = text(manifest, "spec", "type")
    return {**({"port": port} if port not in (None, 8000) else {}), **({"type": kind} if kind not in ("", "ClusterIP") else {})}
