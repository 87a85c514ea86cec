"""blocksched on real processes and the simulated device, and its Perfetto files."""

import io
import itertools
import json

import pytest
import trace_processor
from test_runtime_cli import BUILT, egpu, totals_and_report, workload

from egpu import session
from egpu.bpf.demangle import demangle
from egpu.cli.machine import NATIVE
from egpu.export.perfetto import write_perfetto
from egpu.timeline import Slice, Timeline, Track

perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
needs_native = pytest.mark.skipif(not BUILT, reason="the native parts are not built (make native)")
needs_processor = pytest.mark.skipif(
    bool(trace_processor.missing()), reason=f"not here: {trace_processor.missing()}"
)
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def written(timeline):
    stream = io.BytesIO()
    write_perfetto(timeline, stream)
    return stream.getvalue()


TIMELINE = Timeline(
    (
        Track("device 0"),
        Track("SM 10", 0),
        Track("SM 10, place 0", 1),
        Track("SM 10, place 1", 1),
        Track("SM 2", 0),
        Track("SM 2, place 0", 4),
    ),
    (
        Slice(2, "vecadd", 100, 200, (("block", 0), ("kernel", "vecadd(float*)"))),
        Slice(2, "vecadd", 200, 200, (("block", 3), ("kernel", "vecadd(float*)"))),
        Slice(2, "größe<…>", 200, 260, (("block", 1 << 40), ("kernel", "größe"))),
        Slice(3, "vecadd", 100, 190, (("block", 1), ("kernel", "vecadd(float*)"))),
        Slice(5, "vecadd", 90, 300, (("block", 2), ("kernel", "vecadd(float*)"))),
    ),
)


def test_packets_by_the_official_messages():
    trace = perfetto.Trace()
    trace.ParseFromString(written(TIMELINE))
    tracks = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    uuids = [track.uuid for track in tracks]
    assert len(set(uuids)) == 6
    assert [track.name for track in tracks] == [track.name for track in TIMELINE.tracks]
    assert [track.parent_uuid for track in tracks] == [
        0, uuids[0], uuids[1], uuids[1], uuids[0], uuids[4]]  # fmt: skip
    events = [p for p in trace.packet if p.HasField("track_event")]
    kinds = [p.track_event.type for p in events]
    assert kinds == [1, 2] * 5  # begin, end
    names = {row.iid: row.name for p in events for row in p.interned_data.event_names}
    assert sorted(names.values()) == ["größe<…>", "vecadd"]
    assert len({p.trusted_packet_sequence_id for p in trace.packet}) == 1


@needs_processor
def test_perfetto_reads_it():
    slices, tracks, errors = trace_processor.query(
        written(TIMELINE),
        "select s.name as name, ts, dur, t.name as track, extract_arg(s.arg_set_id, 'debug.block') "
        "as block, extract_arg(s.arg_set_id, 'debug.kernel') as kernel "
        "from slice s join track t on s.track_id = t.id order by block",
        "select t.name as name, p.name as parent from track t left join track p "
        "on t.parent_id = p.id where t.name glob '*SM*' order by t.name",
        ERRORS,
    )
    assert errors == []
    assert [(row["name"], row["ts"], row["dur"], row["track"]) for row in slices] == [
        ("vecadd", 100, 100, "SM 10, place 0"),
        ("vecadd", 100, 90, "SM 10, place 1"),
        ("vecadd", 90, 210, "SM 2, place 0"),
        ("vecadd", 200, 0, "SM 10, place 0"),
        ("größe<…>", 200, 60, "SM 10, place 0"),
    ]
    assert slices[4]["block"] == 1 << 40
    assert slices[0]["kernel"] == "vecadd(float*)"
    assert {(row["name"], row["parent"]) for row in tracks} >= {("SM 10, place 1", "SM 10")}


def test_many_slices_are_written_in_pieces():
    slices = (Slice(0, f"name {n % 7}", n * 10, n * 10 + 9, (("block", n),)) for n in range(9000))
    trace = perfetto.Trace()
    trace.ParseFromString(written(Timeline((Track("one"),), slices)))
    stamps = [p.timestamp for p in trace.packet if p.HasField("track_event")]
    assert stamps == sorted(stamps)
    assert len(stamps) == 18_000


@needs_native
def test_every_block_is_there(tmp_path):
    file = tmp_path / "blocks.pftrace"
    arguments = ("--sim", "--json", "--perfetto", file, "--", *workload(launches=3, size=1000))
    done = egpu("run", "blocksched", *arguments)
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    expected = {demangle(name): row for name, row in totals["kernels"].items()}
    assert report["partial"] is False
    assert report["records"]["dropped"] == report["records"]["missing"] == 0
    assert report["records"]["received"] == sum(row["blocks"] for row in expected.values())
    assert len(report["kernels"]) == 5
    for row in report["kernels"]:
        assert row["blocks"] == row["blocks_expected"] == expected[row["name"]]["blocks"]
        assert row["launches_recorded"] == row["launches_probed"] == 3
    assert len(report["schedules"]) == 15
    for each in report["schedules"]:
        x, y, z = each["grid"]
        assert each["blocks"] == each["blocks_expected"] == x * y * z
        assert each["places"] <= each["blocks"]
        assert 1 <= each["sms"] <= report["sms"]
        assert 0 <= each["tail"] <= each["time"]
    check_file(file, expected, 3)


