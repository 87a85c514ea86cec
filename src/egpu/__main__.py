"""``python -m egpu``."""

import sys

from egpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
