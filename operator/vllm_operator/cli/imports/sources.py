"""The tools whose deployments can be imported: a Deployment, KServe, LLMKube, the vLLM production stack, and other platforms."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from vllm_operator.api.reading import Manifest, integer, mapping, named, objects, read_bytes, read_integer, sequence, text
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, Report, put, split_words, words_of_settings
from vllm_operator.cli.imports.tables import find_unread, load_tables
from vllm_operator.inventory.pools import GPU_RESOURCE
from vllm_operator.planning.engine.image import split_image
from vllm_operator.planning.pod_template import SELECTOR_LABELS

_KINDS = (
    "a Deployment, an InferenceService or LLMInferenceService of KServe, an InferenceService of LLMKube, a VLLMRuntime or values of the "
    "production stack, values of llm-d, a DynamoGraphDeployment, a StormService, a Model of KubeAI, a Workspace or InferenceSet of KAITO"
)
_EXPOSING = "of KServe. See the page about exposing a model."
_ROUTER = "The router of the production stack finds engines by labels. Point it at the Services of the VLLMDeployments."
_TO_ZERO = "minReplicas is 0, and the VLLMDeployment has one replica. To scale to zero, see the page about autoscaling."
_LMCACHE = "The engine offloads its KV cache with LMCache. Check that the image contains it."
_NEW_SERVICE = "Clients reach the engine by a new Service, which has the name of the VLLMDeployment and port 8000 by default."
_PUBLISHED = "Newer versions of KServe also serve the model by the name publishers/NAMESPACE/models/NAME. Clients must not use this name."
_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""KServe's templates for LLMInferenceService append the value of this variable to the command line."""
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
_BESIDE = ("Secret", "ConfigMap")
_UNREAD = "This command does not read the fields under Unread. Add what you need of them to the spec, or to spec.podTemplate."
_WAYS_OUT = {
    "running": "vLLM runs in {}, a kind that this command does not read: write its Pod template as a Deployment. ",
    "rendered": "Render {} first (helm template, kustomize build), and import the result. ",
    "ray": "Ray starts vLLM itself in {}: write its engine_kwargs as flags of vllm serve in a Deployment, such as --max-model-len. ",
    "other": "Found: {}. ",
}
_STATES = {**dict.fromkeys(_RENDERED, "rendered"), **dict.fromkeys(("RayService", "RayCluster", "RayJob"), "ray")}
_NO_FLAGS_OF_LLMKUBE = ("hfTokenSecretRef", "speculative", "extraArgs", "kvCacheCustomDtype")
"""Fields of LLMKube's `spec.vllmConfig` that are no flags of vLLM."""
_DYNAMO = "dynamo.vllm"
_PREFILL = re.compile(r"--is-prefill-worker|--disaggregation-mode[ =]prefill|prefill$")
_SERVER = "vllm.entrypoints.openai.api_server"
_BOTH = "An engine does both prefill and decode here, so {} is not imported. Remove --kv-transfer-config if it is only for that."
_PROFILE = "The resource profile {} says which GPU it is. Set spec.accelerator.products if the cluster has several kinds."
_INSTANCE = "KAITO chose the GPUs by resource.instanceType. Check spec.accelerator and spec.parallelism, or leave both to the operator."


def find_engines(given: Iterable[Manifest]) -> list[Engine]:
    """Find the engines in the objects of a file. Raises ImportRefusedError if there is none, or one of them does not run vLLM."""
    found = list(given)
    read = [(each, _engines_of(each, found)) for each in found]
    engines = [engine for _, those in read for engine in those]
    missed = [each for each, those in read if not those and text(each, "kind") not in _READ_WITH_ENGINES]
    if not engines:
        raise ImportRefusedError(f"no engine was found that can be read. {_way_out(missed)}This command reads {_KINDS}")
    if missed:
        way_out = _way_out([each for each in missed if _runs_engine(each)])
        engines[0].report.dropped.append(f"Not imported: {', '.join(map(_named, missed))}. {way_out}".rstrip())
    report = engines[0].report
    report.unread += [f"{_named(each, 'values')}: {', '.join(paths)}." for each in found if (paths := find_unread(each))]
    report.unread += [f"{_named(each)}. Keep it if the engine uses it." for each in found if text(each, "kind") in _BESIDE]
    report.advice += [_UNREAD] if report.unread else []
    return engines


