"""The tools whose deployments can be imported: a Deployment, KServe, LLMKube, the vLLM production stack, and other platforms."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import yaml

from vllm_operator.api.reading import Manifest, integer, mapping, named, objects, read_bytes, read_integer, sequence, text
from vllm_operator.catalog.notes import say
from vllm_operator.cli.imports.engine import Engine, ImportRefusedError, Report, merged, split_words, words_of_settings
from vllm_operator.cli.imports.tables import QUEUES, find_unread, load_tables, name_of_table
from vllm_operator.inventory.pools import GPU_RESOURCE
from vllm_operator.planning.engine.image import split_image, version_of_image
from vllm_operator.planning.pod_template import SELECTOR_LABELS

_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"  # KServe's templates for LLMInferenceService append its value to the command line
_READ_WITH_ENGINES = ("Service", "ServingRuntime", "ClusterServingRuntime", "Model", "LoraAdapter")
_FILES = {"services": "a Compose file", "run": "a SkyPilot task"}  # files without a kind, by a field that they have
_OTHER_ENGINES = re.compile(r"sglang|text-generation|llama[.-]?(cpp|runtime)|ollama|tensorrt|triton|lmdeploy|text-embeddings|whisper")
_FIELD = re.compile(r"\{\{-? *\.([A-Za-z.]+) *-?\}\}")
_DYNAMO = "dynamo.vllm"
_PREFILL = re.compile(r"--is-prefill-worker|--disaggregation-mode[ =]prefill|prefill$")


def find_engines(given: Iterable[Manifest]) -> list[Engine]:
    """Find the engines in the objects of a file. Raises ImportRefusedError if there is none, or one of them does not run vLLM."""
    objects_of_file, used = list(given), set[str]()
    maps = {text(each, "metadata", "name"): mapping(each, "data") for each in objects_of_file if text(each, "kind") == "ConfigMap"}
    found = [_with_values(each, maps, used) for each in objects_of_file]
    read = [(each, reader(each, found) if (reader := _READERS.get(name_of_table(each))) else []) for each in found]
    metadata = [(text(each, "metadata", "name"), mapping(each, "spec", "template", "metadata", "labels")) for each in found]
    prefilling = {name for name, labels in metadata if "prefill" in labels.values()}
    engines = [engine for _, those in read for engine in those]
    served = [engine for engine in engines if engine.name not in prefilling] or engines
    known = used | {text(mapping(each, "spec", "template") or each, "inference", "config") for each in found}
    known_objects = {*_READ_WITH_ENGINES, *(f"ConfigMap {name}" for name in known)}
    missed = [each for each, those in read if not those and known_objects.isdisjoint((text(each, "kind"), _named(each)))]
    missed += [each for each in found if text(each, "kind").endswith("ServingRuntime") and not served]
    if not served:
        raise ImportRefusedError(f"no engine was found that can be read. {_way_out(missed)}This command reads {say('kinds')}")
    if missed:
        way_out = _way_out([each for each in missed if _runs_engine(each)])
        served[0].report.dropped.append(f"Not imported: {', '.join(map(_named, missed))}. Keep what the engine uses. {way_out}".rstrip())
    report = served[0].report
    report.dropped += [say("both", part=engine.source) for engine in engines if engine not in served]
    report.unread += [f"{_named(each, 'values')}: {', '.join(paths)}." for each in found if (paths := find_unread(each))]
    report.translated += [say("config", name=name) for name in sorted(used)]
    report.advice += [say("unread")] if report.unread else []
    return served


def _with_values(given: Any, maps: Mapping[str, Manifest], used: set[str]) -> Any:
    """Put the values of ConfigMaps of the file in the place of the references of variables to them, and add the names of the ConfigMaps."""
    if isinstance(given, list):
        return [_with_values(each, maps, used) for each in given]
    if not isinstance(given, dict):
        return given
    reference = mapping(given, "valueFrom", "configMapKeyRef")
    if (value := maps.get(name := text(reference, "name"), {}).get(text(reference, "key"))) is not None:
        used.add(name)
        return {"name": text(given, "name"), "value": str(value)}
    fields = {field: _with_values(part, maps, used) for field, part in given.items()}
    whole = {name: each for each in objects(given, "envFrom") if (name := text(each, "configMapRef", "name")) in maps}
    if not whole or isinstance(given.get("env"), dict):  # KubeAI has no list of variables
        return fields
    used.update(whole)
    pairs = ((f"{text(each, 'prefix')}{key}", str(value)) for name, each in whole.items() for key, value in maps[name].items())
    env = [*({"name": name, "value": value} for name, value in pairs), *objects(fields, "env")]
    return {**fields, "envFrom": [each for each in sequence(given["envFrom"]) if each not in whole.values()], "env": env}


def _way_out(missed: Sequence[Manifest]) -> str:
    names: dict[str, list[str]] = {state: [] for state in ("runtime.alone", "running", "rendered", "ray", "other")}
    for each in missed:
        state = load_tables()["kinds without an engine"].becomes.get(text(each, "kind"), "running" if _runs_engine(each) else "other")
        names[state].append(_named(each))
    told = "".join(say(state, names=", ".join(found)) for state, found in names.items() if found)
    return told and f"{told}{say('live')}"


def _named(manifest: Manifest, other: str = "an object without a kind") -> str:
    kind = text(manifest, "kind") or next((name for field, name in _FILES.items() if field in manifest), other)
    return f"{kind} {text(manifest, 'metadata', 'name')}".rstrip()


def _runs_engine(manifest: Manifest) -> bool:
    inner = chain.from_iterable(value if isinstance(value, list) else [value] for value in manifest.values())
    own = [*objects(manifest, "containers"), *map(mapping, mapping(manifest, "services").values()), {"args": [manifest.get("run")]}]
    return any(map(_has_vllm, own)) or any(_runs_engine(each) for each in inner if isinstance(each, dict))


def _of_workload(manifest: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of an object with a Pod, if it runs one. A Service in the same file that selects its Pods gives the port."""
    kind, spec, name = name_of_table(manifest), mapping(manifest, "spec"), text(manifest, "metadata", "name")
    paths = (filter(None, path.split(".")) for path in load_tables()[kind].templates)
    template = next((found for path in paths if (found := mapping(manifest, *path))), {})
    pod, metadata, container = mapping(template, "spec"), mapping(template, "metadata"), _container(mapping(template, "spec"))
    if not container:
        return []
    group, labels = mapping(spec, "leaderWorkerTemplate"), {**mapping(metadata, "labels"), "leaderworkerset.sigs.k8s.io/name": name}.items()
    services = ((each, mapping(each, "spec", "selector")) for each in others if name_of_table(each) == "Service")
    service = next((each for each, selector in services if selector and selector.items() <= labels), {})
    old, (first, *more) = text(service, "metadata", "name"), list(objects(service, "spec", "ports")) or [{}]
    claims = [text(each, "metadata", "name") for each in objects(spec, "volumeClaimTemplates")]
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{name}-0"}} for each in claims]
    parts = {
        "advice": [] if old == name else [say("service.renamed", old=old, name=name) if service else say("service.new")],
        "metadata": metadata,
        "selector": mapping(spec, "selector", "matchLabels"),
        "spec": {"service": _service(integer(first, "port"), text(service, "spec", "type"), service)},
    }
    places = [(kind, manifest, ""), ("Service", service, f"Service {old}: ")]
    engine = _of_platform(manifest, kind, container, merged(pod, {"volumes": volumes}), places=places, **parts)
    engine.report.dropped += [say("workers")] if {"leaderTemplate", "workerTemplate"} <= group.keys() else []
    if more:
        told = ", ".join(f"{text(each, 'name')} {each.get('port')}".strip() for each in more)
        engine.report.dropped.append(say("service.ports", old=old, ports=told))
    return [engine]


