"""Opens files in a directory that others may change at the same time. No symbolic link is followed, at any level.

A path is resolved by the kernel at each use, so a directory that is checked and then opened by its path may have been replaced. Here, each
directory is opened relative to its parent, and used by its descriptor.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from vllm_operator.tools.artifact import ArtifactError

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a named pipe does not block."""


@contextmanager
def opened_root(path: str) -> Iterator[int]:
    """Open a directory that others cannot replace, such as a mount point; yields its descriptor."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)


@contextmanager
def opened_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a relative path below an open directory; yields its descriptor, and the last part of the path.

    Raises:
        OSError: The directory does not exist, or a part of the path is not a directory, such as a symbolic link.
    """
    *folders, name = path.split("/")
    at = root
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER_FLAGS, dir_fd=at)
            if at != root:
                os.close(at)
            at = inner
        yield at, name
    finally:
        if at != root:
            os.close(at)


def open_below(root: int, path: str, flags: int, mode: int = 0o777) -> int:
    """Open a relative path below an open directory, and return its descriptor. Raises OSError as `opened_parent` does."""
    with opened_parent(root, path) as (at, name):
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=at)


def open_regular(root: int, path: str) -> IO[bytes]:
    """Open a regular file below an open directory.

    Raises:
        ArtifactError: Rejected, if it is not a regular file.
        OSError: It cannot be opened.
    """
    descriptor = open_below(root, path, FILE_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError("Rejected", f"{path} is no regular file.")
    return os.fdopen(descriptor, "rb")
