"""egpu with kernels that seem to leave few uniform registers: python few_uniforms.py N ARGUMENT...

For the check that probes are exact in any kernel with N of those that it really leaves: a pair, as
every probe needs, then single ones, as in the kernels of PyTorch and cuDNN that leave as few.  A
kernel that leaves no more than N keeps what it leaves.  It replaces a function in this process, so
that nothing in the package, its options or the environment can hide registers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace

from egpu.cli import main
from egpu.splice import sass
from egpu.splice.sass_encoding import UNIFORM_REGISTERS
from egpu.splice.sass_uniform import Usage

_EVERY = frozenset(range(UNIFORM_REGISTERS))


def leaving(number: int, usage: Usage) -> Usage:
    """The same; all free uniform registers but ``number`` are used."""
    free = sorted(_EVERY - usage.registers)
    pair = next((each for each in free if each % 2 == 0 and each + 1 in free), None)
    first = [] if pair is None else [pair, pair + 1]
    # No two more of them side by side as a pair, as long as there are others.
    others = sorted(set(free) - set(first), key=lambda each: (each % 2, each))
    return replace(usage, registers=_EVERY - set([*first, *others][:number]))


def hide(number: int) -> None:
    around = sass.code_around
    sass.code_around = lambda *kernel: leaving(number, around(*kernel))


if __name__ == "__main__":
    hide(int(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:  # such twins are for nobody else
        os.environ["EGPU_CACHE_DIR"] = folder
        sys.exit(main(sys.argv[2:]))
