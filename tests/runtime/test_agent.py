"""The agent in real processes, on a stand-in driver that records calls."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import agent_harness as harness
import pytest
from agent_harness import PATIENCE, UNTIL_FINISH, wait_for

from egpu.agent import Reason, Refused
from egpu.agent.protocol import LAUNCHES_KEPT, WIRE_VERSION, Feature, LaunchCall
from egpu.errors import InputError
from egpu.maps.layout import LAYOUT_VERSION


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def folder(request):
    return harness.build(request.param)


@pytest.fixture
def bench(folder, tmp_path):
    made = harness.Bench(folder, tmp_path)
    yield made
    made.close()


def broker_of(request, **options):
    made = harness.Broker(**options)
    request.addfinalizer(made.close)
    return made


@pytest.fixture
def broker(request):
    return broker_of(request)


def only(server):
    (row,) = server.stats()
    return row


@pytest.mark.parametrize("bind", ["proc", "dlsym"])
def test_launches_become_twins(bench, broker, bind):
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 5, EGPU_TEST_BIND=bind)
        row = only(server)
    assert (result.returncode, result.out, result.complaints) == (0, "done\n", [])
    assert len(result.of("launch plain twin threads 128")) == 5
    assert result.of("launch plain original") == []
    assert all(call.endswith("values 5 6") for call in result.of("launch plain"))
    assert (row.seen, row.probed, row.threads_probed, row.blocks_probed) == (5, 5, 640, 10)
    assert (row.kernel_id, row.registers_before, row.registers_after) == (7, 32, 40)
    assert [image.rstrip(b"\0")[:12] for image in broker.images] == [b".version 8.0"]
    assert broker.images[0].count(b"// entry") == 4  # although the program has overwritten it
    assert broker.started[0][0] == result.pid
    assert "agent_workload plain 5" in broker.started[0][1]


def test_no_launch_waits_for_what_a_session_does_behind_its_answer(bench, broker):
    go, begun = threading.Event(), threading.Event()

    def answered():
        begun.set()
        assert go.wait(PATIENCE)

    broker.answered = answered
    with bench.server(broker) as server:
        result = bench.finish(bench.start(server.socket_path, "plain", 5))
        assert begun.wait(PATIENCE)
        go.set()
        assert server.drain(PATIENCE)
        assert only(server).probed == 5
    assert (result.returncode, result.complaints, server.problems) == (0, [], [])


def test_counts_are_exact_at_exit_without_synchronise(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 9)
        assert result.returncode == 0
        assert broker.counted() == 9 * 128
        assert (broker.control("final"), broker.control("sequence") % 2) == (1, 0)
        assert broker.control("snapshot_time") > 0


def test_linked_program(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, command=bench.command(program="agent_linked"))
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        assert (result.returncode, only(server).probed) == (0, 3)
    assert len(result.of("launch plain twin")) == 3
    # The image lies in the program's file: by reference, not copied.
    assert broker.seen[0].source.endswith("agent_linked")
    assert b"// entry plain" in broker.images[0][:]


def test_every_form_of_launch(bench, request):
    broker = broker_of(request, twins={"plain": {}, "none": {"kernel_id": 8}})
    with bench.server(broker) as server:
        result = bench.run(server, "forms")
        rows = {row.name: row for row in server.stats()}
        every = server.processes()[0].kernels[0]
    assert result.returncode == 0
    twins = [call for call in result.calls if " twin threads" in call]
    assert [call.split(" ")[0] for call in twins] == [
        "launch",
        "launch-ex-1",
        "launch-cooperative",
        "launch-ptsz",
        "launch",
    ]
    assert twins[0].endswith("values 7 8")
    assert len({call.split(" id ")[1].split(" ")[0] for call in twins}) == 5
    assert (rows["plain"].probed, rows["none"].probed) == (4, 1)
    assert (every.kernel, every.not_probed) == ("", {Reason.FORM: 1})


def test_kernel_handles_and_their_attributes(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "kernels", 3)
        assert (result.returncode, only(server).probed) == (0, 4)
    twin = result.of("attribute plain twin 1")
    assert "attribute plain twin 1: 8 = 65536" in twin  # replayed when it was built
    assert twin[-1] == "attribute plain twin 1: 9 = 50"  # set later: reaches the twin that is there


def test_attributes_set_before_the_twin(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "attributes", 1)
    assert "attribute plain twin 1: 8 = 4096" in result.calls
    assert result.of("cache plain twin 1") == ["cache plain twin 1: 2"]


def test_devices_are_named_once_of_each_kind(bench, broker):
    with bench.server(broker) as server:
        bench.run(server, "plain", 1, MOCK_DEVICES="5")
        wait_for(lambda: len(broker.devices) == 2)
        bench.run(server, "plain", 1, MOCK_DEVICES="0")
    kinds = [(each.ordinal, each.arch, each.sm_count, each.name) for each in broker.devices]
    assert kinds == [(0, 90, 132, "Mock 0"), (1, 90, 132, "Mock 1")]


def test_images_in_files_are_told_before_they_are_loaded(bench, broker):
    """Those in memory that may change or go, and those that are no fatbins, are not: nothing is
    read there that the driver might not read."""
    broker.ahead = True
    with bench.server(broker) as server:
        result = bench.run(server, "images", 3)
        wait_for(lambda: len(broker.gone) == 5)  # two had been sent
        assert (result.returncode, result.complaints, server.problems) == (0, [], [])
        assert only(server).probed == 3
    program = str(bench.folder / "tests" / "agent_workload")
    assert {each.device.name for each in broker.loading} == {"Mock 0"}
    told = [each for each in broker.loading if each.source]
    assert {each.source for each in told} == {program}
    texts = [b"broken" in each.image()[:] for each in told]
    assert texts == [False, False, False, True, True, False]
    numbers = [each.module for each in told]
    told = [number for number in broker.gone if number in numbers]
    assert told == [numbers[0], numbers[3], numbers[4]]  # unloaded; refused, twice
    (seen,) = broker.seen
    last = (numbers[-1], program, broker.loading[-1].connection)
    assert (seen.module, seen.source, seen.connection) == last
    assert broker.images[0][:] == broker.loading[-1].image()[:]


@pytest.mark.parametrize("devices", ["1", "5"])
def test_images_in_memory_are_told_of_when_they_are_sent(bench, broker, devices):
    """But where the process sees devices of several kinds: nobody knows yet for which they are."""
    broker.ahead = True
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 3, MOCK_DEVICES=devices)
        wait_for(lambda: broker.loading or devices != "1")
        assert server.drain(PATIENCE)
        assert (result.returncode, only(server).probed, server.problems) == (0, 3, [])
    (seen,) = broker.seen
    told = [(each.module, each.source, each.connection, each.device) for each in broker.loading]
    if devices == "1":
        assert told == [(seen.module, "", seen.connection, seen.device)]
        assert broker.loading[0].image() == seen.image()
    else:
        assert told == []


def test_a_session_that_does_not_read_keeps_nobody_waiting(bench, broker):
    """For room on the wire: what it is told of images in files it can do without."""
    broker.ahead = True
    asked, go = threading.Event(), threading.Event()

    def stopped(pid, connection, module):  # on the server's thread
        asked.set()
        assert go.wait(PATIENCE)

    broker.image_gone = stopped
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "reload_many", 3000)
        try:
            assert asked.wait(PATIENCE)
            result = bench.finish(process)
        finally:
            go.set()
        assert server.drain(PATIENCE)
        assert (result.returncode, result.complaints, server.problems) == (0, [], [])
    assert 0 < len(broker.loading) < 3000


def test_images_are_not_told_where_nobody_asked(bench, request):
    broker = broker_of(request)
    with bench.server(broker) as server:
        bench.run(server, "images", 1)
        broker.ahead = True
        server.detach()
        bench.run(server, "images", 1)  # nothing is attached
        assert server.drain(PATIENCE)
    assert broker.loading == []


def test_images_are_told_when_links_come(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "reload_late", UNTIL_FINISH)
        wait_for(lambda: broker.seen)
        assert broker.loading == []
        broker.ahead = True
        server.set_epoch(twin_wait_s=PATIENCE)
        wait_for(lambda: broker.loading)
        broker.ahead = False
        server.set_epoch(twin_wait_s=PATIENCE)
        result = bench.finish(process)
    assert (result.returncode, result.complaints) == (0, [])


def test_the_original_is_loaded_while_the_session_works(bench, request):
    broker = broker_of(request)
    begun, go = threading.Event(), threading.Event()
    resolve = broker.resolve

    def slowly(seen):
        begun.set()
        assert go.wait(PATIENCE)
        return resolve(seen)

    broker.resolve = slowly
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "kernels", 2)
        assert begun.wait(PATIENCE)
        loading = "function of kernel plain mode 2"  # relaxed: no capture is disturbed
        wait_for(lambda: bench.log.exists() and loading in bench.log.read_text())
        go.set()
        result = bench.finish(process)
        assert (result.returncode, only(server).probed) == (0, 3)
    assert result.of("function of kernel plain") == [loading] * 2  # and for the twin


@pytest.mark.parametrize(("scene", "wait", "calls"), [("nodes", PATIENCE, 1), ("kernels", 0, 0)])
def test_the_original_is_not_loaded_in_captures_or_where_nobody_waits(
    bench, request, scene, wait, calls
):
    """A node's is loaded for its twin only."""
    broker = broker_of(request)
    with bench.server(broker, twin_wait_s=wait) as server:
        result = bench.run(server, scene, 1)
    assert result.returncode == 0
    assert len(result.of("function of kernel plain")) <= calls