def _way_out(missed: Sequence[Manifest]) -> str:
    names: dict[str, list[str]] = {state: [] for state in _WAYS_OUT}
    for each in missed:
        names[_STATES.get(text(each, "kind"), "running" if _runs_engine(each) else "other")].append(_named(each))
    told = "".join(way.format(", ".join(names[state])) for state, way in _WAYS_OUT.items() if names[state])
    return told and f"{told}A Deployment that runs in the cluster can be imported, too: vllm-operator import deployment/NAME. "


def _named(manifest: Manifest, other: str = "an object without a kind") -> str:
    return f"{text(manifest, 'kind') or other} {text(manifest, 'metadata', 'name')}".rstrip()


def _runs_engine(manifest: Manifest) -> bool:
    inner = chain.from_iterable(value if isinstance(value, list) else [value] for value in manifest.values())
    return any(map(_has_vllm, objects(manifest, "containers"))) or any(_runs_engine(each) for each in inner if isinstance(each, dict))


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
        case "VLLMRuntime", _:
            return [_of_vllm_runtime(manifest)]
        case "StormService", _:
            return _of_storm_service(manifest)
        case "DynamoGraphDeployment", _:
            return _of_dynamo(manifest)
        case "Model", "kubeai.org":
            return [_of_kubeai(manifest)]
        case (("Workspace" | "InferenceSet"), "kaito.sh"):
            return [_of_kaito(manifest)]
        case _ if "modelArtifacts" in manifest:
            return [_of_model_service(manifest)]
        case _ if "servingEngineSpec" in manifest:
            models = objects(manifest, "servingEngineSpec", "modelSpec")
            return [_of_model_spec(each, manifest, others) for each in models if each.get("enabled") is not False]
    return []


