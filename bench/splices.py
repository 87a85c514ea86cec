"""How long a twin takes whose kernel exists as machine code: built, and found in the cache.

    PYTHONPATH=src python bench/splices.py IMAGE... [--kernels N] [--every N] [--named TEXT]...
                                           [--tool NAME] [--ahead] [--json]

Needs ptxas and no GPU.  IMAGE is a cubin, a fatbin, or a program or library, whose fatbins are the
images that its process loads, each for itself.  Up to N kernels of each image (of every N-th one)
get the tool's probes, as a session would do it; the first one pays for compiling the probes.  Times
are of the answering thread's work, in milliseconds: keeping a twin on disk is another's.  An
image's first kernel pays for opening it, unless with --ahead all is done first that a session does
before a kernel waits: what the device's kind needs once, and, while the driver loads it, opening
each image.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from elftools.elf.elffile import ELFFile

from egpu.agent.file_part import FilePart
from egpu.agent.twin import DeviceInfo, ImageSeen, KernelSeen, Twin
from egpu.bpf.object import read_object
from egpu.image import fitting_cubins, image_length, list_kernels, open_for
from egpu.maps import plan
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.cache import TwinCache
from egpu.session.twins import TwinBuilder
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[1]
DEVICE = DeviceInfo(0, 9, 0, 132, "bench")


def images_of(path: Path) -> Iterator[tuple[int, int]]:
    """(offset, size) of each image in a file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF" or (file := ELFFile(stream))["e_machine"] in (
            190,
            "EM_CUDA",
        ):
            yield 0, path.stat().st_size
            return
        spans = [
            (each["sh_offset"], each["sh_offset"] + each["sh_size"])
            for each in file.iter_sections()
            if each.name in (".nv_fatbin", "__nv_relfatbin")
        ]
        for begin, end in spans:
            at = begin
            while at < end:
                stream.seek(at)
                head = stream.read(64)
                size = image_length(lambda _, size, head=head: head[:size]) if any(head[:8]) else 0
                if size:
                    yield at, size
                at += size or 8


def kernels_of(options: argparse.Namespace) -> list[KernelSeen]:
    """The first kernels of each chosen image that the device could run."""
    found: list[KernelSeen] = []
    for path in options.images:
        for at, size in list(images_of(path))[:: options.every]:
            number = len(found)
            for member in fitting_cubins(
                open_for(FilePart(str(path), at, size), DEVICE.arch), DEVICE.arch
            ):
                names = [each.name for each in list_kernels(member)]
                if options.named:
                    names = [each for each in names if any(one in each for one in options.named)]
                for slot, name in enumerate(names[: options.kernels]):
                    image = partial(FilePart, str(path), at, size)
                    found.append(KernelSeen(1, DEVICE, name, number, slot, str(path), image=image))
    return found


def one_round(
    tool: str, kernels: Sequence[KernelSeen], cache: TwinCache, *, ahead: bool = False
) -> tuple[list[float], list[float], int]:
    """Milliseconds of each kernel that got a twin, of those that were an image's first, and how
    many got none."""
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
    times, firsts, refused = [], [], 0
    if ahead:
        builder.rehearse(DEVICE)
    for seen in kernels:
        images = builder.images_read
        if ahead:
            builder.open_ahead(
                ImageSeen(
                    seen.pid,
                    seen.device,
                    seen.module,
                    seen.source,
                    seen.connection,
                    image=seen.image,
                )
            )
        begin = time.thread_time()
        if isinstance(builder.resolve(seen), Twin):
            times.append((time.thread_time() - begin) * 1e3)
            if builder.images_read > images:
                firsts.append(times[-1])
        else:
            refused += 1
    builder.settle()
    return times, firsts, refused


def summary(times: Sequence[float], firsts: Sequence[float]) -> dict[str, float]:
    """``later``: without the first, which pays for the probes."""
    ordered, later = sorted(times), times[1:] or times
    return {
        "first": round(times[0], 2),
        "median": round(statistics.median(ordered), 2),
        "mean of later": round(statistics.fmean(later), 2),
        "image's first, median": round(statistics.median(firsts), 2),
        "p95": round(ordered[int(len(ordered) * 0.95)], 2),
        "sum": round(sum(ordered), 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    parser.add_argument("--kernels", type=int, default=8, metavar="N", help="of an image")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="images of a library")
    parser.add_argument("--named", action="append", default=[], metavar="TEXT")
    parser.add_argument("--tool", default="kernelcount")
    parser.add_argument("--ahead", action="store_true", help="do first what a session does first")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    kernels = kernels_of(options)
    with tempfile.TemporaryDirectory() as folder:
        rounds = {
            name: one_round(options.tool, kernels, TwinCache(Path(folder)), ahead=options.ahead)
            for name in ("built", "cached")
        }
    result = {
        name: {
            **summary(times, firsts),
            "kernels": len(times),
            "images": len(firsts),
            "refused": refused,
        }
        for name, (times, firsts, refused) in rounds.items()
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
