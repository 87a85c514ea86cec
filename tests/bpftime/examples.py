"""What is right of each example: how it is run, and what its maps hold afterwards.

Maps are dictionaries from key to value (lists of values by thread for per-thread maps), records are
lists of bytes, as ``reading.py`` gives them from either way of running.
"""

from __future__ import annotations

import errno
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

SECOND = 10**9  # ns; a GPU's timer may tick so coarsely that a thread takes no time


@dataclass(frozen=True)
class Ran:
    """What a run gave."""

    output: str  # of the workload
    maps: dict[str, dict]
    records: dict[str, list[bytes]]
    prints: list[str]
    pid: int = 0


@dataclass(frozen=True)
class Size:
    """A launch, and the thread slots that it needs."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    slots: int = 1024


@dataclass(frozen=True)
class Example:
    """One example; ``large`` is its size on a GPU.

    ``launches`` of ``app`` in this grid and block; ``threads`` of one launch that the program
    counts.  ``check`` raises AssertionError.  ``loader`` are further words of the loader,
    ``ring`` a map whose records are polled by bpftime's function.  ``needs`` options of egpu.
    """

    number: int
    program: str
    app: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    check: Callable[[Example, Ran], None]
    launches: int = 3
    slots: int = 1024
    loader: tuple[str, ...] = ()
    ring: str = ""
    needs: tuple[str, ...] = ()
    large: Size | None = None

    def on_a_gpu(self) -> Example:
        """The same in the original's size, which is much for the simulated device."""
        if self.large is None:
            return self
        size = self.large
        return replace(self, grid=size.grid, block=size.block, slots=size.slots)

    @property
    def threads(self) -> int:
        product = 1
        for size in (*self.grid, *self.block):
            product *= size
        return product


def values(ran: Ran, name: str) -> dict:
    return ran.maps[name]


def only(ran: Ran, name: str) -> int:
    """The value of a map with one entry."""
    found = values(ran, name)
    assert len(found) == 1, found
    return next(iter(found.values()))


