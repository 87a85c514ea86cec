"""How long a twin takes whose kernel exists as machine code: built, and found in the cache.

    PYTHONPATH=src python bench/splices.py CUBIN_OR_FATBIN... [--kernels N] [--tool NAME] [--json]

Needs ptxas and no GPU.  Up to N kernels of each image get the tool's probes, as a session would do
it; the first one pays for compiling the probes.  Times are of one core's work, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from egpu.agent.twin import DeviceInfo, KernelSeen, Twin
from egpu.bpf.object import read_object
from egpu.image import fitting_cubins, list_kernels, open_image
from egpu.maps import plan
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.cache import TwinCache
from egpu.session.twins import TwinBuilder
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[1]
DEVICE = DeviceInfo(0, 9, 0, 132, "bench")


def kernels_of(paths: Sequence[Path], most: int) -> list[KernelSeen]:
    """The first kernels of each image that the device could run."""
    found = []
    for number, path in enumerate(paths):
        data = path.read_bytes()
        for member in fitting_cubins(open_image(data), DEVICE.arch):
            for slot, kernel in enumerate(list_kernels(member)[:most]):
                seen = KernelSeen(
                    1, DEVICE, kernel.name, number, slot, str(path), image=path.read_bytes
                )
                found.append(seen)
    return found


def one_round(
    tool: str, kernels: Sequence[KernelSeen], cache: TwinCache
) -> tuple[list[float], int]:
    """Milliseconds of each kernel that got a twin, and how many did not."""
    path = ROOT / "src" / "egpu" / "tools" / tool / f"{tool}.bpf.o"
    read = read_object(path.read_bytes(), path.name)
    builder = TwinBuilder(
        ProbeSet([verify(program) for program in read.programs]),
        Assembler(find_ptxas()),
        cache,
        lambda device: plan(read.maps, device.sm_count),
        allow_occupancy_loss=False,
        machine_code=True,
    )
    times, refused = [], 0
    for seen in kernels:
        begin = time.process_time()
        if isinstance(builder.resolve(seen), Twin):
            times.append((time.process_time() - begin) * 1e3)
        else:
            refused += 1
    return times, refused


def summary(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "first": round(times[0], 2),
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(len(ordered) * 0.95)], 2),
        "sum": round(sum(ordered), 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    parser.add_argument("--kernels", type=int, default=8, metavar="N")
    parser.add_argument("--tool", default="kernelcount")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    kernels = kernels_of(options.images, options.kernels)
    with tempfile.TemporaryDirectory() as folder:
        rounds = {
            name: one_round(options.tool, kernels, TwinCache(Path(folder)))
            for name in ("built", "cached")
        }
    result = {
        name: {**summary(times), "kernels": len(times), "refused": refused}
        for name, (times, refused) in rounds.items()
        if times
    }
    if options.json:
        print(json.dumps(result))
        return 0
    for name, row in result.items():
        cells = ", ".join(f"{key} {value:g}" for key, value in row.items())
        print(f"{name:<8}{cells}   (ms)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
