"""Write what the chart has from elsewhere: its copies of the CRDs, the version, the settings, the table in its README. `make generate`."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import generate_crds
import generate_docs
from vllm_operator import __version__
from vllm_operator.controller.settings import MAY_BE_ZERO

CHART = Path(__file__).parent.parent / "charts" / "vllm-operator"
DEFINITIONS = CHART / "files"
METADATA = CHART / "Chart.yaml"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
OWN_VALUES = frozenset(
    {"namespaces", "http_host", "http_port", "log_format", "log_level", "hub_endpoint", "integrations", "lease", "identity", "tools_image"}
)
"""Settings that have a value of their own in the chart, or none because the chart needs them as they are."""
HEADER = "| value | default | meaning |\n|---|---|---|\n"
KEEP = """\
  annotations:
    # uninstalling the chart must not delete what users have made
    helm.sh/resource-policy: keep
"""


def definitions() -> dict[str, str]:
    """Return the CRDs as the chart installs them, by the name of the file: as they are, but kept when the chart goes."""
    rendered = generate_crds.render()
    return {
        name: re.sub(r"(?m)^(metadata:\n  name: .*\n)", lambda found: found[1] + KEEP, text, count=1) for name, text in rendered.items()
    }


def metadata(current: str) -> str:
    return re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {__version__}", current)


def schema(current: str) -> str:
    content: dict[str, Any] = json.loads(current)
    content["properties"]["settings"]["properties"] = {
        name: {"description": f"{meaning} Default: {default}." if default != "" else meaning, **_type(name, default)}
        for name, default, meaning in generate_docs.settings_with_meanings()
        if name not in OWN_VALUES
    }
    return json.dumps(content, indent=2) + "\n"


def _type(name: str, default: object) -> dict[str, Any]:
    match default:
        case int():
            return {"type": "integer", "minimum": 0 if name in MAY_BE_ZERO else 1}
        case float():
            bound = "minimum" if name in MAY_BE_ZERO else "exclusiveMinimum"
            return {"type": ["number", "string"], bound: 0, "pattern": "^[0-9.]+$"}  # `--set` makes a text of 0.5
        case _:
            return {"type": "string"}


def readme(current: str) -> str:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    rows = [f"| `{name}` | {_shown(default)} | {meaning} |" for name, default, meaning in _values(schema, defaults)]
    return current.partition(HEADER)[0] + HEADER + "\n".join(rows) + "\n"


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


def main() -> int:
    SCHEMA.write_text(schema(SCHEMA.read_text("utf-8")), "utf-8")
    README.write_text(readme(README.read_text("utf-8")), "utf-8")
    for name, text in definitions().items():
        (DEFINITIONS / name).write_text(text, "utf-8")
    METADATA.write_text(metadata(METADATA.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