def _of_inference_service(manifest: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of an InferenceService of KServe, with its ServingRuntime if that is in the same file."""
    predictor = mapping(manifest, "spec", "predictor")
    model = mapping(predictor, "model")
    runtimes = {text(each, "metadata", "name"): each for each in others if text(each, "kind").endswith("ServingRuntime")}
    runtime = mapping(runtimes.get(text(model, "runtime"), {}), "spec")
    release = text(runtimes.get(text(model, "runtime")), "metadata", "annotations", "opendatahub.io/runtime-version")  # v0.9.1.0
    base, own = next(objects(runtime, "containers"), {}), model or _container(predictor)
    # KServe merges a container of the predictor with the name of the engine's into it
    name = text(base, "name") or text(own, "name") or "kserve-container"
    more = named(predictor, name, "containers", key="name") if model else {}
    image, version = text(own, "image") or text(base, "image"), text(model, "runtimeVersion")
    image = f"{split_image(image)[0]}:{version}" if image and version else image  # KServe replaces the tag of the runtime's image
    minimum, maximum = integer(predictor, "minReplicas"), integer(predictor, "maxReplicas")
    container = merged(merged(base, more), {**own, "name": name})
    # the runtime for Hugging Face models has a flag of its own that chooses vLLM
    words = [word for word in _words(_filled_in(container, manifest)) if not word.startswith("--backend=")]
    container |= {"image": "" if "huggingfaceserver" in image else image, "command": [], "args": words}
    location, storage = text(model, "storageUri") or text(named(own, "STORAGE_URI", "env", key="name"), "value"), mapping(model, "storage")
    parts = {
        "places": [("ServingRuntime", {"spec": runtime}, "ServingRuntime: "), ("InferenceService of KServe", manifest, "")],
        "advice": [say("gateway"), *([say("to-zero")] if minimum == 0 else [])],
        "model": location or (f"{text(storage, 'path')} of the data connection {text(storage, 'key') or 'default'}" if storage else ""),
        "version": version_of_image(image if "huggingfaceserver" in image else f"vllm:{release}") or "",
        "spec": {"replicas": max(1, minimum or 1)},
    }
    engine = _of_platform(manifest, "InferenceService of KServe", container, merged(runtime, predictor), **parts)
    engine.report.advice += [say("runtime", name=name)] if (name := text(model, "runtime")) and not runtime else []
    if maximum is not None and maximum > (minimum or 1):
        engine.report.dropped.append(say("replicas.maximum", maximum=maximum))
    return [engine]


def _of_llm_inference_service(manifest: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    container, more = _with_more_arguments(_filled_in(_container(mapping(spec, "template")), manifest))
    own = mapping(manifest, "metadata", "annotations").items()
    prefixes = load_tables()["annotations"].kept
    passed_on = {**{name: value for name, value in own if str(name).startswith(prefixes)}, **mapping(spec, "annotations")}
    offloading, traces = _offloading(mapping(spec, "kvCacheOffloading")), text(spec, "tracing", "exporterEndpoint")
    data, local = integer(spec, "parallelism", "data"), integer(spec, "parallelism", "dataLocal")
    advice = [say("router")] if spec.get("router") else []
    parts = {
        "advice": advice if container.get("command") else [*advice, say("published")],
        "flags": {"kvTransferConfig": offloading, "collectDetailedTraces": "all" if traces else None},
        "words": more,
        "nodes": data // local if data and local else None,
        "metadata": {"annotations": passed_on},
        "served_name": text(spec, "model", "name") or ("" if container.get("command") else name),
        "adapters": [{"name": text(each, "name"), "uri": text(each, "uri")} for each in objects(spec, "model", "lora", "adapters")],
    }
    return [_of_platform(manifest, "LLMInferenceService of KServe", container, mapping(spec, "template"), **parts)]


def _filled_in(container: Manifest, manifest: Manifest) -> dict[str, Any]:
    """Return the container with the command line in which KServe fills in fields of the object, such as `{{ .Spec.Model.Name }}`."""
    paths = load_tables()["fields that KServe fills in"].becomes
    fill = partial(_FIELD.sub, lambda match: text(manifest, *paths.get(match[1], "").split(".")) or match[0])
    return {**container, **{part: [*map(fill, _listed(container, part))] for part in ("command", "args")}}


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
        raise ImportRefusedError(say("additional-args", name=_MORE_ARGUMENTS))
    env = [each for each in objects(container, "env") if each is not variable]
    return {**container, "env": env}, split_words(f"the value of {_MORE_ARGUMENTS}", text(variable, "value"))


def _of_llmkube(manifest: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of an InferenceService of LLMKube, with the Model that it names, from the same file."""
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "runtime") != "vllm":
        raise ImportRefusedError(f"the InferenceService {name} has the runtime {text(spec, 'runtime') or 'llamacpp'}, not vllm")
    wanted = text(spec, "modelRef")
    model = next((each for each in others if text(each, "kind") == "Model" and text(each, "metadata", "name") == wanted), None)
    if model is None:
        raise ImportRefusedError(f"the InferenceService {name} names the Model {wanted}, which is not in the file. Add it to the file")
    gpu, draft = mapping(model, "spec", "hardware", "gpu"), mapping(spec, "vllmConfig", "speculative")
    off = () if draft.get("enabled") is True and draft.get("model") else ("speculativeConfig",)
    parts = {
        "places": [("InferenceService of LLMKube", manifest, ""), ("Model of LLMKube", model, f"Model {wanted}: ")],
        "advice": [],
        "flags": dict.fromkeys(("hfTokenSecretRef", "speculative", "kvCacheCustomDtype", *off)),
        "limits": {text(gpu, "resourceName") or GPU_RESOURCE: integer(spec, "resources", "gpu") or integer(gpu, "count") or 1},
        "spec": {"service": _service(integer(spec, "endpoint", "port"), text(spec, "endpoint", "type"), {})},
    }
    return [_of_platform(manifest, "InferenceService of LLMKube", {}, {}, **parts)]


