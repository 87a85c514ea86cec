"""Runs native/tests' workload on the stand-in driver, under the agent, with a broker of our own."""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from egpu.agent import ArenaSetup, Refused, Server, Twin, Unmatched, launch
from egpu.agent.channel import memory_file
from egpu.maps import RingTable
from egpu.maps import layout as maps

ROOT = Path(__file__).resolve().parents[2]
DEVICE_SIZE = 8192
SLOTS = 4
READERS = 4096
COMMANDS = 8192
COMMAND_SIZE = 4096
SNAPSHOT = COMMANDS + COMMAND_SIZE
HOST_SIZE = SNAPSHOT + DEVICE_SIZE
PATIENCE = 100  # seconds for what takes a moment: how fast a machine is proves nothing
UNTIL_FINISH = 0  # a number of launches: some 20 ms apart until ``Bench.finish``


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def build(kind):
    """Builds agent, stand-in driver and workload; gives the build folder."""
    folder = ROOT / "build" / f"agent-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    # Tests of other files, which run at the same time, build it too.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(kind, folder)
    return folder


def _build(kind, folder):
    options = ["-DEGPU_TESTS=ON", f"-DEGPU_SANITIZE={'ON' if kind == 'sanitized' else 'OFF'}"]
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    source = str(ROOT / "native")
    targets = ["egpu_agent", "egpu_mock_cuda", "agent_workload", "agent_linked", "agent_bench"]
    targets += ["agent_memory", "agent_unit_image", "agent_unit_stacks", "agent_unit_drain"]
    targets += ["image_unit_code", "image_unit_cubin"]
    for command in (
        ["cmake", "-S", source, "-B", str(folder), *ninja, *options],
        ["cmake", "--build", str(folder), "--target", *targets],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Broker:
    """Gives twins of kernels by name: text of the twin's entry line, Refused, or nothing."""

    def __init__(self, twins=None, rings=(), chunks=(), delay=0.0):
        self.twins = twins if twins is not None else {"plain": {}}
        self.rings = rings
        self.chunks = chunks
        self.delay = delay
        self.seen = []
        self.images = []
        self.ahead = False  # whether it wants to hear of images before they are loaded
        self.devices = []
        self.loading = []
        self.gone = []
        self.started = []
        self.ended = []
        self.hosts = []
        self.links = []
        self.device_rings = 0
        self.table = 0  # bytes of the table of allocations, behind the maps

    def answered(self):
        """Nothing is left to do."""

    def wants_images(self):
        return self.ahead

    def device_named(self, device):
        self.devices.append(device)

    def image_loading(self, seen):
        self.loading.append(seen)

    def image_gone(self, pid, connection, module):
        self.gone.append(module)

    def process_started(self, pid, command):
        self.started.append((pid, command))

    def process_ended(self, pid):
        self.ended.append(pid)

    def open_device(self, pid, device, link):
        file = memory_file("host", HOST_SIZE + self.table)
        control = {
            "magic": maps.HOST_MAGIC,
            "version": maps.LAYOUT_VERSION,
            "sm_slots": SLOTS,
            "size": HOST_SIZE + self.table,
            "snapshot": SNAPSHOT,
            "snapshot_size": DEVICE_SIZE + self.table,
            "commands": COMMANDS,
            "commands_size": COMMAND_SIZE,
        }
        for name, value in control.items():
            offset, size = maps.HOST_CONTROL[name]
            os.pwrite(file, value.to_bytes(size, "little"), offset)
        self.hosts.append((pid, device, file))
        self.links.append(link)
        return ArenaSetup(
            device_size=DEVICE_SIZE + self.table,
            host_fd=file,
            host_size=HOST_SIZE + self.table,
            sm_slots=SLOTS,
            chunks=self.chunks,
            rings=self.rings,
            device_rings=self.device_rings,
            allocations=DEVICE_SIZE if self.table else 0,
        )

    def resolve(self, seen):
        self.seen.append(seen)
        answer = self.twins.get(seen.kernel)
        if answer is None:
            return Unmatched()
        if isinstance(answer, Refused):
            return answer
        self.images.append(seen.image())
        return twin_of(seen.kernel, **answer)

    # what the workload's maps hold, from the last snapshot

    def word(self, index, offset, size=8):
        return int.from_bytes(os.pread(self.hosts[index][2], size, offset), "little")

    def counted(self, index=0):
        return self.word(index, SNAPSHOT + 4096)

    def control(self, name, index=0):
        offset, size = maps.HOST_CONTROL[name]
        return self.word(index, offset, size)

    def close(self):
        for _, _, file in self.hosts:
            os.close(file)


PARAMETERS = {"plain": 2, "none": 0, "tight": 1, "other": 1}


def twin_of(kernel, *, regs=40, occ=8, limit=1024, extra="", image=None, **more):
    parameters = PARAMETERS[kernel]
    text = (
        f".version 8.0\n// entry {kernel} params {parameters} regs {regs} occ {occ} "
        f"max {limit} twin 1\n{extra}"
    )
    return Twin(
        image=text.encode() if image is None else image,
        hidden_offset=8 * parameters,
        parameters=parameters,
        kernel_id=more.pop("kernel_id", 7),
        **more,
    )


class Result:
    def __init__(self, process, out, err, log, pid):
        self.returncode = process.returncode
        self.out = out
        self.err = err
        self.pid = pid
        self.calls = [line.split(" ", 1)[1] for line in log.splitlines()]
        # of a workload that goes on until it is told to end
        self.launched = sum(int(n) for n in re.findall(r"^launched (\d+)$", err, re.MULTILINE))

    def of(self, word):
        return [call for call in self.calls if call.startswith(word)]

    @property
    def complaints(self):
        return [line for line in self.err.splitlines() if line.startswith("egpu:")]


class Bench:
    """One build, one temporary folder: starts servers and workloads."""

    def __init__(self, folder, tmp):
        self.folder = folder
        self.tmp = tmp
        self.log = tmp / "log"
        self.end = tmp / "end"
        self.started = []

    @property
    def agent(self):
        return self.folder / "agent" / "libegpu_agent.so"

    def environment(self, **more):
        return {
            "LD_LIBRARY_PATH": str(self.folder / "tests" / "mock"),
            "MOCK_LOG": str(self.log),
            "EGPU_TEST_END": str(self.end),
            # The agent's leaks are on purpose (readers without locks); libasan comes second.
            "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            **more,
        }

    def command(self, *scene, program="agent_workload"):
        return [str(self.folder / "tests" / program), *map(str, scene)]

    def server(self, broker, **options):
        patient = {"twin_wait_s": PATIENCE, "exit_wait_s": PATIENCE}
        return Server(self.tmp / "run", broker, **patient | options)

    def start(self, socket, *scene, command=None, follow=True, **env):
        self.end.unlink(missing_ok=True)
        process = launch(
            command or self.command(*scene),
            socket,
            environment=self.environment(**env),
            follow=follow,
            library=self.agent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def close(self):
        """Ends what a test that failed has left."""
        for process in self.started:
            if process.returncode is None:
                process.kill()
                process.communicate()

    def finish(self, process):
        """Tells a workload that goes on until then, waits for its end and gives what it did."""
        self.end.touch()
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        log = self.log.read_text() if self.log.exists() else ""
        sys.stderr.write(err.decode())
        return Result(process, out.decode(), err.decode(), log, process.pid)

    def run(self, server, *scene, **more):
        result = self.finish(self.start(server.socket_path, *scene, **more))
        assert server.drain(PATIENCE)
        return result


def ring_table():
    return (RingTable(control=1024, readers=READERS, slots=SLOTS),)


def device_ring_table():
    """Rings of 256 bytes in device memory."""
    places = {"host_data": 5120, "device_data": 2048, "host_flags": 6144, "device_flags": 3072}
    (row,) = ring_table()
    return (replace(row, ring_size=256, host_controls=6400, **places),)


def stamped_ring_table():
    """Rings of 8 slots for records of 40 bytes in device memory."""
    places = {"device_flags": 3584, "host_flags": 6656, "host_controls": 6784}
    (row,) = device_ring_table()
    return (replace(row, ring_size=384, stamped=40, **places),)


def pack(*words):
    return struct.pack(f"<{len(words)}Q", *words)
