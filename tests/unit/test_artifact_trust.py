"""Which artifacts the administrator allows."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.planning.validation import ArtifactTrust

ONE = f"registry.example/team/caches@sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("artifact", "trust", "allowed"),
    [
        ({"repository": "registry.example/team/caches"}, ArtifactTrust(), True),
        ({"repository": "registry.example/team/caches"}, ArtifactTrust(("registry.example/team",)), True),
        ({"repository": "registry.example/team"}, ArtifactTrust(("registry.example/team/",)), True),
        ({"repository": "registry.example/teams"}, ArtifactTrust(("registry.example/team",)), False),
        ({"repository": "other.example/team/caches"}, ArtifactTrust(("registry.example/team", "r.example")), False),
        ({"reference": ONE}, ArtifactTrust(("registry.example/team",)), True),
        ({"reference": ONE, "repository": "other.example/a"}, ArtifactTrust(("registry.example/team",)), False),
        ({"repository": "registry.example/team/caches"}, ArtifactTrust(needs_digest=True), False),
        ({"reference": ONE, "repository": "registry.example/team/caches"}, ArtifactTrust(needs_digest=True), True),
    ],
)
async def test_only_what_the_administrator_allows_is_accepted(
    fleet: Fleet, bench: Bench, artifact: dict[str, Any], trust: ArtifactTrust, allowed: bool
) -> None:
    bench.trust = trust
    bench.restart()
    await fleet.serve(cache={"artifact": artifact})
    assert (bench.condition("Ready").reason == "ArtifactNotAllowed") is not allowed
    assert (fleet.deployment() is not None) is allowed
