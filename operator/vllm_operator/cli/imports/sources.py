"""The tools whose deployments can be imported: a Deployment, KServe, LLMKube, and values of the vLLM production stack."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from vllm_operator.api.reading import integer, mapping, objects, read_integer, sequence, text
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, split_words, words_of_settings
from vllm_operator.cli.imports.pod import CONTAINER_FIELDS, POD_FIELDS, PROBES
from vllm_operator.inventory.pools import GPU_RESOURCE
from vllm_operator.planning.pod_template import SELECTOR_LABELS

Manifest = Mapping[str, Any]

_KINDS = (
    "a Deployment, an InferenceService or LLMInferenceService of KServe, an InferenceService of LLMKube, or values of the production stack"
)
_EXPOSING = "of KServe. See the page about exposing a model."
_ROUTER = "The router of the production stack finds engines by labels. Point it at the Services of the VLLMDeployments."
_NEW_SERVICE = "Clients reach the engine by a new Service, which has the name of the VLLMDeployment and port 8000 by default."
_LLMKUBE = ("modelRef", "runtime", "image", "skipModelInit", "replicas", "vllmConfig", "extraArgs", "env", "endpoint", "resources")
_MODEL_SPEC = (
    *("name", "enabled", "repository", "tag", "modelURL", "replicaCount", "resources", "requestCPU", "requestMemory", "requestGPU"),
    *("requestGPUType", "limitCPU", "limitMemory", "vllmConfig", "env", "envFromSecret", "hf_token", "pvcStorage", "storageClass"),
    *("pvcAccessMode", "nodeSelector", "nodeSelectorTerms", "affinity", "nodeName", "tolerations", "tolerationsPolicy", "runtimeClassName"),
    *("serviceAccountName", "priorityClassName", "imagePullSecret", "podAnnotations", "extraVolumes", "extraVolumeMounts", "shmSize"),
    *("initContainer", "enableLoRA", "enableTool", "toolCallParser"),
)
_ENGINE_SPEC = (
    *("enableEngine", "modelSpec", "labels", "vllmApiKey", "configs", "tolerations", "nodeSelector", "runtimeClassName", "schedulerName"),
    *("securityContext", "containerSecurityContext", "imagePullPolicy", "containerPort", "sidecar", "strategy", *PROBES),
)
"""Settings of the production stack for one model, and for all models, as in its chart (templates/deployment-vllm-multi.yaml)."""
_WAYS = {
    "modelSpec.chatTemplate": "mount it with spec.podTemplate, and name its path in the flag --chat-template",
    "modelSpec.keda": "see spec.autoscaling",
    "modelSpec.lmcacheConfig": "write it as the flag --kv-transfer-config and variables LMCACHE_* of spec.engine",
}
_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""KServe's templates for LLMInferenceService append the value of this variable to the command line."""
_PUBLISHED = "Newer versions of KServe also serve the model by the name publishers/NAMESPACE/models/NAME. Clients must not use this name."
_LORA = {"maxRank": "maxLoraRank", "maxAdapters": "maxLoras", "maxCpuAdapters": "maxCpuLoras"}
"""Fields of KServe's `spec.model.lora`, with the flags of vLLM for them."""
_PASSED_ON = ("k8s.v1.cni.cncf.io", "kueue.x-k8s.io", "prometheus.io")
"""Prefixes of annotations that KServe passes on from an LLMInferenceService to its Pods (propagateDeploymentMetadata)."""
_QUEUES = "kueue.x-k8s.io/"
"""Prefix of labels that Kueue and KServe pass on from an object to its Pods."""
_OF_TOOLS = (
    "kubectl.kubernetes.io/",
    "deployment.kubernetes.io/",
    "serving.kserve.io/",
    "serving.knative.dev/",
    "autoscaling.knative.dev/",
)
_RENDERED = ("HelmRelease", "HelmChart", "Kustomization", "Application", "ApplicationSet")
_READ_WITH_ENGINES = ("Service", "ServingRuntime", "ClusterServingRuntime", "Model", "LoraAdapter", "Secret", "ConfigMap")
_SIZES = ("tensor", "pipeline", "data")
_DEPLOYMENT = ("replicas", "revisionHistoryLimit", "selector", "strategy", "template")
_SPEC_DEFAULTS = {"progressDeadlineSeconds": 600}
_OF_API_SERVER = ("restartPolicy", "serviceAccount", "terminationMessagePath", "terminationMessagePolicy")
"""Fields of Pods and containers that the API server adds."""


