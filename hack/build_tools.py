"""Build the file with the programs for Pods, which `python3` runs. Equal sources give equal bytes.

python3 hack/build_tools.py FILE
"""

import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "operator" / "vllm_operator" / "tools"
PATH = "sys.path.insert(0, __file__.rpartition('/')[0])"  # isolated mode leaves out the folder of an unpacked file
MAIN = f"import sys\n\n{PATH}\nfrom vllm_operator.tools.__main__ import main\n\nsys.exit(main())\n"


def build(target: Path) -> Path:
    """Write the file; return its path."""
    modules = {f"vllm_operator/tools/{path.name}": path.read_text("utf-8") for path in sorted(PACKAGE.glob("*.py"))}
    # not compressed, because other versions of zlib give other bytes; the time is the earliest that the format knows
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in {"__main__.py": MAIN, "vllm_operator/__init__.py": "", **modules}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return target


if __name__ == "__main__":
    build(Path(sys.argv[1]))
