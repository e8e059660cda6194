"""What an act is: something that happens to the cluster, drawn by chance."""

from collections.abc import Awaitable, Callable, Mapping
from random import Random

Act = Callable[[Random], Awaitable[str]]
"""Does something that it draws from the given source, and returns in words what it was."""
Acts = Mapping[Act, int]
"""Acts, each with its weight."""


def draw(acts: Acts, random: Random) -> Act:
    """Chooses one act by weight."""
    return random.choices(list(acts), weights=list(acts.values()))[0]
