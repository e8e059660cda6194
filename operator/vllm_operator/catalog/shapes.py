"""Shapes of well-known models: the sizes in their config.json, and how large their weights were found to be.

`shapes.json` has one entry a line. `config` has the keys of the published config.json that decide about memory; `vision_params`
and `swa_layers` are derived. An entry that is not `verified` was entered by hand, or is that of a model with equal sizes.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from vllm_operator.catalog.entry import Entry, parse_entries, read_data

VARIANT = re.compile(
    r"(-(\d{4}|instruct|base|chat|it|thinking|hf|fp8|nvfp4|fp4|mxfp4|awq|gptq|int[48]|w4a16|w8a8|bf16|dynamic"
    r"|quantized(\.w[48]a(8|16))?|[48]bit|bnb|unsloth|autoround|qat|gguf|i?q\d(_[a-z0-9]{1,3}){1,2}))+",
    re.IGNORECASE,
)
"""What may follow the name of a model without another shape: dates, formats, the kind of training."""


class LoadedWeights(Entry):
    """Weights on one GPU as a start-up log says. `format` is as in a case for `vllm-operator fit --cases`."""

    format: str
    tensor: StrictInt
    gib: StrictFloat | StrictInt
    expert: StrictBool = False


class KnownShape(Entry):
    """One model. `aliases` are models with an equal config.json, `checkpoint_gib` is the size of its repository."""

    name: str
    aliases: tuple[str, ...] = Field(default=())
    config: Mapping[str, Any]
    source: str
    verified: StrictBool
    checkpoint_gib: StrictFloat | StrictInt | None = None
    loaded: tuple[LoadedWeights, ...] = Field(default=())


class KnownShapes:
    """The table of shapes, by name."""

    def __init__(self, entries: Iterable[KnownShape]) -> None:
        """Keep the entries."""
        self.entries = tuple(entries)

    @cached_property
    def _by_name(self) -> Mapping[str, KnownShape]:
        found: dict[str, KnownShape] = {}
        for entry in self.entries:
            found[entry.name.lower()] = entry
            if not entry.name.startswith("test/"):  # a checkpoint of our own tests, with a common name
                for name in (entry.name.rpartition("/")[2], *entry.aliases):
                    found.setdefault(name.lower(), entry)
        return found

    @cached_property
    def _starts(self) -> tuple[tuple[str, str], ...]:
        """What the name of a variant may begin with, and the entry: its name, and that without what stands for a variant."""
        found: dict[tuple[str, str], None] = {}
        for known in self._by_name:
            if "/" not in known:
                variant = VARIANT.search(known)
                base = VARIANT.sub("", known) if variant and known.endswith(variant[0]) else known
                found |= {(known, known): None, (base, known): None}
        return tuple(found)

    def find(self, name: str) -> KnownShape | None:
        """Return the entry of a model, of any organisation, or of a variant with the same shape, such as `-AWQ` or `-0528`."""
        sought = name.strip().lower()
        last = sought.rpartition("/")[2]
        for known in (sought, last):
            if known in self._by_name:
                return self._by_name[known]
        best = (False, "")
        for start, known in self._starts:
            rank = (start == known, known)  # an entry of another format only if there is none of the model itself
            better = (rank[0], len(known)) > (best[0], len(best[1]))
            if better and last.startswith(start) and (last == start or VARIANT.fullmatch(last[len(start) :])):
                best = rank
        return self._by_name[best[1]] if best[1] else None


def load_shapes() -> KnownShapes:
    """Read the table that ships with the operator."""
    return KnownShapes(parse_entries(KnownShape, read_data("shapes.json"), "shapes.json"))