def _of_stack(values: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    models = [each for each in objects(values, "servingEngineSpec", "modelSpec") if each.get("enabled") is not False]
    return [_of_model_spec(each, values, others) for each in models]


def _of_model_spec(model: Manifest, values: Manifest, others: Sequence[Manifest]) -> Engine:
    """Return the engine of one model of the production stack. Its settings come before those of all models."""
    common = mapping(values, "servingEngineSpec")
    cache = mapping(model, "lmcacheConfig") if mapping(model, "lmcacheConfig").get("enabled") else {}
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": text(cache, "kvRole") or "kv_both"}
    env = [
        *_variable("LMCACHE_LOCAL_CPU", "True" if cache.get("cpuOffloadingBufferSize") else None),
        *_variable("HF_TOKEN", model.get("hf_token")),
        *_variable("VLLM_API_KEY", common.get("vllmApiKey")),
        *_variable("VLLM_USE_V1", "0" if str(mapping(model, "vllmConfig").get("v0")) == "1" else None),
    ]
    size, resources, repository = text(model, "shmSize"), mapping(model, "resources"), text(model, "repository")
    container = {
        "image": f"{repository}:{text(model, 'tag') or 'latest'}" if repository else "",
        "env": env,
        "resources": resources,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}] if size else [],
    }
    is_own = model.get("tolerationsPolicy") == "override" and model.get("tolerations")
    pod: dict[str, Any] = {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": size}}] if size else []}
    pod |= {"tolerations": [*(() if is_own else objects(common, "tolerations")), *objects(model, "tolerations")]}
    terms = [] if model.get("affinity") or model.get("nodeName") else model.get("nodeSelectorTerms")  # as in the chart
    advice = [say("stack.router")] if "routerSpec" in values else []
    advice += [say("lmcache")] if cache else []
    advice += [say("adapter.token")] if any(text(each, "adapterSource", "credentials") for each in objects(values, "loraAdapters")) else []
    modes, storage = sequence(model.get("pvcAccessMode")), text(model, "pvcStorage")
    volume = {"size": storage, "storageClassName": text(model, "storageClass") if storage else ""}
    volume |= {"accessMode": modes[0]} if modes and modes[0] != "ReadWriteOnce" else {}
    weights = {"claimName": claim} if (claim := text(model, "pvcExistingClaimName")) else {"volume": {k: v for k, v in volume.items() if v}}
    parts = {
        "source": f"model {text(model, 'name')} of the production stack",
        "name": text(model, "name"),
        "advice": advice,
        "flags": {**dict.fromkeys(("v0", "v1", "extraArgs")), "kvTransferConfig": connector if cache else None},
        "limits": {} if resources else {text(model, "requestGPUType") or GPU_RESOURCE: model.get("requestGPU") or 0},
        "adapters": _adapters_of_stack(model, values, others),
        "spec": {"weights": weights} if any(weights.values()) else {},
    }
    alone = {**values, "servingEngineSpec": {**common, "modelSpec": [{**model, "lmcacheConfig": cache, "nodeSelectorTerms": terms}]}}
    return _of_platform(alone, "values of the production stack", container, pod, **parts)


def _of_vllm_runtime(manifest: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of a VLLMRuntime, with the flags that the operator of the production stack adds."""
    spec, config, cache = mapping(manifest, "spec"), mapping(manifest, "spec", "vllmConfig"), mapping(manifest, "spec", "lmCacheConfig")
    image, cache = mapping(spec, "deploymentConfig", "image"), cache if cache.get("enabled") else {}
    flags: dict[str, Any] = {name: config.get(name) is True for name in ("enableChunkedPrefill", "enablePrefixCaching")}
    flags["kvTransferConfig"] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"} if cache else None
    variables = _variable("LMCACHE_LOCAL_CPU", "True" if cache.get("cpuOffloadingBufferSize") else None)
    container = {"image": "/".join(filter(None, (text(image, "registry"), text(image, "name")))), "env": variables}
    alone = {**manifest, "spec": {**spec, "lmCacheConfig": cache}}
    return [_of_platform(alone, "VLLMRuntime", container, {}, flags=flags, advice=[say("stack.router")])]


def _of_storm_service(manifest: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    """Return an engine for each role of a StormService that runs vLLM, without one that only prefills."""
    roles = [each for each in objects(manifest, "spec", "template", "spec", "roles") if _container(mapping(each, "template", "spec"))]
    served = [each for each in roles if text(each, "name") != "prefill"]
    engines = []
    for role in served:
        pod, part = mapping(role, "template", "spec"), text(role, "name") if len(served) > 1 else ""
        replicas = (integer(manifest, "spec", "replicas") or 1) * (integer(role, "replicas") or 1)
        parts = {"spec": {"replicas": replicas}, "nodes": integer(role, "podGroupSize"), "metadata": mapping(role, "template", "metadata")}
        engines.append(_of_platform(manifest, "StormService", _container(pod), pod, part=part, **parts))
        engines[-1].report.dropped += [say("both", part="the role prefill")] if len(served) < len(roles) else []
    return engines


def _of_dynamo(manifest: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    """Return an engine for each worker of a DynamoGraphDeployment that runs vLLM, without those that only prefill."""
    kind, engines = "DynamoGraphDeployment", []
    services = {name: mapping(each) for name, each in mapping(manifest, "spec", "services").items()}
    services |= {text(each, "name"): _service_of_component(each) for each in objects(manifest, "spec", "components")}
    words = {name: _words(mapping(each, "extraPodSpec", "mainContainer")) for name, each in services.items()}
    workers = [name for name in services if any(_DYNAMO in word for word in words[name])]
    served = [name for name in workers if not _PREFILL.search(" ".join([*words[name], text(services[name], "subComponentType")]))]
    for name in served:
        each, pod = services[name], mapping(services[name], "extraPodSpec")
        main, place = mapping(pod, "mainContainer"), "services" if name in mapping(manifest, "spec", "services") else "components"
        # the tag of the image counts Dynamo, and the directory is in this image
        container = {**main, "name": "main", "image": "", "workingDir": "", "command": []}
        container["args"] = [word.replace(_DYNAMO, "vllm.entrypoints.openai.api_server") for word in words[name]]
        parts: dict[str, Any] = {"part": name if len(served) > 1 else "", "version": version_of_image(text(main, "image")) or ""}
        parts["places"] = [(kind, manifest, ""), ("service of Dynamo", each, f"spec.{place}.{name}.")]
        mounted = [(text(mount, "name"), path) for mount in objects(each, "volumeMounts") if (path := text(mount, "mountPoint"))]
        container = merged(container, {"volumeMounts": [{"name": claim, "mountPath": path} for claim, path in mounted]})
        pod = merged(pod, {"volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim, _ in mounted]})
        engine = _of_platform(manifest, kind, container, pod, metadata=mapping(each, "extraPodMetadata"), **parts)
        engine.report.dropped += [say("both", part=f"the service {other}") for other in workers if other not in served]
        engine.report.dropped += [f"The service {other}: it does not run vLLM." for other in services if other not in workers]
        engines.append(engine)
    return engines


def _service_of_component(component: Manifest) -> Manifest:
    """Return a component of nvidia.com/v1beta1 as a service of v1alpha1: it has a Pod template, whose container `main` is the engine."""
    template = mapping(component, "podTemplate")
    main = named(template, "main", "spec", "containers", key="name")
    pod, metadata = {**mapping(template, "spec"), "mainContainer": main}, mapping(template, "metadata")
    return {**component, "extraPodSpec": pod, "extraPodMetadata": metadata, "subComponentType": component.get("type")}


def _of_kubeai(manifest: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    spec, name = mapping(manifest, "spec"), text(manifest, "metadata", "name")
    if text(spec, "engine") != "VLLM":
        raise ImportRefusedError(f"the Model {name} of KubeAI has the engine {text(spec, 'engine')}, not VLLM")
    profile, _, count = text(spec, "resourceProfile").partition(":")
    parts = {
        "limits": {GPU_RESOURCE: count or 1},
        "advice": [say("profile", profile=profile), *([say("to-zero")] if not integer(spec, "minReplicas") else [])],
        "spec": {"replicas": max(1, integer(spec, "replicas") or integer(spec, "minReplicas") or 1)},
        "adapters": [{"name": text(each, "name"), "uri": text(each, "url")} for each in objects(spec, "adapters")],
    }
    return [_of_platform(manifest, "Model of KubeAI", {}, {}, model=text(spec, "url").partition("?")[0], served_name=name, **parts)]


def _of_kaito(manifest: Manifest, others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of a Workspace or InferenceSet of KAITO: of its Pod template, or of a preset whose name on the hub is known."""
    spec, kind = (mapping(manifest, "spec", "template") or manifest), text(manifest, "kind")
    template, name = mapping(spec, "inference", "template"), text(spec, "inference", "preset", "name")
    model = name if "/" in name else load_tables()["presets of KAITO"].becomes.get(name, "")
    parts: dict[str, Any] = {
        "model": f"hf://{model}" if model else name,
        "served_name": name.rpartition("/")[2],
        "metadata": mapping(template, "metadata"),
        "advice": [say("instance")],
    }
    config = text(spec, "inference", "config")
    given = [each for each in others if text(each, "kind") == "ConfigMap" and config == text(each, "metadata", "name")]
    try:
        settings = [yaml.load(text(each, "data", "inference_config.yaml"), Loader=yaml.CSafeLoader) for each in given]
    except yaml.YAMLError as error:
        raise ImportRefusedError(f"inference_config.yaml in the ConfigMap {config} is not valid YAML. Correct it") from error
    parts["flags"] = {name: value for each in settings for name, value in mapping(each, "vllm").items()}
    parts["advice"] += [say("kaito.config" if given else "kaito.missing", name=config)] if config else []
    return [_of_platform(manifest, f"{kind} of KAITO", _container(mapping(template, "spec")), mapping(template, "spec"), **parts)]


def _of_model_service(values: Manifest, _others: Sequence[Manifest]) -> list[Engine]:
    """Return the engine of the Pods for decode in values of llm-d's chart, with the flags that the chart adds."""
    decode, model, name = mapping(values, "decode"), mapping(values, "modelArtifacts"), text(values, "modelArtifacts", "name")
    sizes, types = mapping(decode, "parallelism"), mapping(decode, "acceleratorTypes")
    container = _container(decode)
    counts = {size: read_integer(sizes.get(size)) or 1 for size in ("tensor", "data")}
    is_own = text(container, "modelCommand") in ("", "custom")
    match = {"key": text(types, "labelKey"), "operator": "In", "values": _listed(types, "labelValues")}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [match]}]}}
    pod = {**decode, **({"affinity": {"nodeAffinity": required}} if match["key"] else {})}
    parts = {
        "name": name.rpartition("/")[2],
        "flags": {} if is_own else {f"{size}ParallelSize": count for size, count in counts.items() if count > 1},
        "limits": {GPU_RESOURCE: counts["tensor"] * counts["data"], **mapping(container, "resources", "limits")},
        "model": text(model, "uri").replace("{{ .Values.modelArtifacts.name }}", name).replace('"', ""),
        "served_name": name,
    }
    return [_of_platform(values, "values of llm-d", container, pod, **parts)]


