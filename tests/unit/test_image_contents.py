"""What the build of the image removes."""

from pathlib import Path

import pytest

from image_contents import remove_unloaded


def test_only_the_environment_of_the_image_is_thinned_out(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is for the build of the image"):
        remove_unloaded(tmp_path)
