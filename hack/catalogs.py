"""Files for two catalogs: a bundle for the Operator Lifecycle Manager (OLM), and a plugin of krew. Parts of a release.

The bundle installs what the chart installs by default. The Deployment and its permissions are in the ClusterServiceVersion, and OLM
creates the ServiceAccount: https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/.

The plugin is a shell script that runs the package of the same version with uv or pipx, because krew installs no dependencies:
https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import jinja2
import yaml

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "hack" / "listings"
BINDINGS = {"ClusterRoleBinding": "ClusterRole", "RoleBinding": "Role"}
IN_THE_VERSION = ("Deployment", "ServiceAccount", "Namespace", "Role", *BINDINGS)
DOCKERFILE = "FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"


def bundle(manifests: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the files of the bundle by path."""
    objects = list(manifests)
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    bound = {(BINDINGS[each["kind"]], each["roleRef"]["name"]) for each in objects if each["kind"] in BINDINGS}
    rules: dict[str, list[Any]] = {"ClusterRole": [], "Role": []}
    files = {}
    for each in objects:
        kind, name = each["kind"], each["metadata"]["name"]
        if (kind, name) in bound:
            rules[kind].extend(each["rules"])
        elif kind not in IN_THE_VERSION:
            metadata = {key: value for key, value in each["metadata"].items() if key != "namespace"}  # the one of the Subscription
            files[f"manifests/{name}.{kind.lower()}.yaml"] = yaml.safe_dump({**each, "metadata": metadata}, sort_keys=False, width=140)
    annotations = _render("annotations.yaml.j2")
    labels = "".join(f"LABEL {name}={value}\n" for name, value in yaml.safe_load(annotations)["annotations"].items())
    return files | {
        "manifests/vllm-operator.clusterserviceversion.yaml": _render("clusterserviceversion.yaml.j2", deployment=deployment, rules=rules),
        "metadata/annotations.yaml": annotations,
        "bundle.Dockerfile": DOCKERFILE.format(labels=labels),
    }


def krew_plugin(folder: Path, version: str) -> None:
    """Write the archive of the plugin, and vllm.yaml, its manifest with the checksum of the archive."""
    archive = folder / f"kubectl-vllm-{version}.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as content:
        for source, mode in ((TEMPLATES / "kubectl-vllm", 0o755), (ROOT / "LICENSE", 0o644)):
            entry = ZipInfo(source.name)  # has a fixed date, so that two builds are equal
            entry.external_attr = mode << 16
            content.writestr(entry, source.read_text("utf-8").replace("VERSION_OF_THE_RELEASE", version))
    manifest = _render("krew.yaml.j2", archive=archive.name, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    (folder / "vllm.yaml").write_text(manifest, "utf-8")


def _render(template: str, **values: Any) -> str:
    chart = yaml.safe_load((ROOT / "charts" / "vllm-operator" / "Chart.yaml").read_text("utf-8"))
    listed = {key.partition("/")[2]: value for key, value in chart["annotations"].items()}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    examples, crds = yaml.safe_load(listed["crdsExamples"]), yaml.safe_load(listed["crds"])
    return environment.get_template(template).render(chart=chart, annotations=listed, examples=examples, crds=crds, **values)