def test_unmatched_kernel_is_asked_for_once(bench, request):
    broker = broker_of(request, twins={})
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 50)
        (kernel,) = server.processes()[0].kernels
        assert server.stats() == ()
    assert (result.returncode, len(broker.seen), broker.hosts) == (0, 1, [])
    assert (kernel.launches, kernel.threads, kernel.not_probed) == (
        50,
        50 * 128,
        {Reason.UNMATCHED: 50},
    )


def test_refused_kernel_runs_and_says_why(bench, request):
    broker = broker_of(request, twins={"plain": Refused("it has no PTX")})
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 4)
        row = only(server)
    assert (result.returncode, len(result.of("launch plain original"))) == (0, 4)
    assert (row.probed, row.refusals) == (0, ("it has no PTX",))
    assert list(row.not_probed.values()) == [4]


def test_occupancy_rule(bench, request):
    broker = broker_of(request, twins={"tight": {"occ": 6}})
    with bench.server(broker) as server:
        result = bench.run(server, "tight", 2)
        row = only(server)
    assert (result.returncode, row.probed, row.seen) == (0, 0, 4)
    assert row.not_probed == {"twin has fewer resident blocks": 4}
    allowed = broker_of(request, twins={"tight": {"occ": 6, "allow_occupancy_loss": True}})
    with bench.server(allowed) as server:
        bench.run(server, "tight", 2)
        assert only(server).probed == 4


