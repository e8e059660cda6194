"""One start, without serving: what the caches of a Pod cost on a disk."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.start import Engine

if __name__ == "__main__":
    sys.exit(Engine().start())