def right_sums(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    if example.app == "add3":
        expected = 233 + example.launches
        assert f"counter = {expected} (expected {expected})" in ran.output, ran.output


def counter(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    total = example.threads * example.launches
    assert only(ran, "call_count") == total
    assert only(ran, "total_time_ns") < total * SECOND
    assert values(ran, "start_ts") == {}  # every thread took its own away
    entered = [line for line in ran.prints if line == "Entered block x=0"]
    left = Counter(line for line in ran.prints if line.startswith("Exited"))
    assert len(entered) == total
    threads = range(example.threads)
    assert left == {f"Exited, thread {thread}": example.launches for thread in threads}


def cudagraph(example: Example, ran: Ran) -> None:
    assert ran.output.count("wrong=0") == 2, ran.output
    assert only(ran, "call_count") == 1 + example.launches
    assert values(ran, "start_ts") == {}


def kernel_trace(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    rows = [struct.unpack("<7Q", record[:56]) for record in ran.records["events"]]
    assert len(rows) == example.launches
    assert all(row[:6] == (0,) * 6 for row in rows)
    times = [row[6] for row in rows]
    assert times == sorted(times)


def kernelretsnoop(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    rows = [struct.unpack("<4Q", record[:32]) for record in ran.records["rb"]]
    assert all(len(record) == 32 for record in ran.records["rb"])
    seen = Counter(row[:3] for row in rows)
    assert seen == {(x, 0, 0): example.launches for x in range(example.threads)}


def by_thread(example: Example, ran: Ran, name: str = "call_count") -> list[int]:
    found = values(ran, name)[0]
    assert len(found) == example.slots
    return found


def threadhist(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    found = by_thread(example, ran)
    assert found[: example.threads] == [example.launches] * example.threads
    assert not any(found[example.threads :])


def launchlate(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    bins = values(ran, "time_histogram")
    assert sum(bins.values()) == example.threads * example.launches
    # the "call" was at 5 ns of a clock that is at 10 ns or later, and never 10 s old on either
    assert values(ran, "last_uprobe_time")[0] == 5


def gpu_shared_map(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    total = example.threads * example.launches
    assert only(ran, "counter") == total
    assert only(ran, "counter_per_thread") == total
    lines = Counter(ran.prints)
    assert lines == {"gpu_update_kprobe 0": example.launches, "gpu_update 0": example.launches}


def host_maps(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    threads = range(example.threads)
    assert values(ran, "shared_counter") == dict.fromkeys(threads, example.launches)
    own = values(ran, "perthread_counter")
    assert own[0][: example.threads] == [example.launches] * example.threads
    assert all(own[1][thread] < SECOND for thread in threads)
    assert own[2][: example.threads] == list(threads)
    assert sum(own[2]) == 45
    assert all(values(ran, "thread_timestamp")[0][: example.threads])
    assert len(own[0]) == example.slots


# What vectorAdd and countUp do in one thread: parameters, loads, stores (kernels.ptx).
ADD_PARAMETERS, ADD_LOADS, ADD_STORES = 3, 2, 1
COUNT_LOADS, COUNT_STORES = 1, 1


def mem_trace(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    each = example.threads * (ADD_PARAMETERS + ADD_LOADS + ADD_STORES)
    accesses = each + COUNT_LOADS + COUNT_STORES  # one thread of the other kernel
    assert values(ran, "counter")[0] == accesses * example.launches


def mem_kinds(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    found = values(ran, "kinds")
    per_launch = (
        ADD_PARAMETERS * example.threads,
        ADD_LOADS * example.threads + COUNT_LOADS,
        ADD_STORES * example.threads + COUNT_STORES,
    )
    assert [found[key] for key in range(3)] == [each * example.launches for each in per_launch]
    assert found.get(3, 0) == 0


def atomizer(example: Example, ran: Ran) -> None:
    assert "C[1]=0 C[7]=21" in ran.output, ran.output
    entered = Counter(line for line in ran.prints if line.startswith("Enter "))
    assert entered == {f"Enter {block}": example.launches for block in range(5, 10)}
    assert Counter(ran.prints)["Exited: L=5, H=10"] == 5 * example.launches


def scheduling(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    rows = {
        key: struct.unpack("<10Q", value) for key, value in values(ran, "thread_mapping").items()
    }
    width = example.block[0]
    assert rows.keys() == set(range(example.threads))
    for key, row in rows.items():
        assert row[:6] == (key // width, 0, 0, key % width, 0, 0)
        assert row[8] == key % width % 32
    total = example.threads * example.launches
    assert sum(values(ran, "sm_histogram").values()) == total
    assert sum(values(ran, "warp_histogram").values()) == total


def cutlass(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    assert only(ran, "cutlass_call_count") == example.launches


def traced(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    even = (example.threads + 1) // 2  # the threads that call the stub, 7 times each
    assert values(ran, "calls")[0] == 7 * even * example.launches
    assert values(ran, "calls")[1] == example.threads * example.launches


def ragged(example: Example, ran: Ran) -> None:
    assert "wrong=0" in ran.output, ran.output
    total = example.threads * example.launches
    depth = example.grid[2] * example.block[2]
    assert values(ran, "planes") == dict.fromkeys(range(depth), total // depth)
    assert [values(ran, "calls")[key] for key in (0, 1)] == [total, total]


def errors(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    found = [values(ran, "answers")[row] for row in range(16)]
    in_arrays = [1, 0, 0, errno.E2BIG, errno.EEXIST, 0, errno.EINVAL]
    in_hashes = [0, errno.EEXIST, errno.ENOENT, 0, errno.E2BIG, 0, 0, errno.ENOENT]
    assert found == [*in_arrays, *in_hashes, 99]
    assert values(ran, "table") == {8: 1, 9: 1}
    assert values(ran, "threads")[0] == [1, 2, 3, 4, 5, 6, 7]  # 7 slots for 10 threads
    rows = {key: struct.unpack("<3I", value) for key, value in values(ran, "odd").items()}
    assert rows == {key: (key, key + 1, key + 2) for key in range(5)}


def enders(example: Example, ran: Ran) -> None:
    blocks, width = example.grid[0], example.block[0]
    ended = blocks * (width // 2)  # the odd ones: their sums stay 0
    assert f"zero={ended} wrong={ended}" in ran.output, ran.output
    left = (example.threads - ended) * example.launches
    assert [values(ran, "seen")[key] for key in range(3)] == [
        example.threads * example.launches,
        left,
        left,
    ]


def printing(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    kinds = ("Exited (with tsp)", "Exited (without tsp)", "Exited")
    lines = (f"{kinds[thread % 3]} {thread}" for thread in range(example.threads))
    assert Counter(ran.prints) == dict.fromkeys(lines, example.launches)


def shared(example: Example, ran: Ran) -> None:
    right_sums(example, ran)
    assert values(ran, "call_count")[0] == example.threads * example.launches


_ONE, _TEN, _ADD = (1, 1, 1), (10, 1, 1), "add3"
# Their probes are large: on a GPU fewer blocks of the twin fit on an SM.
_LARGE = ("--allow-occupancy-loss",)
# fmt: off
EXAMPLES = (
    Example(1, "counter", _ADD, _ONE, _TEN, counter, needs=_LARGE),
    Example(2, "cudagraph", "graph", (64, 1, 1), (256, 1, 1), cudagraph, launches=5, needs=_LARGE,
            large=Size((4096, 1, 1), (256, 1, 1))),
    Example(3, "kernel_trace", "add4", (32, 1, 1), (128, 1, 1), kernel_trace, ring="events"),
    Example(4, "kernelretsnoop", _ADD, _ONE, (5, 1, 1), kernelretsnoop, ring="rb"),
    Example(5, "threadhist", _ADD, (8, 1, 1), (1000, 1, 1), threadhist, slots=8192,
            large=Size((512, 1, 1), (1024, 1, 1), 524288)),
    Example(6, "shared_with_linux", _ADD, (2, 1, 1), (5, 1, 1), shared),
    Example(7, "launchlate", _ADD, _ONE, _TEN, launchlate,
            loader=("--set", "last_uprobe_time", "0", "5")),
    Example(8, "launchlate_shared", _ADD, _ONE, _TEN, launchlate,
            loader=("--set", "last_uprobe_time", "0", "5")),
    Example(9, "gpu_shared_map", _ADD, _ONE, _TEN, gpu_shared_map, needs=_LARGE),
    Example(10, "host_maps", _ADD, _ONE, _TEN, host_maps),
    Example(11, "mem_trace", _ADD, _ONE, _TEN, mem_trace),
    Example(11, "mem_kinds", _ADD, (3, 1, 1), (33, 1, 1), mem_kinds),
    Example(12, "atomizer", _ADD, _TEN, _ONE, atomizer, needs=("--allow-control",),
            loader=("--set", "partition_num_map", "0", "2", "--set", "partition_index_map", "0",
                    "1")),
    Example(13, "threadscheduling", _ADD, (4, 1, 1), (64, 1, 1), scheduling, needs=_LARGE),
    Example(14, "threadscheduling_late", "add4", (3, 1, 1), (65, 1, 1), scheduling, needs=_LARGE),
    Example(16, "cutlass", "gemm", (3, 2, 1), (16, 16, 1), cutlass, launches=4),
    Example(17, "faiss", "norm", (5, 1, 1), (32, 1, 1), threadhist),
    Example(18, "llama", "rms", (6, 1, 1), (96, 1, 1), threadhist),
    Example(19, "pytorch", "sort", (4, 1, 1), (32, 1, 1), threadhist),
    Example(0, "errors", _ADD, _ONE, _TEN, errors, launches=1, slots=7, needs=_LARGE),
    Example(1, "printing", _ADD, _ONE, (70, 1, 1), printing),
    Example(0, "enders", _ADD, (5, 1, 1), (66, 1, 1), enders, needs=("--allow-control",)),
    Example(0, "traced", "traced", (3, 1, 1), (33, 1, 1), traced, needs=_LARGE,
            large=Size((1000, 1, 1), (33, 1, 1))),
    Example(0, "traced", "ragged", (2, 3, 2), (5, 7, 3), ragged, needs=_LARGE,
            large=Size((20, 30, 5), (5, 7, 3))),
)
# fmt: on