def test_shape_that_does_not_fit(bench, request):
    broker = broker_of(request, twins={"tight": {"limit": 256}})
    with bench.server(broker) as server:
        result = bench.run(server, "tight", 3)
        row = only(server)
    assert (result.returncode, row.probed, row.seen) == (0, 3, 6)
    assert row.not_probed == {"twin does not fit this launch": 3}


def test_a_twin_that_the_driver_does_not_launch(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 4, MOCK_FAIL="twin")
        row = only(server)
    assert (result.returncode, len(result.of("launch plain original"))) == (0, 4), result.err
    assert (row.probed, row.seen, row.failed) == (0, 4, 0)
    assert row.not_probed == {"twin does not fit this launch": 4}


def test_capture_is_kept_whole_and_reads_back(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "capture", 2)
        row = only(server)
        process = server.processes()[0]
    assert (result.returncode, result.out) == (0, "done\n")  # exits 4 if it reads a twin's handle
    # Building and allocating happened during the capture, in relaxed mode.
    assert "load module mode 2 captures 1" in result.calls
    assert result.of("alloc") == ["alloc 8192 mode 2 captures 1"]
    replays = result.of("replay plain twin")
    assert len(replays) == 4
    assert all(f" flags {LAYOUT_VERSION << 24 | 1:x} " in call for call in replays)
    assert [call.split("values ")[1] for call in replays[:2]] == ["50 6", "70 6"]
    assert (row.seen, row.captured, row.captured_probed) == (0, 2, 2)
    assert (process.graph_launches, process.graph_nodes) == (2, 1)
    assert broker.counted() == 2 * (128 + 192)


def test_nodes_of_kernels_and_packed_nodes(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "nodes", 1)
        row = only(server)
    assert (result.returncode, result.out) == (0, "done\n")
    assert [call.split("values ")[1] for call in result.of("replay plain twin")] == ["5 60", "7 8"]
    assert result.of("replay plain original") == []
    assert (row.captured, row.captured_probed, row.not_probed) == (2, 2, {})
    assert broker.counted() == 2 * 128


def test_packed_parameters_in_graphs(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "packed", 3)
        row = only(server)
    assert (result.returncode, result.out) == (0, "done\n")
    values = [call.split("values ")[1] for call in result.of("replay plain twin")]
    assert values == ["0 9", "1 9", "2 9", "101 9"]
    assert (row.captured, row.captured_probed, row.not_probed) == (4, 4, {})
    assert broker.counted() == 4 * 128


def test_a_node_that_is_set_to_another_kernel_is_counted(bench, request):
    """Twice to each in three of four: four calls, of which one changes parameters only."""
    broker = broker_of(request, twins={"plain": {}, "other": Refused("it has no twin")})
    with bench.server(broker) as server:
        result = bench.run(server, "switched", 5)
        rows = {row.name: row for row in server.stats()}
        process = server.processes()[0]
    assert (result.returncode, result.out) == (0, "done\n")
    plain, other = rows["plain"], rows["other"]
    assert (plain.captured, plain.captured_probed, plain.not_probed) == (16, 16, {})
    assert (other.captured, other.captured_probed) == (15, 0)
    assert other.not_probed == {"no twin can be made": 15}
    assert process.graph_nodes == 1
    assert len(result.of("replay plain twin")) == 1


def test_detach_stops_twins_and_captured_nodes(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "capture", UNTIL_FINISH)
        wait_for(lambda: "replay" in written(bench.log))
        server.detach()
        wait_for(lambda: " off 1 " in written(bench.log))
        result = bench.finish(process)
    states = [" off 1 " in replay for replay in result.of("replay plain twin")]
    assert result.returncode == 0
    assert (states[0], states[-1]) == (False, True)
    assert states == sorted(states)  # once detached, none is on
    assert len(states) == 2 * result.launched


def test_detach_and_late_link(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: sum(row.probed for row in server.stats()) > 3)
        server.detach()
        wait_for(lambda: "detached" in only(server).not_probed)
        before = only(server).probed
        server.set_epoch(twin_wait_s=5)
        wait_for(lambda: only(server).probed > before + 3)
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        row = only(server)
    assert (result.returncode, row.seen) == (0, result.launched)
    assert row.probed + sum(row.not_probed.values()) == result.launched
    assert len(broker.seen) == 2