def _of_deployment(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of a Deployment. A Service in the same file that selects its Pods gives the port."""
    spec = mapping(manifest, "spec")
    pod, metadata = mapping(spec, "template", "spec"), mapping(spec, "template", "metadata")
    container, labels = _container(pod), mapping(metadata, "labels")
    services = ((each, mapping(each, "spec", "selector")) for each in others if text(each, "kind") == "Service")
    service = next((each for each, selector in services if selector and selector.items() <= labels.items()), {})
    name, old = text(manifest, "metadata", "name"), text(service, "metadata", "name")
    renamed = [f"Clients used the Service {old}. The new one has the name of the VLLMDeployment, {name}."] if old != name else []
    report = Report(advice=renamed if service else [_NEW_SERVICE])
    given = {name: value for name, value in spec.items() if (name, value) != ("progressDeadlineSeconds", 600)}  # the API server's default
    report.dropped += load_tables()["Deployment"].dropped_from({"spec": given})
    report.dropped += load_tables()["container"].dropped_from(container, "container.")
    return _engine(
        manifest,
        "Deployment {}",
        report,
        container={**container, "args": _words(container), "command": []},
        pod=pod,
        metadata=_pod_metadata(report, manifest, metadata, selector=mapping(spec, "selector", "matchLabels")),
        spec={
            "replicas": integer(spec, "replicas"),
            "rollout": _rollout(mapping(spec, "strategy")),
            "service": _service(integer(next(objects(service, "spec", "ports"), {}), "port"), text(service, "spec", "type"), service),
        },
    )


def _of_inference_service(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of an InferenceService of KServe, with its ServingRuntime if that is in the same file."""
    predictor = mapping(manifest, "spec", "predictor")
    model = mapping(predictor, "model")
    runtimes = {text(each, "metadata", "name"): each for each in others if text(each, "kind").endswith("ServingRuntime")}
    runtime = mapping(runtimes.get(text(model, "runtime"), {}), "spec")
    base, own = next(objects(runtime, "containers"), {}), model or _container(predictor)
    image, version = text(own, "image") or text(base, "image"), text(model, "runtimeVersion")
    if image and version:  # KServe replaces the tag of the runtime's image
        image = f"{split_image(image)[0]}:{version}"
    words = [word.replace("{{.Name}}", text(manifest, "metadata", "name")) for word in [*_words(base), *_words(own)]]
    minimum, maximum = integer(predictor, "minReplicas"), integer(predictor, "maxReplicas")
    report = Report(advice=[f"Requests went through the gateway {_EXPOSING}", *([_TO_ZERO] if minimum == 0 else [])])
    container = {
        **base,
        **own,
        "image": "" if "huggingfaceserver" in image else image,
        "command": [],
        # the runtime for Hugging Face models has a flag of its own that chooses vLLM
        "args": [word for word in words if not word.startswith("--backend=")],
        **{field: [*objects(base, field), *objects(own, field)] for field in ("env", "volumeMounts")},
    }
    # as KServe merges the Pod of the runtime and the predictor's
    table = load_tables()["Pod"]
    inherited = {field: value for field, value in runtime.items() if field in (*table.kept, *table.becomes)}
    merged = {field: [*objects(runtime, field), *objects(predictor, field)] for field in ("containers", "volumes", "imagePullSecrets")}
    selector = {**mapping(runtime, "nodeSelector"), **mapping(predictor, "nodeSelector")}
    engine = _engine(
        manifest,
        "InferenceService {} of KServe",
        report,
        container=container,
        pod={**inherited, **predictor, **merged, "nodeSelector": selector},
        metadata=_pod_metadata(report, manifest, runtime, mapping(manifest, "metadata"), predictor),
        model=text(model, "storageUri") or text(named(own, "STORAGE_URI", "env", key="name"), "value"),
        spec={"replicas": max(1, minimum or 1), "rollout": _rollout(mapping(predictor, "deploymentStrategy"))},
    )
    report.dropped += load_tables()["InferenceService of KServe"].dropped_from(manifest)
    report.dropped += load_tables()["ServingRuntime"].dropped_from({"spec": runtime}, "ServingRuntime: ")
    if maximum is not None and maximum > (minimum or 1):
        report.dropped.append(f"maxReplicas {maximum}: autoscaling needs metrics of the engines, which may be missing here.")
        report.advice.append(f"To scale up to {maximum} replicas, set spec.autoscaling.maxReplicas. See the page about autoscaling.")
    return engine


def _of_llm_inference_service(manifest: Manifest) -> Engine:
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    container, more = _with_more_arguments(_container(mapping(spec, "template")))
    own = mapping(manifest, "metadata", "annotations").items()
    passed_on = {**{name: value for name, value in own if str(name).startswith(_PASSED_ON)}, **mapping(spec, "annotations")}
    offloading, traces = _offloading(mapping(spec, "kvCacheOffloading")), text(spec, "tracing", "exporterEndpoint")
    advice = [f"Requests went through the router {_EXPOSING}"] if spec.get("router") else []
    parts = {
        "source": f"LLMInferenceService {name} of KServe",
        "advice": advice if container.get("command") else [*advice, _PUBLISHED],
        "flags": {"kvTransferConfig": offloading, "collectDetailedTraces": "all" if traces else None},
        "words": more,
        "metadata": {"annotations": passed_on},
        "served_name": text(spec, "model", "name") or ("" if container.get("command") else name),
        "adapters": [{"name": text(each, "name"), "uri": text(each, "uri")} for each in objects(spec, "model", "lora", "adapters")],
        "spec": {"replicas": integer(spec, "replicas"), "rollout": _rollout({"rollingUpdate": spec.get("rolloutStrategy")})},
    }
    return _of_platform(manifest, "LLMInferenceService", container, mapping(spec, "template"), **parts)


def _offloading(given: Manifest) -> dict[str, Any] | None:
    """Return the value of `--kv-transfer-config` that KServe makes of `spec.kvCacheOffloading`, without secondary tiers."""
    size = read_bytes(given.get("cpu"))
    more = {"eviction_policy": policy} if (policy := text(given, "evictionPolicy")) else {}
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": size, **more}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra} if size else None


def _with_more_arguments(container: Manifest) -> tuple[Manifest, list[str]]:
    """Return the container without KServe's variable with arguments, and the words in it. A user's command does not get them."""
    variable = named(container, _MORE_ARGUMENTS, "env", key="name")
    if not variable or container.get("command"):
        return container, []
    if "valueFrom" in variable:
        raise ImportRefusedError(f"KServe appends the variable {_MORE_ARGUMENTS} to the command line, and its value is not in the manifest")
    env = [each for each in objects(container, "env") if each is not variable]
    return {**container, "env": env}, split_words(_MORE_ARGUMENTS, text(variable, "value"))


def _of_llmkube(manifest: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of an InferenceService of LLMKube, with the Model that it names, from the same file."""
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "runtime") != "vllm":
        raise ImportRefusedError(f"the InferenceService {name} has the runtime {text(spec, 'runtime') or 'llamacpp'}, not vllm")
    wanted = text(spec, "modelRef")
    model = next((each for each in others if text(each, "kind") == "Model" and text(each, "metadata", "name") == wanted), None)
    if model is None:
        raise ImportRefusedError(f"the InferenceService {name} names the Model {wanted}, which is not in the file. Add it to the file")
    config, gpu = mapping(spec, "vllmConfig"), mapping(model, "spec", "hardware", "gpu")
    if (vendor := text(gpu, "vendor") or "nvidia") != "nvidia":
        raise ImportRefusedError(f"the Model {wanted} is for GPUs of {vendor}. The operator supports NVIDIA GPUs only")
    draft, extra = mapping(config, "speculative"), _listed(spec, "extraArgs")
    speculates, number = draft.get("enabled") is True and draft.get("model"), draft.get("numSpeculativeTokens")
    tokens = {"num_speculative_tokens": number} if number else {}
    flags = {
        **dict.fromkeys(_NO_FLAGS_OF_LLMKUBE),
        "kvCacheDtype": text(config, "kvCacheCustomDtype") or config.get("kvCacheDtype"),
        "maxNumSeqs": None if any(word.startswith("--max-num-seqs") for word in extra) else spec.get("parallelSlots"),
        # LLMKube passes flags that vLLM no longer has
        "speculativeConfig": {"model": draft["model"], **tokens} if speculates else None,
    }
    parts = {
        "source": f"InferenceService {name} of LLMKube",
        "advice": [],
        "flags": flags,
        "words": [*_listed(config, "extraArgs"), *extra],
        "limits": {text(gpu, "resourceName") or GPU_RESOURCE: integer(spec, "resources", "gpu") or integer(gpu, "count") or 1},
        "model": text(model, "spec", "source"),
        "token": mapping(config, "hfTokenSecretRef"),
        "spec": {
            "replicas": integer(spec, "replicas"),
            "service": _service(integer(spec, "endpoint", "port"), text(spec, "endpoint", "type"), {}),
        },
    }
    claims = {"resourceClaims": gpu["resourceClaims"]} if "resourceClaims" in gpu else {}
    engine = _of_platform(manifest, "InferenceService of LLMKube", {"command": _listed(spec, "command")}, claims, **parts)
    engine.report.dropped += load_tables()["Model of LLMKube"].dropped_from(model, f"Model {wanted}: ")
    return engine


def _of_model_spec(model: Manifest, values: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of one model of the production stack. Its settings come before those of all models."""
    common, config, token = mapping(values, "servingEngineSpec"), mapping(model, "vllmConfig"), model.get("hf_token")
    report, cache = Report(advice=[_ROUTER] if "routerSpec" in values else []), mapping(model, "lmcacheConfig")
    report.advice += [_LMCACHE] if cache.get("enabled") else []
    parts: dict[str, Any] = {"container": {"resources": {"limits": {}}}, "pod": {}, "metadata": {}, "flags": {}}
    alone, table = {**values, "servingEngineSpec": {**common, "modelSpec": [model]}}, load_tables()["values of the production stack"]
    table.place(alone, parts)
    report.dropped += table.dropped_from(alone)
    container, pod, spec = parts["container"], parts["pod"], dict[str, Any]()
    container["resources"]["limits"][text(model, "requestGPUType") or GPU_RESOURCE] = model.get("requestGPU") or 0
    container["resources"] = mapping(model, "resources") or container["resources"]
    if repository := text(model, "repository"):
        container["image"] = f"{repository}:{text(model, 'tag') or 'latest'}"
    adapters = _adapters_of_stack(model, values, others)
    if cache.get("enabled"):
        parts["flags"]["kvTransferConfig"] = {"kv_connector": "LMCacheConnectorV1", "kv_role": text(cache, "kvRole") or "kv_both"}
    words = [*words_of_settings(config, without=("v1", "extraArgs", "v0")), *words_of_settings(parts["flags"])]
    container["args"] = [*words, *_listed(config, "extraArgs")]
    env: list[Manifest] = [{"name": name, "value": str(value)} for name, value in mapping(common, "configs").items()]
    env += [
        *objects(common, "env"),
        *objects(model, "env"),
        *_cache_variables(cache),
        *(_variable("HF_TOKEN", token) if isinstance(token, str) else []),
    ]
    container["env"] = [*env, *_variable("VLLM_API_KEY", common.get("vllmApiKey"))]
    is_own = model.get("tolerationsPolicy") == "override" and model.get("tolerations")
    pod["tolerations"] = [*(() if is_own else objects(common, "tolerations")), *objects(model, "tolerations")]
    terms = list(objects(model, "nodeSelectorTerms"))
    if terms and not pod.keys() & {"affinity", "nodeName"}:  # as in the chart, which ignores the terms beside these
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    if size := text(model, "shmSize"):
        container["volumeMounts"] = [*objects(container, "volumeMounts"), {"name": "shm", "mountPath": "/dev/shm"}]
        pod["volumes"] = [*objects(pod, "volumes"), {"name": "shm", "emptyDir": {"sizeLimit": size}}]
    modes, storage = sequence(model.get("pvcAccessMode")), model.get("pvcStorage")
    if claim := text(model, "pvcExistingClaimName"):
        put(spec, "weights.claimName", claim)
    elif isinstance(storage, str):
        put(spec, "weights.volume", {"size": storage})
        if storage_class := text(model, "storageClass"):
            put(spec, "weights.volume.storageClassName", storage_class)
    if modes and modes[0] != "ReadWriteOnce" and not claim:
        put(spec, "weights.volume.accessMode", modes[0])
    return Engine(
        source=f"model {text(model, 'name')} of the production stack",
        name=text(model, "name"),
        container=container,
        pod=pod,
        metadata=_pod_metadata(report, {}, parts["metadata"]),
        model=text(model, "modelURL"),
        adapters=adapters,
        token=_reference(token),
        spec={"replicas": read_integer(model.get("replicaCount")), "rollout": _rollout(mapping(common, "strategy")), **spec},
        report=report,
    )


def _of_vllm_runtime(manifest: Manifest) -> Engine:
    """Return the engine of a VLLMRuntime, with the flags that the operator of the production stack adds."""
    spec, cache = mapping(manifest, "spec"), mapping(manifest, "spec", "lmCacheConfig")
    image, resources = mapping(spec, "deploymentConfig", "image"), mapping(spec, "deploymentConfig", "resources")
    flags: dict[str, Any] = {
        name: mapping(spec, "vllmConfig").get(name) is True for name in ("enableChunkedPrefill", "enablePrefixCaching")
    }
    if cache.get("enabled"):
        flags |= {"kvTransferConfig": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}
    variables = [*_cache_variables(cache), *(_variable("LMCACHE_REMOTE_URL", cache.get("remoteUrl")) if cache.get("enabled") else [])]
    container = {"image": "/".join(filter(None, (text(image, "registry"), text(image, "name")))), "env": variables}
    limits = {text(resources, "gpuType") or GPU_RESOURCE: resources.get("gpu")}
    return _of_platform(manifest, "VLLMRuntime", container, {}, limits=limits, flags=flags, advice=[_ROUTER])


def _of_storm_service(manifest: Manifest) -> list[Engine]:
    """Return an engine for each role of a StormService that runs vLLM, without one that only prefills."""
    roles = [each for each in objects(manifest, "spec", "template", "spec", "roles") if _container(mapping(each, "template", "spec"))]
    served = [each for each in roles if text(each, "name") != "prefill"]
    engines = []
    for role in served:
        pod, replicas = mapping(role, "template", "spec"), (integer(manifest, "spec", "replicas") or 1) * (integer(role, "replicas") or 1)
        spec = {"spec": {"replicas": replicas}, "part": text(role, "name") if len(served) > 1 else ""}
        container = _on_one_node(manifest, integer(role, "podGroupSize"), pod)
        engines.append(_of_platform(manifest, "StormService", container, pod, metadata=mapping(role, "template", "metadata"), **spec))
        engines[-1].report.dropped += [_BOTH.format("the role prefill")] if len(served) < len(roles) else []
    return engines


def _of_dynamo(manifest: Manifest) -> list[Engine]:
    """Return an engine for each worker of a DynamoGraphDeployment that runs vLLM, without those that only prefill."""
    engines, services = [], {name: mapping(each) for name, each in mapping(manifest, "spec", "services").items()}
    words = {name: _words(mapping(each, "extraPodSpec", "mainContainer")) for name, each in services.items()}
    workers = [name for name in services if any(_DYNAMO in word for word in words[name])]
    served = [name for name in workers if not _PREFILL.search(" ".join([*words[name], text(services[name], "subComponentType")]))]
    for name in served:
        each, pod = services[name], mapping(services[name], "extraPodSpec")
        main, sizes, secret = mapping(pod, "mainContainer"), mapping(each, "resources"), text(each, "envFromSecret")
        limits = {**mapping(sizes, "limits"), GPU_RESOURCE: mapping(sizes, "limits").get("gpu") or mapping(sizes, "requests").get("gpu")}
        container = {
            **_on_one_node(manifest, integer(each, "multinode", "nodeCount"), {"containers": [{**main, "name": "main"}]}),
            "image": "",  # its tag counts Dynamo
            "command": [],
            "args": [word.replace(_DYNAMO, _SERVER) for word in words[name]],
            "env": [*objects(manifest, "spec", "envs"), *objects(each, "envs"), *objects(main, "env")],
            "envFrom": [*objects(main, "envFrom"), *([{"secretRef": {"name": secret}}] if secret else [])],
        }
        parts = {"spec": {"replicas": integer(each, "replicas")}, "part": name if len(served) > 1 else ""}
        parts["limits"] = {resource: limits.get(resource) for resource in (GPU_RESOURCE, "cpu", "memory")}
        engine = _of_platform(manifest, "DynamoGraphDeployment", container, pod, metadata=mapping(each, "extraPodMetadata"), **parts)
        engine.report.dropped += load_tables()["service of Dynamo"].dropped_from(each, f"spec.services.{name}.")
        engine.report.dropped += [_BOTH.format(f"the service {other}") for other in workers if other not in served]
        engine.report.dropped += [f"The service {other}: it does not run vLLM." for other in services if other not in workers]
        engines.append(engine)
    return engines


def _of_kubeai(manifest: Manifest) -> Engine:
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "engine") != "VLLM":
        raise ImportRefusedError(f"the Model {name} of KubeAI has the engine {text(spec, 'engine')}, not VLLM")
    profile, _, count = text(spec, "resourceProfile").partition(":")
    container = {"env": [{"name": key, "value": str(value)} for key, value in mapping(spec, "env").items()]}
    parts = {
        "limits": {GPU_RESOURCE: count or 1},
        "advice": [_PROFILE.format(profile), *([_TO_ZERO] if not integer(spec, "minReplicas") else [])],
        "spec": {"replicas": max(1, integer(spec, "replicas") or integer(spec, "minReplicas") or 1)},
        "adapters": [{"name": text(each, "name"), "uri": text(each, "url")} for each in objects(spec, "adapters")],
    }
    return _of_platform(manifest, "Model of KubeAI", container, {}, model=text(spec, "url").partition("?")[0], served_name=name, **parts)


def _of_kaito(manifest: Manifest) -> Engine:
    """Return the engine of a Workspace or InferenceSet of KAITO: of its Pod template, or of a preset with a name on the hub."""
    spec, kind = (mapping(manifest, "spec", "template") or manifest), text(manifest, "kind")
    template, name = mapping(spec, "inference", "template"), text(spec, "inference", "preset", "name")
    pod, model = mapping(template, "spec"), f"hf://{name}" if "/" in name else name
    container, metadata = _on_one_node(manifest, integer(spec, "resource", "count"), pod), mapping(template, "metadata")
    parts = {"model": model, "served_name": name.rpartition("/")[2], "advice": [_INSTANCE]}
    return _of_platform(manifest, f"{kind} of KAITO", container, pod, metadata=metadata, **parts)


def _of_model_service(values: Manifest) -> Engine:
    """Return the engine of the Pods for decode in values of llm-d's chart, with the flags that the chart adds."""
    decode, model, name = mapping(values, "decode"), mapping(values, "modelArtifacts"), text(values, "modelArtifacts", "name")
    sizes, types = mapping(decode, "parallelism"), mapping(decode, "acceleratorTypes")
    if (vendor := text(decode, "accelerator", "type") or text(values, "accelerator", "type") or "nvidia") != "nvidia":
        raise ImportRefusedError(f"the values are for accelerators of the type {vendor}. The operator supports NVIDIA GPUs only")
    container = _on_one_node({"kind": "values of llm-d"}, 2 if values.get("multinode") else integer(sizes, "workers"), decode)
    counts = {size: read_integer(sizes.get(size)) or 1 for size in ("tensor", "data")}
    is_own = text(container, "modelCommand") in ("", "custom")
    match = {"key": text(types, "labelKey"), "operator": "In", "values": _listed(types, "labelValues")}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [match]}]}}
    pod = {**decode, **({"affinity": {"nodeAffinity": required}} if match["key"] else {})}
    parts = {
        "name": name.rpartition("/")[2],
        "flags": {} if is_own else {f"{size}ParallelSize": count for size, count in counts.items() if count > 1},
        "limits": {GPU_RESOURCE: counts["tensor"] * counts["data"], **mapping(container, "resources", "limits")},
        "model": text(model, "uri").replace("{{ .Values.modelArtifacts.name }}", name),
        "served_name": name,
        "spec": {"replicas": integer(decode, "replicas"), "rollout": _rollout(mapping(decode, "strategy"))},
    }
    return _of_platform(values, "values of llm-d", container, pod, **parts)


