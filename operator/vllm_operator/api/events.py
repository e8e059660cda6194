"""An event that the operator writes about an object, and a change that it tells."""

from dataclasses import dataclass

NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event to be recorded.

    `type` is Normal or Warning. `key` identifies the occurrence: an event with the same key is not recorded again. Occurrences with the
    same `series`, such as the crashes of one Pod with one cause, are counted in one event. Without a series, the event is separate.
    """

    type: str
    reason: str
    message: str
    key: str
    series: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a child by somebody else: the field, the field manager and the time (RFC 3339), which are empty if they are unknown."""

    field: str
    manager: str = ""
    time: str = ""
