"""The plan in an annotation of the Deployment that was rendered from it, as `DIGEST.DICTIONARY.PLAN`.

The digest is that of the plan's revision. The plan is JSON, compressed with a dictionary, in base64: about 500 characters instead of
7 KB, because most of its text is the same in all plans. Whoever may edit the Deployment can write anything there, so nothing of it counts
that the digest does not cover.

`plan-dictionary-1.txt` contains parts that many plans have in common, and one whole plan, which comes last because near matches are
shorter. It must never change, because plans could not be read without it. A better one gets the next number.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from vllm_operator.api.labels import PLAN_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.pods import reading
from vllm_operator.rendering.revision import RevisionError, content_of, name_of_digest, parse_content

DICTIONARY = "1"
"""The dictionary that plans are compressed with."""
VALUE_LIMIT = 8192
"""Maximum characters of the annotation. A larger plan is written into a ControllerRevision."""
TEXT_LIMIT = 1 << 18
"""Maximum bytes of a plan as JSON."""
_LEVEL = 6


def carry(name: str, plan: Plan) -> str | None:
    """The value of the annotation for a plan, whose revision has this name; None if the plan is too large for it."""
    text = json.dumps(content_of(plan), sort_keys=True, separators=(",", ":")).encode()
    if len(text) > TEXT_LIMIT:
        return None
    compressor = zlib.compressobj(_LEVEL, zdict=_dictionary(DICTIONARY))
    packed = base64.b64encode(compressor.compress(text) + compressor.flush()).decode()
    value = f"{name.rpartition('-')[2]}.{DICTIONARY}.{packed}"
    return value if len(value) <= VALUE_LIMIT else None


def carried_value(deployment: Mapping[str, Any] | None) -> str:
    """The annotation of a Deployment; empty if it has none."""
    return reading.text(deployment, "metadata", "annotations", PLAN_ANNOTATION)


def carried_name(resource: VLLMDeployment, deployment: Mapping[str, Any] | None) -> str | None:
    """The name of the plan that a Deployment says to carry; None if it carries none. Nothing else was checked."""
    return name_of_digest(resource, carried_value(deployment).partition(".")[0])


def read_carried(resource: VLLMDeployment, deployment: Mapping[str, Any]) -> Plan:
    """The plan that a Deployment carries.

    Raises:
        RevisionError: It does not carry what the operator wrote.
    """
    name, where = carried_name(resource, deployment), f"The annotation {PLAN_ANNOTATION} of Deployment {resource.metadata.name}"
    if name is None:
        raise RevisionError(f"{where} contains no plan")
    try:
        content = _unpack(carried_value(deployment))
    except (ValueError, zlib.error, RecursionError) as error:
        raise RevisionError(f"{where} cannot be read") from error
    return parse_content(resource, name, content, where)


def _unpack(value: str) -> Any:
    """Raises ValueError, zlib.error and RecursionError."""
    if len(value) > VALUE_LIMIT:
        raise ValueError("it is too long")
    _, number, packed = value.split(".", 2)
    if number != DICTIONARY:
        raise ValueError("a dictionary that this version does not have")
    decompressor = zlib.decompressobj(zdict=_dictionary(number))
    text = decompressor.decompress(base64.b64decode(packed, validate=True), TEXT_LIMIT)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it is cut off, or more than a plan")
    return json.loads(text)


@cache
def _dictionary(number: str) -> bytes:
    return resources.files("vllm_operator.rendering").joinpath(f"plan-dictionary-{number}.txt").read_bytes()
