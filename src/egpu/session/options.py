"""How a workload is run: everything that a user may choose."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.verifier import Limits


class RingMemory(enum.Enum):
    """Where programs write the records of rings to."""

    HOST = "host"  # the host's memory, over the link; they outlive a crash of the workload
    DEVICE = "device"  # the device's, from where the agent copies them


@dataclass(frozen=True, slots=True)
class Options:
    """How a workload is run.

    ``simulated``: on the simulated device, even if there is a GPU. ``kernels``: a glob that narrows
    every attach point. ``twin_wait_s``: how long the first launch of a kernel waits for its twin.
    ``allow_occupancy_loss``: use twins with fewer resident blocks per SM. ``follow``: probe child
    processes too. ``machine_code``: probe a kernel's machine code where the device runs a cubin
    of it, and PTX elsewhere (docs/machine-code.md), instead of PTX alone.
    ``allow_control``: programs may change what the workload does (end threads). ``lost_updates``:
    programs may update what other threads update at the same time (some updates are then lost).
    ``map_deletions``: hash maps can be deleted from by the session although no program does, which
    costs programs a little. ``rings``: which memory programs write the records of rings to.
    ``sample``: probe one launch in so many of each kernel, the first
    included, and let the others run untouched. ``cache``: keep assembled twins on disk.
    ``snapshot_period_s``: how often maps are copied to where the session reads them.
    ``thread_slots``: threads of a launch for which per-thread maps have values (None: as
    BPFTIME_MAP_GPU_THREAD_COUNT says, else 1,024); threads beyond them find no value.
    ``pins``: pin names of maps, by the map's name (``egpu.open_map`` reads them anywhere).
    ``cost_limit``: most instructions, in the worst case, that a program may add to a thread (see
    ``egpu.verifier.Limits.cost``). ``print_limit``: lines of bpf_printk given out in a second, 0
    for all. ``stacks``: keep from which stack each launch came (``Session.stack_of``), which takes
    microseconds of each probed launch. ``cookies``: what bpf_get_attach_cookie gives, by program
    name; 0 for others.
    ``environment`` is added to the workload's.
    """

    simulated: bool = False
    kernels: str = ""
    twin_wait_s: float = 10.0
    allow_occupancy_loss: bool = False
    follow: bool = True
    machine_code: bool = True
    map_deletions: bool = False
    rings: RingMemory = RingMemory.HOST
    sample: int = 1
    allow_control: bool = False
    lost_updates: bool = False
    cache: bool = True
    snapshot_period_s: float = 1.0
    cost_limit: int = Limits().cost
    thread_slots: int | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    print_limit: int = 10_000
    stacks: bool = False
    cookies: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
