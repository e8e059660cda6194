"""The tools whose deployments can be imported: a Deployment, KServe, LLMKube, and values of the vLLM production stack."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vllm_operator.api.reading import integer, mapping, objects, read_integer, sequence, text
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, words_of_settings
from vllm_operator.cli.imports.pod import CONTAINER_FIELDS, POD_FIELDS
from vllm_operator.inventory.pools import GPU_RESOURCE

Manifest = Mapping[str, Any]

_KINDS = (
    "a Deployment, an InferenceService or LLMInferenceService of KServe, an InferenceService of LLMKube, or values of the production stack"
)
_EXPOSING = "of KServe. See the page about exposing a model."
_ROUTER = "The router of the production stack finds engines by labels. Point it at the Services of the VLLMDeployments."
_NEW_SERVICE = "Clients reach the engine by a new Service, which has the name of the VLLMDeployment and port 8000 by default."
_LLMKUBE = ("modelRef", "runtime", "image", "skipModelInit", "replicas", "vllmConfig", "extraArgs", "env", "endpoint", "resources")
_MODEL_SPEC = (
    *("name", "repository", "tag", "modelURL", "replicaCount", "requestCPU", "requestMemory", "requestGPU", "requestGPUType", "limitCPU"),
    *("limitMemory", "vllmConfig", "env", "hf_token", "pvcStorage", "storageClass", "pvcAccessMode"),
    *("nodeSelector", "tolerations", "runtimeClassName"),
)
_SIZES = ("tensor", "pipeline", "data")
_OF_API_SERVER = ("restartPolicy", "serviceAccount", "terminationMessagePath", "terminationMessagePolicy")
"""Fields of Pods and containers that the API server adds."""


def find_engines(given: Iterable[Manifest]) -> list[Engine]:
    """Find the engines in the objects of a file. Raises ImportRefusedError if there is none, or one of them does not run vLLM."""
    found = list(given)
    engines = [engine for each in found for engine in _engines_of(each, found)]
    if not engines:
        raise ImportRefusedError(f"no engine was found. This command reads {_KINDS}")
    return engines


def _engines_of(manifest: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    match text(manifest, "kind"), text(manifest, "apiVersion").partition("/")[0]:
        case "Deployment", _ if _container(mapping(manifest, "spec", "template", "spec")):
            return [_of_deployment(manifest, others)]
        case "InferenceService", "serving.kserve.io":
            return [_of_inference_service(manifest, others)]
        case "LLMInferenceService", _:
            return [_of_llm_inference_service(manifest)]
        case "InferenceService", "inference.llmkube.dev":
            return [_of_llmkube(manifest, others)]
        case _ if "servingEngineSpec" in manifest:
            common = mapping(manifest, "servingEngineSpec")
            return [_of_model_spec(each, common, has_router="routerSpec" in manifest) for each in objects(common, "modelSpec")]
    return []


def _of_deployment(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of a Deployment. A Service in the same file that selects its Pods gives the port."""
    pod = mapping(manifest, "spec", "template", "spec")
    container = _container(pod)
    labels = mapping(manifest, "spec", "template", "metadata", "labels")
    services = [each for each in others if text(each, "kind") == "Service" and mapping(each, "spec", "selector")]
    services = [each for each in services if mapping(each, "spec", "selector").items() <= labels.items()]
    port = integer(next(objects(services[0], "spec", "ports"), {}), "port") if services else None
    return _engine(
        manifest,
        "Deployment {}",
        image=text(container, "image"),
        words=_words(container),
        container=container,
        pod=pod,
        replicas=integer(manifest, "spec", "replicas"),
        service=_service(port, text(services[0], "spec", "type") if services else ""),
        dropped=[*_unread("Pod", pod, POD_FIELDS, _OF_API_SERVER), *_unread("container", container, CONTAINER_FIELDS, _OF_API_SERVER)],
        advice=[] if services else [_NEW_SERVICE],
    )


