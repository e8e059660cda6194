"""Which remedies of known crashes may be applied without asking, and where.

What a signature says about its remedy is for a person to weigh. A remedy that the operator applies by itself has a
gate that a machine can check, and is data of its own (`data/remedies.yaml`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from vllm_operator.catalog.resources import read_data
from vllm_operator.catalog.signatures import Change, Signature

ANY = "any"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy that may be applied without asking.

    `changes` are names of changes of the signature; `costs` is the worst that they cost, in words.
    """

    signature: str
    changes: tuple[str, ...]
    versions: str
    architectures: tuple[str, ...]
    costs: str

    def fits(self, version: str | None, architecture: str | None) -> bool:
        """Whether it is right for this vLLM version and GPU. What is not known fits no limit."""
        fits_gpu = ANY in self.architectures or architecture in self.architectures
        return fits_gpu and version is not None and SpecifierSet(self.versions).contains(version, prereleases=True)

    def select(self, signature: Signature) -> tuple[Change, ...]:
        """The changes of the signature that it applies."""
        return tuple(change for change in (*signature.arguments, *signature.environment) if change.name in self.changes)


def load_remedies() -> Mapping[str, Remedy]:
    """Read the remedies, by signature.

    Raises:
        TypeError: An entry has a field that does not exist, or lacks one.
    """
    return {entry["signature"]: _remedy(entry) for entry in read_data("remedies.yaml")["remedies"]}


def _remedy(entry: Mapping[str, Any]) -> Remedy:
    return Remedy(**{**entry, "changes": tuple(entry["changes"]), "architectures": tuple(entry["architectures"])})