def find_engines(given: Iterable[Manifest]) -> list[Engine]:
    """Find the engines in the objects of a file. Raises ImportRefusedError if there is none, or one of them does not run vLLM."""
    found = list(given)
    read = [(each, _engines_of(each, found)) for each in found]
    engines = [engine for _, those in read for engine in those]
    missed = [each for each, those in read if not those and text(each, "kind") not in _READ_WITH_ENGINES]
    if not engines:
        raise ImportRefusedError(f"no engine was found that can be read. {_way_out(missed)}This command reads {_KINDS}")
    if missed:
        told = f"Not imported: {', '.join(map(_named, missed))}. {_way_out([each for each in missed if _runs_engine(each)])}".rstrip()
        engines[0] = replace(engines[0], dropped=[*engines[0].dropped, told])
    return engines


def _way_out(missed: Sequence[Manifest]) -> str:
    """Return what the user can do about objects that this command does not read."""
    rendered = [_named(each) for each in missed if text(each, "kind") in _RENDERED]
    running = [_named(each) for each in missed if _runs_engine(each)]
    others = [name for each in missed if (name := _named(each)) not in (*rendered, *running)]
    ways = []
    if running:
        ways.append(f"vLLM runs in {', '.join(running)}, a kind that this command does not read: write its Pod template as a Deployment. ")
    if rendered:
        ways.append(f"Render {', '.join(rendered)} first (helm template, kustomize build), and import the result. ")
    if others:
        ways.append(f"Found: {', '.join(others)}. ")
    if missed:
        ways.append("A Deployment that runs in the cluster can be imported, too: vllm-operator import deployment/NAME. ")
    return "".join(ways)


def _named(manifest: Manifest) -> str:
    return f"{text(manifest, 'kind') or 'an object without a kind'} {text(manifest, 'metadata', 'name')}".rstrip()


def _runs_engine(manifest: Manifest) -> bool:
    """Return whether an object of any kind has a container with vLLM, at any depth."""
    if any(_has_vllm(container) for container in objects(manifest, "containers")):
        return True
    inner = chain.from_iterable(value if isinstance(value, list) else [value] for value in manifest.values())
    return any(_runs_engine(each) for each in inner if isinstance(each, dict))


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
            models = [each for each in objects(common, "modelSpec") if each.get("enabled") is not False]
            return [_of_model_spec(each, common, manifest, others) for each in models]
    return []


