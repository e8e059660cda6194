"""Write what the chart has from elsewhere: its copy of the CRD, and the version. `make generate`."""

import re
import sys
from pathlib import Path

import generate_crds
from vllm_operator import __version__

CHART = Path(__file__).parent.parent / "charts" / "vllm-operator"
DEFINITION = CHART / "files" / "vllmdeployments.yaml"
METADATA = CHART / "Chart.yaml"
KEEP = """\
  annotations:
    # uninstalling the chart must not delete what users have made
    helm.sh/resource-policy: keep
"""


def definition() -> str:
    """Return the CRD as the chart installs it: as it is, but kept when the chart goes."""
    return re.sub(r"(?m)^(metadata:\n  name: .*\n)", lambda found: found[1] + KEEP, generate_crds.render(), count=1)


def metadata(current: str) -> str:
    """Return Chart.yaml with the operator's version."""
    return re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {__version__}", current)


def main() -> int:
    DEFINITION.write_text(definition(), "utf-8")
    METADATA.write_text(metadata(METADATA.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