def _on_one_node(source: Manifest, nodes: int | None, pod: Manifest) -> Manifest:
    """Return the container that runs vLLM. Raises ImportRefusedError for an engine on several nodes."""
    if (nodes or 1) > 1:
        told = f"{_named(source)} runs an engine on {nodes} nodes, which this command does not read"
        raise ImportRefusedError(f"{told}. Write the VLLMDeployment yourself, or choose a machine with as many GPUs as the model needs")
    return _container(pod)


def _of_platform(manifest: Manifest, kind: str, container: Manifest, pod: Manifest, **given: Any) -> Engine:
    """Return an engine of what is given and of the fields that the table of this kind places. `part` is its name among several engines."""
    parts: dict[str, Any] = {"container": {}, "pod": {}, "metadata": {}, "flags": {}, "engine": {}, "words": []}
    table, report = load_tables()[kind], Report(advice=given.pop("advice", [_NEW_SERVICE]))
    table.place(manifest, parts)
    report.dropped += table.dropped_from(manifest)
    base, own = mapping(parts, "container", "resources"), mapping(container, "resources")
    limits = {**mapping(base, "limits"), **mapping(own, "limits"), **given.pop("limits", {})}
    flags = words_of_settings(parts["flags"] | given.pop("flags", {}))
    words = [*_words(container), *flags, *_listed(parts, "words"), *given.pop("words", ())]
    env = [*objects(container, "env"), *objects(parts, "container", "env")]
    resources = {**base, **own, "limits": {name: amount for name, amount in limits.items() if amount}}
    whole = {**parts["container"], **container, "args": words, "command": [], "env": env, "resources": resources}
    name = "-".join(filter(None, (given.pop("name", "") or text(manifest, "metadata", "name"), given.pop("part", ""))))
    metadata = _pod_metadata(report, manifest, parts["metadata"], given.pop("metadata", {}))
    known, secret = parts["engine"], text(parts, "engine", "token", "name")
    spec = {"replicas": integer(known, "replicas"), "rollout": _rollout({"type": known.get("strategy")})}
    token = {"name": secret, "key": text(known, "token", "key") or "HF_TOKEN"} if secret else {}
    common = {"namespace": text(manifest, "metadata", "namespace"), "model": text(known, "model"), "token": token, "spec": spec}
    engine = {"container": whole, "pod": {**parts["pod"], **pod}, "metadata": metadata, "report": report, **common, **given}
    return Engine(**{"source": f"{kind} {name}", "name": name, **engine})