def test_late_link_makes_unmatched_kernel_ask_again(bench, request):
    broker = broker_of(request, twins={})
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: broker.seen)
        broker.twins["plain"] = {}
        server.set_epoch()
        wait_for(lambda: sum(row.probed for row in server.stats()) > 0)
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        row = only(server)
    assert result.returncode == 0
    assert 0 < row.probed < row.seen
    assert row.seen == result.launched


def test_a_launch_waits_only_so_long(bench, request):
    broker = broker_of(request)
    resolve, ready = broker.resolve, threading.Event()
    broker.resolve = lambda seen: ready.wait(PATIENCE) and resolve(seen)
    late = "twin not ready in time"

    def kernels():
        return [row for process in server.processes() for row in process.kernels]

    with bench.server(broker, twin_wait_s=0) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: any(row.not_probed.get(Reason.NOT_READY, 0) > 5 for row in kernels()))
        ready.set()
        wait_for(lambda: any(row.probed > 5 for row in kernels()))
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        row = only(server)
    assert (result.returncode, row.seen) == (0, result.launched)
    assert row.not_probed[late] > 5
    assert row.probed > 5
    assert row.probed + row.not_probed[late] == result.launched


def test_a_launch_waits_for_a_slow_session(bench, request):
    broker = broker_of(request)
    broker.resolve = slowly(broker.resolve, 0.5)
    with bench.server(broker, twin_wait_s=PATIENCE) as server:
        result = bench.run(server, "plain", 3)
        assert (result.returncode, only(server).probed) == (0, 3)


def test_many_threads(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "threads", 500)
        row = only(server)
    assert (result.returncode, row.seen, row.probed) == (0, 4000, 4000)
    assert len(broker.seen) == 1
    assert broker.counted() == 4000 * 128


HOST = Feature.HOST_ENTRY | Feature.HOST_EXIT


def test_the_session_is_asked_around_every_launch_call(bench, request):
    broker = broker_of(request, twins={"plain": {}, "none": {"kernel_id": 8}})
    calls = []
    broker.host_call = calls.append
    began = time.monotonic_ns()
    with bench.server(broker, features=HOST) as server:
        result = bench.run(server, "forms")
    assert result.returncode == 0
    kernel, extended, cooperative = LaunchCall
    order = [kernel, extended, cooperative, kernel, kernel]
    assert [(each.call, each.leaving) for each in calls] == [
        (call, leaving) for call in order for leaving in (False, True)
    ]
    assert {(each.pid, each.thread) for each in calls} == {(result.pid, result.pid)}
    times = [each.time for each in calls]
    assert times == sorted(times)
    assert began < times[0]
    assert times[-1] < time.monotonic_ns()


def kept_launches(server):
    """The stacks of one process's launches by id, and every stack there is."""
    ((_, launches),) = server.launch_stacks()
    return launches, server.stacks()


def test_the_last_launches_keep_their_stacks(bench, request):
    broker = broker_of(request)
    with bench.server(broker, features=Feature.STACKS) as server:
        result = bench.run(server, "plain", LAUNCHES_KEPT + 100, MOCK_LOG="/dev/null")
        while_open = kept_launches(server)
    launches, stacks = kept_launches(server)
    assert result.returncode == 0
    assert sorted(launches) == list(range(101, LAUNCHES_KEPT + 101))
    assert set(launches.values()) == set(stacks)
    assert (launches, stacks) == while_open


@pytest.mark.parametrize("way", ["capture", "nodes"])
def test_captured_launches_keep_their_stacks(bench, request, way):
    broker = broker_of(request)
    with bench.server(broker, features=Feature.STACKS) as server:
        result = bench.run(server, way, 1)
        row = only(server)
        launches, stacks = kept_launches(server)
    assert result.returncode == 0
    assert len(launches) >= row.captured_probed > 0  # a node that is set anew has a new id
    assert set(launches.values()) == set(stacks)


def test_host_calls_bring_their_stacks(bench, request):
    """The number of the launch between them, and what it stands for."""
    broker = broker_of(request)
    calls = []
    broker.host_call = calls.append
    with bench.server(broker, features=HOST | Feature.STACKS) as server:
        result = bench.run(server, "plain", 3)
        launches, stacks = kept_launches(server)
    assert result.returncode == 0
    assert len(calls) == 6
    assert [call.stack for call in calls[::2]] == [launches[number] for number in (1, 2, 3)]
    assert [call.stack for call in calls[1::2]] == [launches[number] for number in (1, 2, 3)]
    assert all(len(call.callers) == len(stacks[call.stack]) > 0 for call in calls)


def test_no_stacks_unless_asked(bench, request):
    broker = broker_of(request)
    calls = []
    broker.host_call = calls.append
    with bench.server(broker, features=HOST) as server:
        bench.run(server, "plain", 3)
        assert kept_launches(server) == ({}, {})
    assert {(call.stack, call.callers) for call in calls} == {(None, ())}


