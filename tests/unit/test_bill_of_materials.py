"""The bill of materials of the image."""

from pathlib import Path

import pytest

from image_contents import bill_of_materials, remove_unloaded
from vllm_operator import __version__

STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.17-1~deb12u2

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""


def test_it_names_the_operator_its_packages_python_and_what_the_base_holds(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(STATUS, "utf-8")
    bill = bill_of_materials(status)
    assert bill["metadata"] == {"component": {"type": "container", "name": "vllm-operator", "version": __version__}}
    components = bill["components"]
    assert isinstance(components, list)
    purls = [component["purl"] for component in components]
    assert "pkg:deb/debian/libssl3@3.0.17-1~deb12u2?arch=amd64" in purls
    assert [purl for purl in purls if "gone" in purl] == []
    for name in ("pkg:pypi/kopf@", "pkg:pypi/pydantic@", "pkg:generic/python@3."):
        assert [purl for purl in purls if purl.startswith(name)], name


def test_only_the_environment_of_the_image_is_thinned_out(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is for the build of the image"):
        remove_unloaded(tmp_path)