def _cache_variables(cache: Manifest) -> list[Manifest]:
    cpu, disk = cache.get("cpuOffloadingBufferSize"), cache.get("diskOffloadingBufferSize")
    values = {
        "LMCACHE_LOG_LEVEL": cache.get("logLevel"),
        "LMCACHE_LOCAL_CPU": "True" if cpu else None,
        "LMCACHE_MAX_LOCAL_CPU_SIZE": cpu,
        "LMCACHE_MAX_LOCAL_DISK_SIZE": disk,
    }
    return [{"name": name, "value": str(value)} for name, value in values.items() if cache.get("enabled") and value]


def _adapters_of_stack(model: Manifest, values: Manifest, others: Sequence[Manifest]) -> list[Manifest]:
    given = [adapter for adapter in objects(values, "loraAdapters") if adapter.get("enabled") is not False]
    given += [mapping(other, "spec") for other in others if text(other, "kind") == "LoraAdapter"]
    adapters: list[Manifest] = []
    for adapter in given:
        if adapter.get("baseModel") in (model.get("name"), model.get("modelURL")):
            source = mapping(adapter, "adapterSource")
            path = "" if text(source, "type") == "huggingface" else text(source, "adapterPath")
            reference = _reference(source.get("credentials"))
            found = {"name": text(source, "adapterName"), "uri": path or text(source, "repository")}
            adapters.append(found | ({"tokenSecretRef": reference} if reference else {}))
    return adapters


