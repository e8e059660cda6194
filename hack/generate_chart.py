"""Write what the chart has from elsewhere: its copies of the CRDs, the version, the settings, the table in its README. `make generate`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import generate_crds
import generate_docs
from vllm_operator import __version__
from vllm_operator.controller.settings import Settings

CHART = Path(__file__).parent.parent / "charts" / "vllm-operator"
METADATA, SCHEMA, README = CHART / "Chart.yaml", CHART / "values.schema.json", CHART / "README.md"
OWN_VALUES = frozenset(
    {"namespaces", "http_host", "http_port", "log_format", "log_level", "hub_endpoint", "integrations", "lease", "identity", "tools_image"}
) | {"observe", "observe_namespaces", "observe_labels"}
"""Settings that have a value of their own in the chart, or none because the chart needs them as they are."""
HEADER = "value | default | meaning"
KEEP = """\
  annotations:
    # uninstalling the chart must not delete what users have made
    helm.sh/resource-policy: keep
"""


def files() -> dict[Path, str]:
    schema = _schema()
    version = re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {__version__}", METADATA.read_text("utf-8"))
    written = {SCHEMA: json.dumps(schema, indent=2) + "\n", README: _readme(schema), METADATA: version}
    for file, text in generate_crds.files().items():
        written[CHART / "files" / file.name] = re.sub(r"(?m)^(metadata:\n  name: .*\n)", lambda found: found[1] + KEEP, text, count=1)
    return written


def _schema() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))
    content["properties"]["settings"]["properties"] = {
        name: {"description": f"{meaning} Default: {default}." if default != "" else meaning, **_type(name, default)}
        for name, default, meaning in generate_docs.settings_with_meanings()
        if name not in OWN_VALUES
    }
    return content


def _type(name: str, default: object) -> dict[str, Any]:
    known = Settings.model_json_schema()["properties"][name]
    match default:
        case int():
            return {"type": "integer", "minimum": known["minimum"]}
        case float():
            return {"type": ["number", "string"], "minimum": known["minimum"], "pattern": "^[0-9.]+$"}  # `--set` makes a text of 0.5
        case _:
            return {"type": "string"}


def _readme(schema: dict[str, Any]) -> str:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    rows = ((f"`{name}`", _shown(default), meaning) for name, default, meaning in _values(schema, defaults))
    return README.read_text("utf-8").partition(f"| {HEADER} |\n")[0] + "\n".join(generate_docs.table(HEADER, rows)) + "\n"


def _values(schema: dict[str, Any], defaults: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Each value with its default and what it means; one that is as in a Pod, or a map of anything, counts as one."""
    for name, part in schema["properties"].items():
        if name not in defaults:
            continue  # `global`, of charts that this one is a part of
        if "properties" in part and defaults[name]:
            yield from _values(part, defaults[name], f"{path}{name}.")
        else:
            yield path + name, defaults[name], part["description"]


def _shown(default: Any) -> str:
    text = json.dumps(default)
    if default in ("", [], {}):
        return ""
    return f"`{text}`" if len(text) < 60 else "as in values.yaml"
