"""Compile the probes of the device checks and benchmarks, or compare them (``--check``).

    PYTHONPATH=src python .ci/probes.py [--check]

Their objects are committed: a machine with a GPU needs no compiler for BPF.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from egpu.tools.build import compile_source, essence

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/gpu/probes", "bench/probes", "tests/bpftime/programs")


def is_stale(source: Path, target: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="egpu-probes-") as folder:
        fresh = Path(folder) / target.name
        compile_source(source, fresh)
        return not target.exists() or essence(fresh) != essence(target)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: probes.py [--check]", file=sys.stderr)
        return 2
    stale = []
    for folder in FOLDERS:
        for source in sorted((ROOT / folder).glob("*.bpf.c")):
            target = source.with_suffix(".o")
            if not arguments:
                compile_source(source, target)
            elif is_stale(source, target):
                stale.append(target.relative_to(ROOT))
    for path in stale:
        print(f"{path}: stale, run PYTHONPATH=src python .ci/probes.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
