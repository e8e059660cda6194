"""What people and logs write in the fields of a case: versions, types of the KV cache, lengths, flags in a note. All of it is untrusted."""

import re
from dataclasses import replace
from typing import Any

from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.planning.memory.estimate import Options
from vllm_operator.planning.memory.flags import read_flags, read_size
from vllm_operator.planning.memory.named_formats import NO_NAME
from vllm_operator.planning.memory.runner import VARIABLE, read_runner

OLDEST_TYPICAL, NEWEST = (0, 11, 0), (0, 33, 0)
"""The versions between which the rules changed. Without a version the smaller KV cache of the two counts."""
MAIN = frozenset({"main", "nightly", "latest", "master", "head"})
UNTAGGED = (0, 2, 0)
"""A build of a clone without tags calls itself 0.1.dev1."""
IMAGES = 20
"""`25.09` is the year and month of an image of NVIDIA, not a version of vLLM."""
COMMITS = re.compile(r"(rc[0-9]{1,3})?\.?dev([0-9]{1,6})")
NEARER_COMMITS = 300
"""Half of the commits between two minor releases of vLLM, about."""
FLAG = re.compile(r"(--[a-z][a-z0-9-]{1,60}(?:\.[a-z_]{1,40}){0,2})(?:[= ]([^\s,;-][^\s,;]{0,200}))?")
RUNNER = re.compile(VARIABLE + r"=([01])")


def read_releases(version: str) -> tuple[Release, ...]:
    """The release whose rules hold; two if the version is unknown.

    `0.19.2rc1.dev134` is the main branch, 134 commits after 0.19.2rc0 was tagged there. It is nearer to the release before, or to the next
    minor one. `0.20.1.dev0`, without a candidate, is a build of the release before.
    """
    release = parse_release(version.strip())
    if release is None or release < UNTAGGED or release[0] >= IMAGES:
        return (NEWEST,) if version.strip().lower() in MAIN else (OLDEST_TYPICAL, NEWEST)
    major, minor, patch = release
    found = COMMITS.search(version)
    if found is None or patch == 0:
        return (release,)
    return ((major, minor + 1, 0),) if found[1] and int(found[2]) > NEARER_COMMITS else ((major, minor, patch - 1),)


def read_cache_type(written: str) -> str:
    """The `--kv-cache-dtype`; `auto` where none is stated."""
    name = written.strip().lower()[:40]
    return "auto" if name in NO_NAME or name == "none" else name


def read_tokens(written: Any) -> int | None:
    """A number of tokens as vLLM reads it, such as `32k`; None for anything else."""
    return read_size(written.strip()) if isinstance(written, str) else None


def read_note(note: str) -> Options:
    """The flags and variables of vLLM in a note. Those that cannot be read are left out."""
    written = {name: value or None for name, value in FLAG.findall(note)}
    flags = read_flags(written) or Options()
    runner = RUNNER.search(note)
    return replace(flags, runner_v2=read_runner({VARIABLE: runner[1]}) if runner else None)
