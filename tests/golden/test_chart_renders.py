"""The chart: what it installs for each way to install it, and what it refuses."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import generate_chart
import generate_crds
from support import helm
from support.chart_ways import WAYS, Way
from support.own_knowledge import EXPERTS_RULE, LICENCE_SIGNATURE
from support.permissions import ALL_NAMESPACES, GATEWAY, KEDA, OPTIONAL
from testenv.binaries import find_binary
from vllm_operator import __version__
from vllm_operator.api.conditions import ORDER
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.catalog.user_entries import with_user_rules, with_user_signatures
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.preconditions import IF_INSTALLED, REQUIRED
from vllm_operator.controller.settings import Settings
from vllm_operator.kube.client import LEASE

GOLDEN = Path(__file__).parent / "chart"
SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text("utf-8"))
ALERTS = yaml.safe_load((helm.CHART / "files" / "alerts.yaml").read_text("utf-8"))
VALUES = yaml.safe_load((helm.CHART / "values.yaml").read_text("utf-8"))

needs_helm = pytest.mark.skipif(find_binary("helm") is None, reason="there is no helm; `make testenv` builds it")

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a value that does not exist": ({"replicaCount": 2}, "replicaCount"),
    "no Pod": ({"replicas": 0}, "replicas"),
    "two Pods that would both write": ({"replicas": 2, "leaderElection": {"enabled": False}}, "needs leaderElection.enabled"),
    "a setting that does not exist": ({"settings": {"wokers": 8}}, "'/settings': additional properties 'wokers' not allowed"),
    "a setting that is no number": ({"settings": {"workers": "many"}}, "'/settings/workers': got string, want integer"),
    "a namespace that cannot be one": ({"namespaces": ["Team_A"]}, "namespaces"),
    "a digest without its algorithm": ({"image": {"digest": "abc"}}, "digest"),
    "a kind of monitor that does not exist": ({"metrics": {"monitor": {"kind": "Probe"}}}, "kind"),
    "no account": ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
    "two places for rules": ({"extraRules": [{"id": "one"}], "settings": {"rules_config_map": "mine"}}, "use one of them"),
    "a rule without a name": ({"extraRules": [{"because": "of that"}]}, "id"),
    "a hub that is no address": ({"hub": {"endpoint": "huggingface.co"}}, "endpoint"),
    "a label that the chart finds the Pod by": (
        {"podLabels": {"app.kubernetes.io/name": "mine"}},
        "app.kubernetes.io/name is a label that",
    ),
    "a password in the proxy's address": ({"proxy": {"url": "http://me:secret@proxy:3128"}}, "proxy"),
}


def manifests_of(way: Way) -> list[helm.Manifest]:
    """What is installed, but for the CRD, which is the same in all ways."""
    return helm.template({**way.values, "crds": {"install": False}}, kinds=way.kinds)


@needs_helm
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_install(way: str, golden: Callable[[Path, str], None]) -> None:
    manifests = sorted(manifests_of(WAYS[way]), key=lambda it: (it["kind"], it["metadata"]["name"]))
    text = yaml.safe_dump_all(manifests, sort_keys=False, width=120)
    golden(GOLDEN / f"{way}.yaml", text.replace(__version__, "VERSION"))


@needs_helm
@pytest.mark.parametrize("way", WAYS)
def test_the_operator_understands_every_variable_that_the_chart_sets(way: str) -> None:
    [deployment] = [it for it in manifests_of(WAYS[way]) if it["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    settings = Settings.from_environment({variable["name"]: variable.get("value", "") for variable in container["env"]})
    wanted = {**WAYS[way].values.get("settings", {}), "hub_endpoint": WAYS[way].values.get("hub", VALUES["hub"])["endpoint"]}
    assert {name: getattr(settings, name) for name in wanted} == wanted


@needs_helm
def test_rules_and_signatures_among_the_values_reach_the_operator_as_they_are() -> None:
    manifests = helm.template(WAYS["own-rules-and-signatures"].values)
    data = {it["metadata"]["name"]: it["data"] for it in manifests if it["kind"] == "ConfigMap"}
    _, rules = with_user_rules(load_catalog(), data["vllm-operator-rules"])
    assert (rules.added, rules.problems) == ((EXPERTS_RULE["id"],), ()), rules.problems
    _, signatures = with_user_signatures(load_startup(), data["vllm-operator-signatures"])
    assert (signatures.added, signatures.problems) == ((LICENCE_SIGNATURE["id"],), ()), signatures.problems


def all_metrics() -> list[Metric]:
    metrics = Metrics()
    metrics.observe_queue(lambda: 0, lambda: 0.0)
    metrics.observe_streams(lambda: (0, 0))
    metrics.observe_leader(lambda: True, lambda: 1.0)
    metrics.wrote("patch", "Pod")
    families = text_string_to_metric_families(metrics.render().decode())
    return [family for family in families if not family.name.endswith("_created")]  # the library adds them to counters


def test_every_metric_is_in_the_docs() -> None:
    page = (helm.ROOT / "docs" / "operations.md").read_text("utf-8")
    metrics = {family.name + ("_total" if family.type == "counter" else "") for family in all_metrics()}
    assert set(re.findall(r"`(vllm_operator_\w+)", page)) == metrics


def test_the_alerts_ask_for_metrics_that_there_are() -> None:
    metrics = all_metrics()
    shown = {sample.name: sample.labels.keys() for family in metrics for sample in family.samples}
    known = {name for family in metrics for name in (family.name, f"{family.name}_total")} | set(shown)
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert {name for rule in rules for name in re.findall(r"\bvllm_operator_\w+", rule["expr"])} <= known
    types = {name for rule in rules for kinds in re.findall(r'type=~?"([^"]+)"', rule["expr"]) for name in kinds.split("|")}
    assert types <= set(ORDER)
    assert all({"summary", "description", "runbook_url"} == set(rule["annotations"]) and rule["labels"]["severity"] for rule in rules)


@needs_helm
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_work_are_refused_by_name(name: str) -> None:
    values, word = REFUSED[name]
    with pytest.raises(helm.HelmError, match=word):
        helm.template(values)


@needs_helm
@pytest.mark.parametrize("name", ["2024", "1e3", "on", "null", "0x10"])
def test_a_name_that_looks_like_a_number_or_a_word_of_yaml_is_a_name(name: str) -> None:
    values = {
        "fullnameOverride": name,
        "nameOverride": name,
        "namespaces": [name],
        "serviceAccount": {"name": name},
        "priorityClassName": name,
        "caBundle": {"configMap": name},
        "extraRules": [EXPERTS_RULE],
        "crds": {"install": False},
        "metrics": {"alerts": {"mode": "Enabled"}, "monitor": {"kind": "ServiceMonitor"}},
    }

    def names(value: Any) -> Iterator[Any]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key in (
                "name",
                "namespace",
                "serviceAccountName",
                "priorityClassName",
                "app.kubernetes.io/name",
                "app.kubernetes.io/instance",
            ):
                yield inner
            yield from names(inner)
        for inner in value if isinstance(value, list) else ():
            yield from names(inner)

    found = [each for manifest in helm.template(values, namespace=name, release=name) for each in names(manifest)]
    assert found.count(name) > 30
    assert [each for each in found if not isinstance(each, str)] == []


@needs_helm
def test_two_releases_in_a_namespace_with_a_long_name_share_nothing() -> None:
    names = [
        {(it["kind"], it["metadata"]["name"]) for it in helm.template({"crds": {"install": False}}, namespace="n" * 63, release=release)}
        for release in ("one", "two")
    ]
    assert names[0] & names[1] == set()


@needs_helm
def test_the_crds_are_installed_and_kept() -> None:
    installed = [it for it in helm.template({}) if it["kind"] == "CustomResourceDefinition"]
    assert [it["metadata"].pop("annotations") for it in installed] == [{"helm.sh/resource-policy": "keep"}] * 3
    committed = {yaml.safe_load(path.read_text("utf-8"))["metadata"]["name"]: path for path in generate_crds.FOLDER.iterdir()}
    assert {it["metadata"]["name"]: it for it in installed} == {
        name: yaml.safe_load(path.read_text("utf-8")) for name, path in committed.items()
    }
    assert not [it for it in helm.template({"crds": {"install": False}}) if it["kind"] == "CustomResourceDefinition"]


@needs_helm
def test_the_roles_grant_what_the_operator_asks_for() -> None:
    asked = {
        (permission.kind.group, permission.kind.plural + (f"/{permission.subresource}" if permission.subresource else ""), permission.verb)
        for permission in (*REQUIRED, *OPTIONAL, *IF_INSTALLED)
    }
    of_the_cluster = {(p.kind.group, p.kind.plural, p.verb) for p in (*REQUIRED, *OPTIONAL, *IF_INSTALLED) if not p.kind.namespaced}
    of_all = {(permission.kind.group, permission.kind.plural, permission.verb) for permission in ALL_NAMESPACES}
    assert helm.rules(helm.template({}), "ClusterRole") == asked | of_all
    of_the_lease = {(LEASE.group, LEASE.plural, verb) for verb in ("get", "patch", "create")}
    assert helm.rules(helm.template({}), "Role") == of_the_lease
    in_namespaces = helm.template({"namespaces": ["a"]})
    assert helm.rules(in_namespaces, "Role") == (asked - of_the_cluster) | of_the_lease
    alone = {"namespaces": ["a"], "replicas": 1, "leaderElection": {"enabled": False}}
    assert helm.rules(helm.template(alone), "Role") == asked - of_the_cluster
    assert helm.rules(in_namespaces, "ClusterRole") == of_the_cluster
    for name, permissions in {"gateway": GATEWAY, "keda": KEDA}.items():
        with_integration = helm.rules(helm.template({"integrations": {name: True}}), "ClusterRole")
        assert with_integration - asked - of_all == {(p.kind.group, p.kind.plural, p.verb) for p in permissions}


@needs_helm
def test_the_operator_is_told_which_integrations_it_may_use() -> None:
    def told(**enabled: bool) -> list[str]:
        manifests = helm.template({"integrations": enabled})
        [deployment] = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        return [variable["value"] for variable in container["env"] if variable["name"] == "VLLM_OPERATOR_INTEGRATIONS"]

    assert (told(), told(gateway=True), told(gateway=True, keda=True)) == ([], ["gateway"], ["gateway,keda"])


@needs_helm
def test_observe_mode_has_a_role_of_its_own_that_only_reads_pods_and_writes_events() -> None:
    def added(**values: Any) -> list[helm.Manifest]:
        found = helm.template({**values, "crds": {"install": False}})
        return [it for it in found if it["metadata"]["name"] == "vllm-system-vllm-operator-observe"]

    assert added() == added(observe={"namespaces": ["kserve"]}) == []
    role, binding = added(observe={"enabled": True})
    assert helm.rules([role], "ClusterRole") == {
        *(("", "pods", verb) for verb in ("get", "list")),
        ("", "pods/log", "get"),
        *(("", "events", verb) for verb in ("get", "list", "create", "patch")),
    }
    assert (binding["kind"], binding["roleRef"]["name"]) == ("ClusterRoleBinding", role["metadata"]["name"])
    _, *bindings = added(observe={"enabled": True, "namespaces": ["kserve", "llm-d"]}, namespaces=["models"])
    assert [(it["kind"], it["metadata"].get("namespace")) for it in bindings] == [("RoleBinding", "kserve"), ("RoleBinding", "llm-d")]
    assert added(observe={"enabled": True}, rbac={"create": False}) == []


@needs_helm
def test_two_pods_prefer_different_nodes_unless_the_user_says_where_they_go() -> None:
    def pod(values: dict[str, Any]) -> dict[str, Any]:
        [deployment] = [manifest for manifest in helm.template(values) if manifest["kind"] == "Deployment"]
        spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
        return spec

    def topologies(affinity: dict[str, Any]) -> list[str]:
        terms = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        return [term["podAffinityTerm"]["topologyKey"] for term in sorted(terms, key=lambda term: -term["weight"])]

    nodes: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert topologies(pod({})["affinity"]) == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    own = pod({"affinity": nodes})["affinity"]
    assert topologies(own) == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert own["nodeAffinity"] == nodes["nodeAffinity"]
    assert pod({"affinity": {"podAntiAffinity": {}}})["affinity"] == {"podAntiAffinity": {}}


@needs_helm
def test_the_table_in_the_docs_is_what_the_roles_grant() -> None:
    page = (helm.ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("| resource | verbs | for |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[1:]]
    documented = {(resource, verb) for resources, verbs, _ in rows for resource in resources.split(", ") for verb in verbs.split(", ")}
    granted = {(resource, verb) for _, resource, verb in helm.rules(helm.template({}), "ClusterRole")}
    assert documented == granted


def test_every_value_is_described() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> Iterator[str]:
        if not schema.get("description", "").strip().endswith("."):
            yield path
        for name, inner in schema.get("properties", {}).items():
            yield from undescribed(inner, f"{path}.{name}")

    assert list(undescribed(SCHEMA, "values")) == []


def test_the_schema_describes_the_values_that_there_are() -> None:
    def names(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, set[str], set[str]]]:
        described = schema.get("properties")
        if described is not None and path != ".settings":  # none of them is set by default
            yield path, set(value), set(described) - {"global"}
            for name in described.keys() & value.keys():
                yield from names(value[name], described[name], f"{path}.{name}")

    assert [(path, given ^ described) for path, given, described in names(VALUES, SCHEMA) if given != described] == []


def test_the_settings_of_the_chart_are_those_of_the_operator() -> None:
    known = set(Settings.model_fields)
    assert set(SCHEMA["properties"]["settings"]["properties"]) == known - generate_chart.OWN_VALUES