def _of_platform(manifest: Manifest, kind: str, container: Manifest, pod: Manifest, **given: Any) -> Engine:
    """Return an engine of what is given, and of the fields of `places` (table, object, start of paths). `part`: its name among several."""
    parts: dict[str, Any] = {"container": {}, "pod": {}, "metadata": {}, "flags": {}, "engine": {}, "words": [], "variables": {}}
    report = Report(advice=given.pop("advice", [say("service.new")]))
    for name, source, where in given.pop("places", [(kind, manifest, "")]):
        load_tables()[name].place(source, parts)
        report.dropped += load_tables()[name].dropped_from(source, where)
    if (vendor := text(parts, "engine", "vendor") or "nvidia") != "nvidia":
        raise ImportRefusedError(f"the GPUs are of the type {vendor}. The operator supports NVIDIA GPUs only")
    flags = words_of_settings(parts["flags"] | given.pop("flags", {}))
    known, token = parts["engine"], mapping(parts["engine"], "token")
    secrets = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"key": "HF_TOKEN", **token}}}] if token.get("name") else []
    env = [*secrets, *({"name": name, "value": str(value)} for name, value in parts["variables"].items())]
    counts = {text(known, "gpuType") or GPU_RESOURCE: known.get("gpus"), **given.pop("limits", {})}
    limits = {name: amount for name, amount in counts.items() if amount}
    whole = merged(merged(parts["container"], container), {"env": env, "resources": {"limits": limits}})
    words = [*_words(whole), *flags, *_listed(parts, "words"), *given.pop("words", ())]
    whole |= {"args": words, "command": []}
    name = "-".join(filter(None, (given.pop("name", "") or text(manifest, "metadata", "name"), given.pop("part", ""))))
    metadata = _pod_metadata(report, manifest, parts["metadata"], given.pop("metadata", {}), selector=given.pop("selector", ()))
    spec = {"replicas": read_integer(known.get("replicas")), "rollout": _rollout(known.get("rollout")), **given.pop("spec", {})}
    common = {"namespace": text(manifest, "metadata", "namespace"), "model": text(known, "model"), "nodes": integer(known, "nodes")}
    engine = {"container": whole, "pod": merged(parts["pod"], pod), "metadata": metadata, "spec": spec, "report": report, **common, **given}
    what, _, tool = kind.partition(" of ")
    return Engine(**{"source": f"{what} {name} of {tool}".removesuffix(" of "), "name": name, **engine})


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