def check_file(file, expected, launches):
    if trace_processor.missing():
        pytest.skip(f"Perfetto's trace processor: {trace_processor.missing()}")
    kernels, blocks, errors = trace_processor.query(
        file.read_bytes(),
        "select extract_arg(arg_set_id, 'debug.kernel') as kernel, count(*) as n, "
        "count(distinct extract_arg(arg_set_id, 'debug.launch_id')) as launches, "
        "count(distinct extract_arg(arg_set_id, 'debug.launch_id') || ' ' || "
        "extract_arg(arg_set_id, 'debug.block')) as different, min(dur) as shortest "
        "from slice group by kernel",
        "select distinct t.name as track, extract_arg(arg_set_id, 'debug.sm') as sm "
        "from slice s join track t on s.track_id = t.id",
        ERRORS,
    )
    assert errors == []
    assert {row["kernel"]: (row["n"], row["launches"], row["different"]) for row in kernels} == {
        name: (row["blocks"], launches, row["blocks"]) for name, row in expected.items()
    }
    assert all(row["shortest"] >= 0 for row in kernels)
    assert all(row["track"].startswith(f"SM {row['sm']}, place ") for row in blocks)


@needs_native
def test_the_text_is_80_columns_wide():
    done = egpu("run", "blocksched", "--sim", "--explain", "-v", "--", *workload())
    assert done.returncode == 0, done.stderr
    report = done.stdout.partition("Kernels:")[2]
    assert all(len(line) <= 80 for line in report.splitlines())
    for title in (
        "Longest launch of each",
        "Resident blocks over time",
        "How each kernel was probed",
    ):
        assert title in report
    assert "demo::collatz is demo::collatz(unsigned int const*, " in report
    assert report.rstrip().endswith("their time is not measured.")


@needs_native
def test_explain_in_json_has_every_kernel_and_why_not():
    arguments = ("--sim", "--json", "--explain", "--kernels", "vec*", "--", *workload())
    done = egpu("run", "kernelcount", *arguments)
    _, report = totals_and_report(done.stdout)
    rows = {row["short_name"]: row for row in report["explain"]}
    assert len(rows) == 5
    assert rows["vecadd"]["way"] == "PTX"
    assert rows["vecadd"]["why_not"] == []
    assert (rows["vecadd"]["entry_sites"], rows["vecadd"]["exit_sites"]) == (1, 1)
    assert rows["matmul<16>"]["way"] == "no"
    assert rows["matmul<16>"]["why_not"] == ["no link asks for it"]
    assert rows["matmul<16>"]["name"].startswith("matmul<16>(float const*")


@needs_native
@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("kernelcount", "--perfetto", "x.pftrace"), 2, "blocksched"),
        (("blocksched", "--perfetto", "/no/such/folder/x"), 1, "/no/such/folder/x"),
        (("blocksched", "--every", "2"), 2, "kernellat"),
    ],
)
def test_what_cannot_be_is_said_before_the_workload_starts(tmp_path, arguments, code, word):
    mark = tmp_path / "started"
    done = egpu("run", *arguments, "--sim", "--", "touch", mark)
    assert done.returncode == code
    assert word in done.stderr
    assert not mark.exists()


@needs_native
def test_objects_are_explained_too():
    object_file = NATIVE.parent / "tools" / "kernelcount" / "kernelcount.bpf.o"
    done = egpu("run", object_file, "--sim", "--json", "--explain", "--", *workload(launches=1))
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert {row["way"] for row in report["explain"]} == {"PTX"}
    names = [row["kernel"] for row in report["explain"]]
    assert all(a != b for a, b in itertools.combinations(names, 2))


@needs_native
def test_a_full_disk_leaves_the_report_and_the_exit_code():
    arguments = ("--sim", "--json", "--perfetto", "/dev/full", "--", *workload(launches=1))
    done = egpu("run", "blocksched", *arguments)
    assert done.returncode == 0
    assert "/dev/full is incomplete" in done.stderr
    assert "Traceback" not in done.stderr
    _, report = totals_and_report(done.stdout)
    assert report["records"]["received"] > 0


@needs_native
def test_the_agent_says_how_many_blocks_fit():
    program = NATIVE.parent / "tools" / "kernelcount" / "kernelcount.bpf.o"
    argv = [str(word) for word in workload(launches=1)]
    options = session.Options(simulated=True)
    with session.run(argv, programs=str(program), options=options) as running:
        assert running.wait() == 0
        (process,) = running._server.processes()
        rows = [row for row in process.kernels if row.kernel]
        explained = running.explain()
    assert len(rows) == 5
    for row in rows:
        assert row.resident.threads == row.threads // row.blocks
        assert row.resident.shared == 0
        assert 0 < row.resident.after <= row.resident.before
    # it has no registers of its own, so its reports do not say
    assert {each.blocks_after for each in explained} == {None}