@pytest.mark.parametrize(("feature", "leaving"), [(Feature.HOST_ENTRY, 0), (Feature.HOST_EXIT, 1)])
def test_many_threads_ask_at_once(bench, request, feature, leaving):
    broker = broker_of(request)
    calls = []
    broker.host_call = calls.append
    with bench.server(broker, features=feature) as server:
        result = bench.run(server, "threads", 50)
        row = only(server)
    assert (result.returncode, row.seen, row.probed) == (0, 400, 400)
    assert len(calls) == 400
    assert {each.leaving for each in calls} == {bool(leaving)}
    assert len({each.thread for each in calls}) == 8


def test_a_launch_goes_on_where_the_session_fails(bench, request):
    broker = broker_of(request)

    def fail(call):
        raise InputError("it does not work")

    broker.host_call = fail
    with bench.server(broker, features=HOST) as server:
        result = bench.run(server, "plain", 5)
        row = only(server)
        problems = list(server.problems)
    assert (result.returncode, row.probed, result.complaints) == (0, 5, [])
    assert len(problems) == 10
    assert all("it does not work" in problem for problem in problems)


def test_a_launch_goes_on_where_the_session_ends(bench, request):
    """While a thread waits: it does not wait for who is gone, nor the ten seconds for an answer."""
    broker = broker_of(request)
    asked, over = threading.Event(), threading.Event()
    broker.host_call = lambda call: asked.set() or over.wait(PATIENCE)
    with bench.server(broker, features=HOST) as server:
        process = bench.start(server.socket_path, "plain", 5)
        assert asked.wait(PATIENCE)
        began = time.monotonic()
        server._listener.close()
        for peer in server._peers:
            peer.connection.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: written(bench.log).count("launch plain") == 5)
        took = time.monotonic() - began
        result = bench.finish(process)
        over.set()
    assert took < 9
    assert (result.returncode, result.out) == (0, "done\n")
    assert result.complaints == ["egpu: the session is gone; the rest runs unprobed"]


def test_a_launch_goes_on_where_the_session_hangs(bench, request):
    """It waits ten seconds, once, and nothing is asked after that."""
    broker = broker_of(request)
    calls, woken = [], threading.Event()
    broker.host_call = lambda call: calls.append(call) or woken.wait(PATIENCE)
    with bench.server(broker, features=HOST) as server:
        began = time.monotonic()
        process = bench.start(server.socket_path, "plain", 5)
        result = bench.finish(process)
        took = time.monotonic() - began
        woken.set()
        assert server.drain(PATIENCE)
        row = only(server)
    assert (result.returncode, result.out, row.seen) == (0, "done\n", 5)
    assert len(calls) == 1
    assert 10 <= took < 10 * 10  # of five launches with a program before and one after each
    (complaint,) = result.complaints
    assert "did not run a program before a launch within 10 s" in complaint


def test_unload_and_reuse(bench, request):
    broker = broker_of(request, twins={"plain": {}, "other": {}})
    with bench.server(broker) as server:
        result = bench.run(server, "reload", 10)
        rows = {row.name: row for row in server.stats()}
    assert result.returncode == 0
    assert (rows["plain"].probed, rows["other"].probed) == (10, 10)
    assert broker.counted() == 20 * 128


def test_contexts_that_end(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "contexts", 3)
        assert (result.returncode, only(server).probed) == (0, 6)
    assert [device.ordinal for _, device, _ in broker.hosts] == [1, 1, 1]
    assert [broker.counted(i) for i in range(3)] == [256] * 3


def test_primary_context_that_ends(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "primary", 4)
        assert (result.returncode, only(server).probed) == (0, 8)
    assert [broker.counted(i) for i in range(2)] == [512, 512]


def test_globals_of_the_original(bench, request):
    shared = {"extra": "// global __egpu_globals\n", "globals_table": "__egpu_globals"}
    broker = broker_of(request, twins={"plain": {**shared, "globals": ("counter",)}})
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 2)
        assert (result.returncode, only(server).probed) == (0, 2)
    lost = broker_of(request, twins={"plain": {**shared, "globals": ("$str",)}})
    with bench.server(lost) as server:
        result = bench.run(server, "plain", 2)
        row = only(server)
    assert (result.returncode, row.probed) == (0, 0)
    assert "variable $str" in row.refusals[0]


def test_globals_in_machine_code(bench, request):
    """Addresses go into the image itself, before it is loaded."""
    text = b".version 8.0\n// entry plain params 2 regs 40 occ 8 max 1024 twin 1\n// patched "
    image = text + bytes(9)
    twin = {"image": image, "globals": ("counter",)}
    broker = broker_of(request, twins={"plain": {**twin, "patches": ((len(text), 24),)}})
    with bench.server(broker) as server:
        result = bench.run(server, "plain", 2)
        assert (result.returncode, only(server).probed) == (0, 2)
    assert result.of("patched") == ["patched 24 behind the original"]
    for patches in (((len(image) - 7, 0),), ((1 << 62, 0),), ((0, 0), (8, 0))):
        broker = broker_of(request, twins={"plain": {**twin, "patches": patches}})
        with bench.server(broker) as server:
            result = bench.run(server, "plain", 2)
            row = only(server)
        assert (result.returncode, row.probed) == (0, 0)
        assert "outside of its image" in row.refusals[0] or "limit" in row.refusals[0]