def _pod_metadata(report: Report, manifest: Manifest, *sources: Manifest, selector: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of Pods, without labels of `selector`: the old object would count the Pods as its own."""
    labels = {str(name): value for source in sources for name, value in mapping(source, "labels").items()}
    annotations = {str(name): value for source in sources for name, value in mapping(source, "annotations").items()}
    lost = [*selector, *(name for name in labels if name in SELECTOR_LABELS and name not in selector)]
    if lost:
        report.dropped.append(say("selector", labels=", ".join(lost)))
    known, tools = load_tables()["annotations"], load_tables()["tools"].ignored
    told = {name: f"The annotation {name} ({value})" for name, value in annotations.items() if not name.startswith(known.ignored)}
    report.dropped += [f"{sentence}: {known.dropped[name]}." for name, sentence in told.items() if name in known.dropped]
    report.unread += [f"{sentence}." for name, sentence in told.items() if name.startswith(tools) and name not in known.dropped]
    lost += known.dropped
    queues = {name: value for name, value in mapping(manifest, "metadata", "labels").items() if str(name).startswith(QUEUES)}
    kept = {"labels": {**queues, **_without_tools(labels, lost)}, "annotations": _without_tools(annotations, lost)}
    return {field: values for field, values in kept.items() if values}


def _without_tools(values: Mapping[str, str], lost: Collection[str] = ()) -> dict[str, str]:
    own = {name: value for name, value in values.items() if isinstance(value, str) and name not in lost}
    return {name: value for name, value in own.items() if not str(name).startswith(load_tables()["tools"].ignored)}


def _container(pod: Manifest) -> Manifest:
    """Return the container that runs vLLM: by its image or command, else the first with a GPU."""
    by_words = [each for each in objects(pod, "containers") if _has_vllm(each)]
    told = ((each, " ".join((text(each, "name"), text(each, "image"), *_words(each)[:4]))) for each in objects(pod, "containers"))
    containers = [each for each, words in told if not _OTHER_ENGINES.search(words)]
    by_gpu = [each for each in containers if any(name.startswith("nvidia.com/") for name in mapping(each, "resources", "limits"))]
    by_name = [each for each in containers if each.get("name") in ("main", "kserve-container", "vllm")]
    return next(iter([*by_words, *by_gpu, *by_name]), {})


def _has_vllm(container: Manifest) -> bool:
    return any("vllm" in word for word in (text(container, "image"), *_words(container)))


def _words(container: Manifest) -> list[str]:
    return [*_listed(container, "command"), *_listed(container, "args")]


def _listed(source: Manifest, name: str) -> list[str]:
    return [str(word) for word in sequence(source.get(name))]


def _rollout(strategy: Any) -> dict[str, Any]:
    """Return `spec.rollout` of a strategy of Kubernetes. Percentages, which are the default, are left to the operator."""
    if text(strategy, "type") == "Recreate":
        return {"strategy": "Recreate"}
    return {name: number for name in ("maxSurge", "maxUnavailable") if (number := integer(strategy, "rollingUpdate", name)) is not None}


def _service(port: int | None, kind: str, service: Manifest) -> dict[str, Any]:
    """Return what differs from the defaults of a VLLMDeployment."""
    parts = {
        "port": port if port != 8000 else None,
        "type": kind if kind != "ClusterIP" else "",
        "annotations": _without_tools(mapping(service, "metadata", "annotations")),
        "loadBalancerClass": text(service, "spec", "loadBalancerClass"),
    }
    return {name: part for name, part in parts.items() if part}


_READERS: Mapping[str, Callable[[Manifest, Sequence[Manifest]], list[Engine]]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "LeaderWorkerSet", "Pod of Kubernetes", "Service of Knative"), _of_workload),
    "InferenceService of KServe": _of_inference_service,
    "LLMInferenceService of KServe": _of_llm_inference_service,
    "InferenceService of LLMKube": _of_llmkube,
    "VLLMRuntime": _of_vllm_runtime,
    "StormService": _of_storm_service,
    "DynamoGraphDeployment": _of_dynamo,
    "Model of KubeAI": _of_kubeai,
    **dict.fromkeys(("Workspace of KAITO", "InferenceSet of KAITO"), _of_kaito),
    "values of llm-d": _of_model_service,
    "values of the production stack": _of_stack,
}
"""What reads an object, by the name of its table."""