def _of_inference_service(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of an InferenceService of KServe, with its ServingRuntime if that is in the same file."""
    predictor = mapping(manifest, "spec", "predictor")
    model = mapping(predictor, "model")
    runtimes = {text(each, "metadata", "name"): each for each in others if text(each, "kind").endswith("ServingRuntime")}
    base = next(objects(runtimes.get(text(model, "runtime"), {}), "spec", "containers"), {})
    own = model or _container(predictor)
    env = [*objects(base, "env"), *objects(own, "env")]
    image = text(own, "image") or text(base, "image")
    words = [word.replace("{{.Name}}", text(manifest, "metadata", "name")) for word in [*_words(base), *_words(own)]]
    location = next((text(each, "value") for each in objects(own, "env") if each.get("name") == "STORAGE_URI"), "")
    parts = [part for part in ("transformer", "explainer") if part in mapping(manifest, "spec")]
    dropped = [f"spec.{part}: the operator runs engines only." for part in parts]
    dropped += _unread("spec.predictor", predictor, POD_FIELDS, ("model", "minReplicas", "maxReplicas"))
    dropped += _unread("spec.predictor.model", model, CONTAINER_FIELDS, ("modelFormat", "runtime", "storageUri"))
    minimum, maximum = integer(predictor, "minReplicas") or 1, integer(predictor, "maxReplicas")
    advice = [f"Requests went through the gateway {_EXPOSING}"]
    if maximum is not None and maximum > minimum:
        dropped.append(f"maxReplicas {maximum}: autoscaling needs metrics of the engines, which may be missing here.")
        advice.append(f"To scale up to {maximum} replicas, set spec.autoscaling.maxReplicas. See the page about autoscaling.")
    return _engine(
        manifest,
        "InferenceService {} of KServe",
        image="" if "huggingfaceserver" in image else image,
        # the runtime for Hugging Face models has a flag of its own that chooses vLLM
        words=[word for word in words if not word.startswith("--backend=")],
        container={**base, **{name: value for name, value in own.items() if name != "args"}, "env": env},
        pod=predictor,
        replicas=max(1, minimum),
        model=text(model, "storageUri") or location,
        dropped=dropped,
        advice=advice,
    )


def _of_llm_inference_service(manifest: Manifest) -> Engine:
    spec = mapping(manifest, "spec")
    pod, parallelism = mapping(spec, "template"), mapping(spec, "parallelism")
    container = _container(pod)
    sizes = words_of_settings({f"{name}ParallelSize": value for name, value in parallelism.items() if name in _SIZES})
    return _engine(
        manifest,
        "LLMInferenceService {} of KServe",
        image=text(container, "image"),
        words=[*_words(container), *sizes, *(["--enable-expert-parallel"] if parallelism.get("expert") is True else [])],
        container=container,
        pod=pod,
        replicas=integer(spec, "replicas"),
        model=text(spec, "model", "uri"),
        served_name=text(spec, "model", "name"),
        dropped=[
            *_unread("spec", spec, ("model", "replicas", "parallelism", "router", "template")),
            *_unread("spec.model", mapping(spec, "model"), ("uri", "name")),
            *_unread("spec.parallelism", parallelism, _SIZES, ("expert",)),
            *_unread("spec.template", pod, POD_FIELDS),
        ],
        advice=[f"Requests went through the router {_EXPOSING}"] if spec.get("router") else [],
    )


def _of_llmkube(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of an InferenceService of LLMKube, with the Model that it names, from the same file.

    Raises ImportRefusedError if it runs another engine, or its Model is missing.
    """
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "runtime") != "vllm":
        raise ImportRefusedError(f"the InferenceService {name} has the runtime {text(spec, 'runtime') or 'llamacpp'}, not vllm")
    wanted = text(spec, "modelRef")
    model = next((each for each in others if text(each, "kind") == "Model" and text(each, "metadata", "name") == wanted), None)
    if model is None:
        raise ImportRefusedError(f"the InferenceService {name} names the Model {wanted}, which is not in the file. Add it to the file")
    config, resources = mapping(spec, "vllmConfig"), mapping(spec, "resources")
    secret = mapping(config, "hfTokenSecretRef")
    amounts = {key: resources[key] for key in ("cpu", "memory") if resources.get(key)}
    gpus = integer(resources, "gpu") or integer(model, "spec", "hardware", "gpu", "count") or 1
    speculative = ["vllmConfig.speculative: write it as the flag --speculative-config."] if config.get("speculative") else []
    return _engine(
        manifest,
        "InferenceService {} of LLMKube",
        image=text(spec, "image"),
        words=[
            *words_of_settings(config, without=("hfTokenSecretRef", "speculative", "extraArgs")),
            *_listed(config, "extraArgs"),
            *_listed(spec, "extraArgs"),
        ],
        container={"env": list(objects(spec, "env")), "resources": {"requests": amounts, "limits": {GPU_RESOURCE: gpus}}},
        pod=spec,
        replicas=integer(spec, "replicas"),
        model=text(model, "spec", "source"),
        token=(text(secret, "name"), text(secret, "key") or "token") if secret else None,
        service=_service(integer(spec, "endpoint", "port"), text(spec, "endpoint", "type")),
        dropped=[*speculative, *_unread("spec", spec, POD_FIELDS, _LLMKUBE)],
    )


