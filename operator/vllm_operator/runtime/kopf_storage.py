"""What kopf is to remember of an object: nothing.

kopf keeps a copy of each object to tell later what has changed, and builds that copy, twice, for every event,
which is most of what an event costs it. Our handlers do not ask what has changed. And what is never stored is
never written to anybody's object.
"""

from typing import Any, cast

import kopf

NOTHING = cast(kopf.BodyEssence, {})


class NoDifferences(kopf.DiffBaseStorage):
    """Keeps no earlier state."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """There is nothing to compare."""
        return NOTHING

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is stored."""


class NoProgress(kopf.ProgressStorage):
    """Keeps no progress of handlers: ours add a key to a queue and are done."""

    def fetch(self, **_: Any) -> Any:
        """Nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is stored."""

    def purge(self, **_: Any) -> None:
        """Nothing is stored."""

    def touch(self, **_: Any) -> None:
        """Nothing is stored."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """There is nothing to clear."""
        return essence