def _of_deployment(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of a Deployment. A Service in the same file that selects its Pods gives the port."""
    pod = mapping(manifest, "spec", "template", "spec")
    container = _container(pod)
    labels = mapping(manifest, "spec", "template", "metadata", "labels")
    selector = mapping(manifest, "spec", "selector", "matchLabels")
    metadata, dropped = _pod_metadata(mapping(manifest, "spec", "template", "metadata"), without=selector)
    services = [each for each in others if text(each, "kind") == "Service" and mapping(each, "spec", "selector")]
    services = [each for each in services if mapping(each, "spec", "selector").items() <= labels.items()]
    port = integer(next(objects(services[0], "spec", "ports"), {}), "port") if services else None
    spec = mapping(manifest, "spec")
    return _engine(
        manifest,
        "Deployment {}",
        image=text(container, "image"),
        words=_words(container),
        container=container,
        pod=pod,
        metadata=metadata,
        replicas=integer(manifest, "spec", "replicas"),
        service={**_service(port, text(services[0], "spec", "type")), **_load_balancer(services[0])} if services else {},
        rollout=_rollout(mapping(spec, "strategy")),
        dropped=[
            *dropped,
            *_unread("Deployment", {name: value for name, value in spec.items() if value != _SPEC_DEFAULTS.get(name)}, _DEPLOYMENT),
            *_unread("Pod", pod, POD_FIELDS, _OF_API_SERVER),
            *_unread("container", container, CONTAINER_FIELDS, _OF_API_SERVER),
        ],
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
    metadata, dropped = _pod_metadata(mapping(manifest, "metadata"), predictor)
    dropped += [f"spec.{part}: the operator runs engines only." for part in parts]
    dropped += _unread("spec.predictor", predictor, POD_FIELDS, ("model", "minReplicas", "maxReplicas", "labels", "annotations"))
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
        metadata=metadata,
        replicas=max(1, minimum),
        model=text(model, "storageUri") or location,
        dropped=dropped,
        advice=advice,
    )


def _of_llm_inference_service(manifest: Manifest) -> Engine:
    spec = mapping(manifest, "spec")
    pod, parallelism = mapping(spec, "template"), mapping(spec, "parallelism")
    container, more = _with_more_arguments(_container(pod))
    annotations = mapping(manifest, "metadata", "annotations").items()
    metadata, dropped = _pod_metadata(
        {"annotations": {name: value for name, value in annotations if str(name).startswith(_PASSED_ON)}}, spec
    )
    lora = mapping(spec, "model", "lora")
    name = text(manifest, "metadata", "name")
    settings = {f"{name}ParallelSize": value for name, value in parallelism.items() if name in _SIZES}
    settings |= {setting: lora.get(name) for name, setting in _LORA.items()}
    return _engine(
        manifest,
        "LLMInferenceService {} of KServe",
        image=text(container, "image"),
        words=[
            *_words(container),
            *words_of_settings(settings),
            *(["--enable-expert-parallel"] if parallelism.get("expert") is True else []),
            *more,
        ],
        container=container,
        pod=pod,
        metadata=metadata,
        replicas=integer(spec, "replicas"),
        model=text(spec, "model", "uri"),
        served_name=text(spec, "model", "name") or ("" if container.get("command") else name),
        adapters=[{"name": text(each, "name"), "uri": text(each, "uri")} for each in objects(lora, "adapters")],
        dropped=[
            *dropped,
            *_unread("spec", spec, ("model", "replicas", "parallelism", "router", "template", "labels", "annotations")),
            *_unread("spec.model", mapping(spec, "model"), ("uri", "name", "lora")),
            *_unread("spec.model.lora", lora, ("adapters",), _LORA),
            *_unread("spec.parallelism", parallelism, _SIZES, ("expert",)),
            *_unread("spec.template", pod, POD_FIELDS),
        ],
        advice=[
            *([f"Requests went through the router {_EXPOSING}"] if spec.get("router") else []),
            *([] if container.get("command") else [_PUBLISHED]),
        ],
    )


def _with_more_arguments(container: Manifest) -> tuple[Manifest, list[str]]:
    """Return the container without KServe's variable with arguments, and the words in it. A command of the user does not get them."""
    variable = next((each for each in objects(container, "env") if each.get("name") == _MORE_ARGUMENTS), None)
    if variable is None or container.get("command"):
        return container, []
    if "valueFrom" in variable:
        raise ImportRefusedError(f"KServe appends the variable {_MORE_ARGUMENTS} to the command line, and its value is not in the manifest")
    env = [each for each in objects(container, "env") if each is not variable]
    return {**container, "env": env}, split_words(_MORE_ARGUMENTS, text(variable, "value"))


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


def _of_model_spec(each: Manifest, common: Manifest, values: Manifest, others: Sequence[Manifest]) -> Engine:
    config, secret = mapping(each, "vllmConfig"), each.get("hf_token")
    volume = {"size": each.get("pvcStorage"), "storageClassName": each.get("storageClass")}
    modes = sequence(each.get("pvcAccessMode"))
    volume |= {"accessMode": modes[0]} if modes and modes[0] != "ReadWriteOnce" else {}
    adapters = _adapters_of_stack(each, values, others)
    parser = text(each, "toolCallParser")
    metadata, _ = _pod_metadata({"labels": mapping(common, "labels"), "annotations": mapping(each, "podAnnotations")})
    return Engine(
        source=f"model {text(each, 'name')} of the production stack",
        name=text(each, "name"),
        image=f"{text(each, 'repository')}:{text(each, 'tag') or 'latest'}" if text(each, "repository") else "",
        words=[
            *words_of_settings(config, without=("v1", "extraArgs", "v0")),
            *(["--enable-lora"] if each.get("enableLoRA") is True and not adapters else []),
            *(["--enable-auto-tool-choice"] if each.get("enableTool") is True else []),
            *([f"--tool-call-parser={parser}"] if parser else []),
            *_listed(config, "extraArgs"),
        ],
        container=_container_of_stack(each, common),
        pod=_pod_of_stack(each, common),
        metadata=metadata,
        replicas=read_integer(each.get("replicaCount")),
        model=text(each, "modelURL"),
        adapters=adapters,
        rollout=_rollout(mapping(common, "strategy")),
        token=(text(secret, "secretName"), text(secret, "secretKey")) if isinstance(secret, dict) else None,
        weights={"volume": {name: value for name, value in volume.items() if value}} if any(volume.values()) else {},
        dropped=[
            *_unread("modelSpec", each, _MODEL_SPEC),
            *_unread("servingEngineSpec", common, _ENGINE_SPEC),
            *_unread("values", values, ("servingEngineSpec", "routerSpec", "loraAdapters", "loraController")),
        ],
        advice=[_ROUTER] if "routerSpec" in values else [],
    )


def _container_of_stack(each: Manifest, common: Manifest) -> Manifest:
    requests = {name: each[key] for name, key in (("cpu", "requestCPU"), ("memory", "requestMemory")) if each.get(key)}
    limits = {name: each[key] for name, key in (("cpu", "limitCPU"), ("memory", "limitMemory")) if each.get(key)}
    limits[text(each, "requestGPUType") or GPU_RESOURCE] = each.get("requestGPU") or 0
    token, key = each.get("hf_token"), common.get("vllmApiKey")
    env: list[dict[str, Any]] = [{"name": name, "value": str(value)} for name, value in mapping(common, "configs").items()]
    env += [dict(variable) for variable in objects(each, "env")]
    env += [{"name": "HF_TOKEN", "value": token}] if isinstance(token, str) and token else []
    if isinstance(key, str) and key:
        env.append({"name": "VLLM_API_KEY", "value": key})
    elif name := text(key, "secretName"):
        env.append({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": text(key, "secretKey")}}})
    secret = text(each, "envFromSecret", "name")
    return {
        **{name: common[name] for name in ("imagePullPolicy", *PROBES) if common.get(name)},
        "securityContext": mapping(common, "containerSecurityContext"),
        "env": env,
        "envFrom": [{"secretRef": {"name": secret}}] if secret else [],
        "resources": mapping(each, "resources") or {"requests": requests, "limits": limits},
        "volumeMounts": [*objects(each, "extraVolumeMounts"), *([{"name": "shm", "mountPath": "/dev/shm"}] if each.get("shmSize") else [])],
    }


def _pod_of_stack(each: Manifest, common: Manifest) -> Manifest:
    names = ("nodeSelector", "runtimeClassName", "nodeName", "affinity", "serviceAccountName", "priorityClassName")
    pod: dict[str, Any] = {
        name: value for name in (*names, "schedulerName", "securityContext") if (value := each.get(name) or common.get(name))
    }
    appended = each.get("tolerationsPolicy") != "override" or not each.get("tolerations")
    pod["tolerations"] = [*(objects(common, "tolerations") if appended else ()), *objects(each, "tolerations")]
    terms = list(objects(each, "nodeSelectorTerms"))
    if terms and not pod.keys() & {"affinity", "nodeName"}:  # as in the chart, which ignores the terms beside these
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    if secret := text(each, "imagePullSecret"):
        pod["imagePullSecrets"] = [{"name": secret}]
    pod["initContainers"] = [each["initContainer"]] if each.get("initContainer") else []
    shared = [{"name": "shm", "emptyDir": {"sizeLimit": size}}] if (size := text(each, "shmSize")) else []
    return {**pod, "volumes": [*objects(each, "extraVolumes"), *shared]}


def _adapters_of_stack(each: Manifest, values: Manifest, others: Sequence[Manifest]) -> list[Manifest]:
    """Return the adapters of a model of the production stack, from its values and from LoraAdapters in the same file."""
    given = [adapter for adapter in objects(values, "loraAdapters") if adapter.get("enabled") is not False]
    given += [mapping(other, "spec") for other in others if text(other, "kind") == "LoraAdapter"]
    adapters: list[Manifest] = []
    for source in (
        mapping(adapter, "adapterSource") for adapter in given if adapter.get("baseModel") in (each.get("name"), each.get("modelURL"))
    ):
        is_on_hub = text(source, "type") == "huggingface"
        secret = mapping(source, "credentials")
        reference = {"name": text(secret, "secretName"), "key": text(secret, "secretKey")}
        location = text(source, "repository") if is_on_hub else text(source, "adapterPath") or text(source, "repository")
        adapters.append({"name": text(source, "adapterName"), "uri": location, **({"tokenSecretRef": reference} if secret else {})})
    return adapters


def _engine(manifest: Manifest, source: str, **parts: Any) -> Engine:
    name = text(manifest, "metadata", "name")
    queues = {label: value for label, value in mapping(manifest, "metadata", "labels").items() if str(label).startswith(_QUEUES)}
    if queues:
        metadata = parts.get("metadata", {})
        parts["metadata"] = {**metadata, "labels": {**queues, **metadata.get("labels", {})}}
    return Engine(source.format(name), name, text(manifest, "metadata", "namespace"), **parts)


def _pod_metadata(*sources: Manifest, without: Manifest | None = None) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the labels and annotations of Pods, and a sentence about labels that the operator cannot keep.

    `without` are the labels of the selector: the old object would count Pods that have them as its own.
    """
    metadata: dict[str, dict[str, str]] = {}
    lost = [str(name) for name in without or ()]
    for kind in ("labels", "annotations"):
        values = {str(name): value for source in sources for name, value in mapping(source, kind).items() if isinstance(value, str)}
        lost += [name for name in values if kind == "labels" and name in SELECTOR_LABELS and name not in lost]
        kept = {name: value for name, value in values.items() if name not in lost and not name.startswith(_OF_TOOLS)}
        metadata |= {kind: kept} if kept else {}
    said = f"Labels of selectors ({', '.join(lost)}): Pods have the operator's. What selects Pods by the old ones does not find them."
    return metadata, [said] if lost else []


def _unread(where: str, source: Manifest, *known: Collection[str]) -> list[str]:
    """Return a sentence for each setting that has a value and is not translated."""
    unread = (name for name, value in source.items() if value and not any(name in names for names in known))
    return [f"{where}.{name}: {_WAYS.get(f'{where}.{name}', 'it has no counterpart here')}." for name in unread]


def _container(pod: Manifest) -> Manifest:
    """Return the container that runs vLLM: by its image or command, else the first with a GPU."""
    containers = list(objects(pod, "containers"))
    by_words = [each for each in containers if _has_vllm(each)]
    by_gpu = [each for each in containers if any(name.startswith("nvidia.com/") for name in mapping(each, "resources", "limits"))]
    named = [each for each in containers if each.get("name") in ("main", "kserve-container")]
    return next(iter([*by_words, *by_gpu, *named]), {})


def _has_vllm(container: Manifest) -> bool:
    return any("vllm" in word for word in (text(container, "image"), *_words(container)))


def _words(container: Manifest) -> list[str]:
    return [*_listed(container, "command"), *_listed(container, "args")]


def _listed(source: Manifest, name: str) -> list[str]:
    return [str(word) for word in sequence(source.get(name))]


def _rollout(strategy: Manifest) -> dict[str, Any]:
    """Return `spec.rollout`. Percentages, which are the default, are left to the operator."""
    if strategy.get("type") == "Recreate":
        return {"strategy": "Recreate"}
    numbers = {name: integer(strategy, "rollingUpdate", name) for name in ("maxSurge", "maxUnavailable")}
    return {name: number for name, number in numbers.items() if number is not None}


def _load_balancer(service: Manifest) -> dict[str, Any]:
    metadata, _ = _pod_metadata({"annotations": mapping(service, "metadata", "annotations")})
    parts = {"annotations": metadata.get("annotations"), "loadBalancerClass": text(service, "spec", "loadBalancerClass")}
    return {name: part for name, part in parts.items() if part}


def _service(port: int | None, kind: str) -> dict[str, Any]:
    """Return what differs from the defaults of a VLLMDeployment."""
    return {**({"port": port} if port not in (None, 8000) else {}), **({"type": kind} if kind not in ("", "ClusterIP") else {})}