def test_ring_positions_and_initial_contents(bench, request):
    broker = broker_of(request, rings=harness.ring_table(), chunks=((2048, b"hello"),))
    with bench.server(broker, snapshot_period_s=0) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: broker.hosts)
        for slot in range(harness.SLOTS):
            offset = harness.READERS + slot * 64
            os.pwrite(broker.hosts[0][2], harness.pack(1000 + slot), offset)
        wait_for(lambda: sum(row.probed for row in server.stats()) > 0)  # with maps in place
        assert server.snapshot(PATIENCE)
        device = os.pread(broker.hosts[0][2], harness.DEVICE_SIZE, harness.SNAPSHOT)
        result = bench.finish(process)
    assert result.returncode == 0
    assert device[2048:2053] == b"hello"
    for slot in range(harness.SLOTS):
        assert device[1024 + slot * 128 + 8 :][:8] == harness.pack(1000 + slot)
    assert device[:8] == b"EGPUARNA"
    assert int.from_bytes(device[24:28], "little") == result.pid


def device_rings(request):
    """Two published records in the ring of slot 1, and one that is not."""
    groups = [harness.pack(8 | 1 << 32, at + 1, at, 0) for at in (0, 32, 64)]
    chunks = [(1024 + 128, harness.pack(96)), (2048 + 256, b"".join(groups))]
    chunks += [(3072 + 16 + at // 16, b"\2\0") for at in (0, 32)]  # two granules, in lap 0
    broker = broker_of(request, rings=harness.device_ring_table(), chunks=chunks)
    broker.device_rings = 17 * 64
    return broker, b"".join(groups)


def test_records_in_device_memory(bench, request):
    broker, groups = device_rings(request)
    reader = harness.READERS + 64
    with bench.server(broker, snapshot_period_s=0) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: broker.hosts and broker.word(0, reader + 8) == 64)
        file = broker.hosts[0][2]
        assert os.pread(file, 96, 5120 + 256) == groups
        wait_for(lambda: broker.word(0, reader + 16) == 96)
        os.pwrite(file, harness.pack(32), reader)
        wait_for(lambda: server.snapshot() and broker.word(0, harness.SNAPSHOT + 1024 + 128 + 8))
        device = os.pread(file, harness.DEVICE_SIZE, harness.SNAPSHOT)
        result = bench.finish(process)
    assert (result.returncode, result.complaints) == (0, [])
    assert device[1024 + 128 + 8 :][:8] == harness.pack(32)
    assert device[3072 : 3072 + 64] == bytes(16) + b"\2\0\2\0" + bytes(44)  # flags stay
    assert [broker.word(0, harness.READERS + 64 * slot + 8) for slot in (0, 2, 3)] == [0, 0, 0]


def test_stamped_slots_in_device_memory(bench, request):
    """What was taken is given out, also a slot that lacks a word, which the session sees; the third
    was asked for in vain."""
    word = lambda number, *words: harness.pack(number + 1 << 32 | 0b01, *words)  # noqa: E731
    slots = word(0, 11, 13, 15, 17, 19) + word(1, 11, 13, 0, 17, 19)
    head = 3 | (1 << 24) - 1 << 40
    chunks = [(1024 + 128, harness.pack(head)), (2048 + 384, slots)]
    broker = broker_of(request, rings=harness.stamped_ring_table(), chunks=chunks)
    broker.device_rings = 17 * 96
    reader = harness.READERS + 64
    with bench.server(broker, snapshot_period_s=0) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: broker.hosts and broker.word(0, reader + 16) == 96)
        assert broker.word(0, reader + 8) == 96
        assert os.pread(broker.hosts[0][2], 96, 5120 + 384) == slots
        result = bench.finish(process)
    assert (result.returncode, result.complaints) == (0, [])


def test_records_whose_copies_fail(bench, request):
    """The workload goes on, and so do its probes."""
    broker, _ = device_rings(request)
    with bench.server(broker, snapshot_period_s=0) as server:
        more = {"MOCK_FAIL": "cuMemcpy2DAsync_v2"}
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH, **more)
        wait_for(lambda: broker.hosts and broker.word(0, harness.READERS + 64 + 8) == 64)
        os.pwrite(broker.hosts[0][2], harness.pack(32), harness.READERS + 64)
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        row = only(server)
    assert result.returncode == 0
    (complaint,) = result.complaints
    assert "records can no longer be copied; those that find no room are dropped" in complaint
    assert row.probed == row.seen == result.launched


@pytest.mark.parametrize(
    "wrong",
    [
        {"ring_size": 255},
        {"ring_size": 64},
        {"ring_size": 96, "stamped": 40},
        {"ring_size": 144, "stamped": 40},
        {"ring_size": 200, "stamped": 40},
        {"ring_size": 160, "stamped": 60},
        {"ring_size": 544, "stamped": 264},
        {"host_data": 1 << 40},
        {"device_flags": harness.DEVICE_SIZE + 17 * 64},
        {"host_controls": harness.HOST_SIZE - 512},
    ],
)
def test_rings_that_lie_outside_of_memory(bench, request, wrong):
    broker, _ = device_rings(request)
    broker.rings = (replace(broker.rings[0], **wrong),)
    with bench.server(broker) as server:
        result = bench.run(server, "plain")
    check_unprobed(result, "a ring lies outside the arenas")