def _of_model_spec(each: Manifest, common: Manifest, *, has_router: bool) -> Engine:
    config, secret = mapping(each, "vllmConfig"), each.get("hf_token")
    requests = {name: each[key] for name, key in (("cpu", "requestCPU"), ("memory", "requestMemory")) if each.get(key)}
    limits = {name: each[key] for name, key in (("cpu", "limitCPU"), ("memory", "limitMemory")) if each.get(key)}
    limits[text(each, "requestGPUType") or GPU_RESOURCE] = each.get("requestGPU") or 0
    token = [{"name": "HF_TOKEN", "value": secret}] if isinstance(secret, str) and secret else []
    volume = {"size": each.get("pvcStorage"), "storageClassName": each.get("storageClass")}
    modes = sequence(each.get("pvcAccessMode"))
    volume |= {"accessMode": modes[0]} if modes and modes[0] != "ReadWriteOnce" else {}
    settings = ("nodeSelector", "tolerations", "runtimeClassName")
    return Engine(
        source=f"model {text(each, 'name')} of the production stack",
        name=text(each, "name"),
        image=f"{text(each, 'repository')}:{text(each, 'tag') or 'latest'}" if text(each, "repository") else "",
        words=[*words_of_settings(config, without=("v1", "extraArgs", "v0")), *_listed(config, "extraArgs")],
        container={"env": [*objects(each, "env"), *token], "resources": {"requests": requests, "limits": limits}},
        pod={name: value for name in settings if (value := each.get(name) or common.get(name))},
        replicas=read_integer(each.get("replicaCount")),
        model=text(each, "modelURL"),
        token=(text(secret, "secretName"), text(secret, "secretKey")) if isinstance(secret, dict) else None,
        weights={"volume": {name: value for name, value in volume.items() if value}} if any(volume.values()) else {},
        dropped=_unread("modelSpec", each, _MODEL_SPEC),
        advice=[_ROUTER] if has_router else [],
    )


def _engine(manifest: Manifest, source: str, **parts: Any) -> Engine:
    name = text(manifest, "metadata", "name")
    return Engine(source.format(name), name, text(manifest, "metadata", "namespace"), **parts)


def _unread(where: str, source: Manifest, *known: Collection[str]) -> list[str]:
    """Return a sentence for each setting that has a value and is not translated."""
    unread = (name for name, value in source.items() if value and not any(name in names for names in known))
    return [f"{where}.{name}: it has no counterpart here." for name in unread]


def _container(pod: Manifest) -> Manifest:
    """Return the container that runs vLLM: by its image or command, else the first with a GPU."""
    containers = list(objects(pod, "containers"))
    by_words = [each for each in containers if any("vllm" in word for word in (text(each, "image"), *_words(each)))]
    by_gpu = [each for each in containers if any(name.startswith("nvidia.com/") for name in mapping(each, "resources", "limits"))]
    named = [each for each in containers if each.get("name") in ("main", "kserve-container")]
    return next(iter([*by_words, *by_gpu, *named]), {})


def _words(container: Manifest) -> list[str]:
    return [*_listed(container, "command"), *_listed(container, "args")]


def _listed(source: Manifest, name: str) -> list[str]:
    return [str(word) for word in sequence(source.get(name))]


def _service(port: int | None, kind: str) -> dict[str, Any]:
    """Return what differs from the defaults of a VLLMDeployment."""
    return {**({"port": port} if port not in (None, 8000) else {}), **({"type": kind} if kind not in ("", "ClusterIP") else {})}