def _reference(secret: Any) -> dict[str, str]:
    return {name: found for name, field in (("name", "secretName"), ("key", "secretKey")) if (found := text(secret, field))}


def _variable(name: str, given: Any) -> list[Manifest]:
    if isinstance(given, str) and given:
        return [{"name": name, "value": given}]
    reference = _reference(given)
    return [{"name": name, "valueFrom": {"secretKeyRef": reference}}] if "name" in reference else []


def _engine(manifest: Manifest, source: str, report: Report, **parts: Any) -> Engine:
    name = text(manifest, "metadata", "name")
    return Engine(source=source.format(name), name=name, namespace=text(manifest, "metadata", "namespace"), report=report, **parts)


def _pod_metadata(report: Report, manifest: Manifest, *sources: Manifest, selector: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of Pods, without labels of `selector`: the old object would count the Pods as its own."""
    labels, annotations = (
        {str(name): value for source in sources for name, value in mapping(source, field).items() if isinstance(value, str)}
        for field in ("labels", "annotations")
    )
    lost = [*selector, *(name for name in labels if name in SELECTOR_LABELS and name not in selector)]
    if lost:
        told = f"Labels of selectors ({', '.join(lost)}): Pods have the operator's. What selects Pods by the old ones does not find them."
        report.dropped.append(told)
    queues = {name: value for name, value in mapping(manifest, "metadata", "labels").items() if str(name).startswith(_QUEUES)}
    kept = {"labels": {**queues, **_without_tools(labels, lost)}, "annotations": _without_tools(annotations, lost)}
    return {field: values for field, values in kept.items() if values}


def _without_tools(values: Mapping[str, str], lost: Collection[str] = ()) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in lost and not name.startswith(_OF_TOOLS)}


def _container(pod: Manifest) -> Manifest:
    """Return the container that runs vLLM: by its image or command, else the first with a GPU."""
    containers = list(objects(pod, "containers"))
    by_words = [each for each in containers if _has_vllm(each)]
    by_gpu = [each for each in containers if any(name.startswith("nvidia.com/") for name in mapping(each, "resources", "limits"))]
    by_name = [each for each in containers if each.get("name") in ("main", "kserve-container", "vllm")]
    return next(iter([*by_words, *by_gpu, *by_name]), {})


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


def _service(port: int | None, kind: str, service: Manifest) -> dict[str, Any]:
    """Return what differs from the defaults of a VLLMDeployment."""
    annotations = {name: value for name, value in mapping(service, "metadata", "annotations").items() if isinstance(value, str)}
    parts = {
        "port": port if port != 8000 else None,
        "type": kind if kind != "ClusterIP" else "",
        "annotations": _without_tools(annotations),
        "loadBalancerClass": text(service, "spec", "loadBalancerClass"),
    }
    return {name: part for name, part in parts.items() if part}