def test_fork_and_vfork(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "forked", 4)
        row = only(server)
    assert (result.returncode, result.complaints) == (0, [])
    assert (row.seen, row.probed) == (8, 8)  # the child's launches reach nobody
    assert len(result.of("launch plain original")) == 4
    assert len(broker.started) == 1


def test_fork_before_cuinit(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "early_fork", 4)
        assert (result.returncode, only(server).probed) == (0, 4)
    assert broker.started[0][0] != result.pid


@pytest.mark.parametrize("how", ["sh", "exec", "python"])
def test_follows_exec_and_children(bench, broker, how):
    program = " ".join(bench.command("plain", 3))
    command = {
        "sh": ["sh", "-c", f"true; {program}; true"],
        "exec": ["sh", "-c", f"exec {program}"],
        "python": [
            "python3",
            "-c",
            f"import subprocess, sys; sys.exit(subprocess.call({program!r}, shell=True))",
        ],
    }[how]
    if how == "python" and "sanitized" in str(bench.folder):
        pytest.skip("an interpreter without sanitizer cannot load a library with it")
    if "sanitized" in str(bench.folder):
        pytest.skip("a shell without sanitizer cannot load a library with it")
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, command=command)
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        assert (result.returncode, only(server).probed) == (0, 3)
    assert result.complaints == []


@pytest.mark.parametrize(("inner", "probed"), [("exec", 3), ("", 0)])
def test_no_follow(bench, broker, inner, probed):
    if "sanitized" in str(bench.folder):
        pytest.skip("a shell without sanitizer cannot load a library with it")
    program = " ".join(bench.command("plain", 3))
    command = ["sh", "-c", f"{inner} {program}" if inner else f"{program}; true"]
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, command=command, follow=False)
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        assert result.returncode == 0
        assert sum(row.probed for row in server.stats()) == probed


def test_exit_without_handlers(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "leave", 6)
    assert (result.returncode, result.out) == (7, "done\n")
    assert (broker.counted(), broker.control("final")) == (6 * 128, 1)


def test_program_that_closes_every_descriptor(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "closing", 3)
        result = bench.finish(process)
    assert (result.returncode, result.out) == (0, "done\n")
    assert len(result.of("launch plain twin")) == 3
    assert len(result.of("launch tight original")) == 3
    assert len(result.complaints) == 1


def test_device_that_never_finishes(bench, broker):
    with bench.server(broker, exit_wait_s=0.3) as server:
        process = bench.start(server.socket_path, "plain", 3, MOCK_HANG="1000")
        result = bench.finish(process)  # which does not wait for that
    assert (result.returncode, result.out) == (0, "done\n")
    assert result.complaints == [
        "egpu: the device did not finish in 300 ms; counts are those of the last snapshot"
    ]


INTERPRETER = """
import ctypes, sys
whole = ctypes.CDLL(None)
print(hasattr(whole, "cuInit"), hasattr(whole, "no_such_name"), hasattr(whole, "cuMemAlloc_v2"))
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
print(hasattr(whole, "cuInit"), hasattr(whole, "cuLaunch"))
"""


def run_python(bench, script, **more):
    if "sanitized" in str(bench.folder):
        pytest.skip("an interpreter without sanitizer cannot load a library with it")
    environment = {**os.environ, **bench.environment(**more)}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )


def test_the_agent_is_no_driver(bench):
    """Without a driver in the process nothing looks like one; what a driver lacks, is lacking."""
    done = run_python(bench, INTERPRETER, LD_PRELOAD=str(bench.agent))
    assert done.stdout == "False False False\nTrue False\n"
    assert done.stderr == ""


def test_injection_says_what_it_cannot_see(bench):
    script = f"import ctypes; print(ctypes.CDLL({str(bench.agent)!r}).InitializeInjection())"
    done = run_python(bench, script)
    assert (done.stdout, done.stderr.count("\n")) == ("1\n", 1)
    assert "use LD_PRELOAD" in done.stderr


# ---------------------------------------------------------------------- what goes wrong


def check_unprobed(result, words, launches=3):
    assert (result.returncode, result.out) == (0, "done\n")
    assert len(result.of("launch plain original")) == launches
    assert len(result.complaints) == 1
    assert words in result.complaints[0]


def test_no_session(bench, tmp_path):
    process = bench.start(tmp_path / "nobody", "plain")
    check_unprobed(bench.finish(process), "no session at")


def test_socket_not_named(bench):
    environment = {**os.environ, **bench.environment(LD_PRELOAD=str(bench.agent))}
    environment.pop("EGPU_SOCKET", None)
    process = subprocess.Popen(
        bench.command("plain"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    check_unprobed(bench.finish(process), "EGPU_SOCKET is not set")


def test_other_protocol_version(bench, broker, monkeypatch):
    monkeypatch.setattr("egpu.agent.protocol.WIRE_VERSION", 99)
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "plain")
        result = bench.finish(process)
        assert f"speaks protocol {WIRE_VERSION}," in server.problems[0]
    check_unprobed(result, f"the session speaks protocol 99, this agent {WIRE_VERSION}")


def test_other_layout_version(bench, broker, monkeypatch):
    monkeypatch.setattr("egpu.agent.server.LAYOUT_VERSION", 9)
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "plain")
        result = bench.finish(process)
    check_unprobed(result, f"agent has arena layout {LAYOUT_VERSION}, the session 9")


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"\x7fELF" + bytes(60), "malformed"),
        (b"\x7fELF\x02\x01\x01" + bytes(33) + b"\xff" * 24, "malformed"),
        (b"nonsense", "malformed"),
        (b".version 8.0 broken", "does not load"),
        (b".version 8.0\n", "has no kernel"),
    ],
)
def test_malformed_twin(bench, request, image, words):
    broker = broker_of(request, twins={"plain": {"image": image}})
    with bench.server(broker) as server:
        result = bench.run(server, "plain")
        assert words in only(server).refusals[0]
    check_unprobed(result, words)


def test_out_of_device_memory(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "plain", MOCK_FAIL="cuMemAlloc_v2")
        row = only(server)
    check_unprobed(result, "out of device memory")
    assert row.not_probed == {"no map memory": 3}


def test_host_memory_cannot_be_pinned(bench, broker):
    with bench.server(broker) as server:
        result = bench.run(server, "plain", MOCK_FAIL="cuMemHostRegister_v2")
    check_unprobed(result, "cannot be pinned")


def test_session_has_no_memory(bench, broker, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    with bench.server(broker) as server:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        result = bench.run(server, "plain")
    check_unprobed(result, "no memory for")


def test_image_cannot_be_copied(bench, broker):
    # No file may grow: a careless write would kill the workload with SIGXFSZ.
    limited = ["prlimit", "--fsize=100", *bench.command("plain")]
    if "sanitized" in str(bench.folder):
        pytest.skip("prlimit without sanitizer cannot load a library with it")
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, command=limited, MOCK_LOG="/dev/null")
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        assert "did not see" in only(server).refusals[0]
    assert (result.returncode, result.out) == (0, "done\n")
    assert "cannot copy an image" in result.complaints[0]


def test_driver_that_does_not_start(bench, broker):
    with bench.server(broker) as server:
        process = bench.start(server.socket_path, "plain", MOCK_FAIL="cuInit")
        result = bench.finish(process)
    assert (result.returncode, result.complaints, broker.started) == (2, [], [])


SESSION = """
import sys
sys.path[:0] = {paths!r}
import agent_harness
from pathlib import Path
broker = agent_harness.Broker()
server = agent_harness.Server(Path({folder!r}), broker)
print(server.socket_path, flush=True)
sys.stdin.read()
"""


def test_session_killed(bench):
    paths = [str(harness.ROOT / "src"), str(harness.ROOT / "tests" / "runtime")]
    script = SESSION.format(paths=paths, folder=str(bench.tmp / "run"))
    session = subprocess.Popen(
        [str(os.sys.executable), "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        path = session.stdout.readline().strip()
        process = bench.start(path, "slow", UNTIL_FINISH)
        wait_for(lambda: "twin threads" in written(bench.log))
    finally:
        session.send_signal(signal.SIGKILL)
        session.wait()
        session.stdin.close()
        session.stdout.close()
    wait_for(lambda: "launch plain original" in written(bench.log))
    result = bench.finish(process)
    assert (result.returncode, result.out) == (0, "done\n")
    assert result.complaints == ["egpu: the session is gone; the rest runs unprobed"]
    launches = [" original " in launch for launch in result.of("launch plain")]
    assert len(launches) == result.launched
    assert (launches[0], launches[-1]) == (False, True)
    assert launches == sorted(launches)


def test_workload_killed(bench, broker):
    with bench.server(broker, snapshot_period_s=0.05) as server:
        process = bench.start(server.socket_path, "slow", UNTIL_FINISH)
        wait_for(lambda: broker.hosts and broker.control("snapshot_time"))
        process.kill()
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        row = only(server)
    assert result.returncode == -signal.SIGKILL
    assert broker.control("final") == 0
    # The driver has a launch before it is counted; death may come between.
    assert len(result.of("launch plain twin")) - row.probed in (0, 1)


# ---------------------------------------------------------------------- cost


def test_bench_program_runs(bench, request):
    broker = broker_of(request, twins={})
    alone = subprocess.run(
        bench.command(1000, program="agent_bench"),
        env={**os.environ, **bench.environment(MOCK_LOG="/dev/null")},
        capture_output=True,
        text=True,
        check=True,
    )
    with bench.server(broker) as server:
        process = bench.start(
            server.socket_path,
            command=bench.command(1000, program="agent_bench"),
            MOCK_LOG="/dev/null",
        )
        result = bench.finish(process)
        assert server.drain(PATIENCE)
        assert server.processes()[0].kernels[0].launches == 1001
    assert alone.stdout.startswith("ns_per_launch")
    assert result.out.startswith("ns_per_launch")


def slowly(function, seconds):
    def run(*arguments):
        time.sleep(seconds)
        return function(*arguments)

    return run


def written(log):
    """What the stand-in driver has noted by now."""
    return log.read_text() if log.exists() else ""
