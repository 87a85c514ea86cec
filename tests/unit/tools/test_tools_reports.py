"""Reports from mock records: what is shown, what is marked, what JSON holds."""

import json
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from test_tools_times import durations

from egpu.export.json import render_json, write_json
from egpu.export.text import render_text
from egpu.report import Histogram, Paragraph, Report, Weight, duration
from egpu.tools.kernelcount.report import KernelCount
from egpu.tools.kernelcount.report import build_report as count_report
from egpu.tools.kernellat.report import build_report as latency_report
from egpu.tools.kernellat.times import KernelTimes, Losses
from egpu.tools.model import KernelLaunches, Run, RunCost
from egpu.version import VERSION

VADD = KernelLaunches(
    1, "vadd(float*, float*, int)", 10, 10, (), 2560, 10, registers_before=16, registers_after=20
)
LONG = KernelLaunches(
    2,
    "void cub::detail::reduce::DeviceReduceKernel<cub::policy_hub<float, int>>(float*, int)",
    7,
    4,
    (("the twin was not ready in time", 2),),
    4096,
    32,
)
RUN = Run(
    "NVIDIA H200",
    False,
    (VADD, LONG),
    RunCost(
        twins=2,
        cached=1,
        twin_ms=57.6,
        waits=2,
        wait_ms=31.24,
        launch_ns=181.2,
        instructions=65,
        site_instructions=40,
        run_ms=1000.0,
    ),
)
COUNTS = [
    KernelCount(1, (1280, 1280, 0), (1280, 1280, 0), (5, 5, 0)),
    KernelCount(2, (4096, 0, 0), (4000, 0, 0), (32, 0, 0)),
]


def latency(*values, **more):
    return KernelTimes(durations(values), durations([sum(values)]), **more)


def line_with(text, word):
    return next(line for line in text.splitlines() if word in line)


def as_json(report):
    stream = StringIO()
    write_json(report, stream)
    return json.loads(stream.getvalue())


def test_kernelcount_marks_partial_totals_and_says_why():
    text = render_text(count_report(RUN, COUNTS, 0))
    assert "2,560" in line_with(text, "vadd")
    assert "2,560+" not in text
    assert "4,096+" in line_with(text, "DeviceReduceKernel")
    assert "32 on 1" in line_with(text, "DeviceReduceKernel")
    assert "5 on 2" in line_with(text, "vadd")
    assert "not ready in t" in text
    assert "unknown" in line_with(text, "unknown")
    assert "lower bounds" in text
    assert "4,096 threads entered and 4,000 were seen to leave" in " ".join(text.split())


def test_every_report_ends_with_its_own_cost():
    for report in (count_report(RUN, COUNTS, 0), latency_report(RUN, {}, Losses())):
        last = " ".join(render_text(report).split())
        assert last.endswith("Registers per thread, before -> after: vadd 16 -> 20.")
        assert "14 of 17 launches probed, 2 twins built in 58 ms (1 from the cache)" in last
        assert "(1 from the cache), 0 records dropped, 0 missing" in last
        assert (
            "Slowdown on the host: 2 launches waited 31.2 ms for twins, then 181 ns per probed "
            "launch (3.1 % of the run)." in last
        )
        assert "at most 65 BPF instructions to a thread, 40 at one site" in last


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (RunCost(), "Slowdown on the host: not measured."),
        (RunCost(launch_ns=200.0, run_ms=1000.0), "host: 200 ns per probed launch (0.001 % of"),
        (
            RunCost(asks=2, ask_ms=2.5, run_ms=10),
            "host: 2 launches waited 2.50 ms to learn that no probe is for them.",
        ),
        (RunCost(waits=1, wait_ms=5, run_ms=10), "host: 1 launches waited 5.00 ms for twins."),
    ],
)
def test_a_slowdown_that_was_not_measured_has_no_share(cost, text):
    kernel = KernelLaunches(1, "k", 50, 50, (), 32, 1)
    report = count_report(Run("d", False, (kernel,), cost), [], 0)
    assert text in " ".join(render_text(report).split())
    share = as_json(report)["cost"]["host_share"]
    assert (share is None) == ("of" not in text)


@pytest.mark.parametrize(
    "make", [count_report, lambda run, *_: latency_report(run, {}, Losses(1, 2, 3, 4))]
)
def test_no_line_is_wider_than_80_columns(make):
    huge = KernelLaunches(3, "k" * 300, 5_000_000, 1, (("w" * 200, 4_999_999),), 10**12, 10**10)
    run = Run("device " + "x" * 100, True, (huge,), warnings=("a warning " * 20,))
    text = render_text(make(run, [KernelCount(3, (10**12,), (10**12,), (10**10,))], 0))
    assert max(map(len, text.splitlines())) <= 80


def test_kernelcount_json():
    document = as_json(count_report(RUN, COUNTS, 5))
    assert document["schema"] == "egpu.kernelcount/1"
    assert document["partial"] is True
    assert document["overflow_threads"] == 5
    assert document["launches"] == {"seen": 17, "probed": 14}
    assert document["cost"]["twin_ms"] == 57.6
    second, first = document["kernels"]
    assert first["name"].startswith("vadd")
    assert first["threads"] == first["threads_expected"] == 2560
    assert first["blocks_per_sm"] == [5, 5, 0]
    assert first["partial"] is False
    assert second["not_probed"] == {"the twin was not ready in time": 2, "unknown": 1}


def test_counts_that_differ_from_the_launches_are_said():
    wrong = [KernelCount(1, (2559,), (2559,), (10,)), COUNTS[1]]
    text = " ".join(render_text(count_report(RUN, wrong, 0)).split())
    assert "counted 2,559 threads in 10 blocks, but its probed launches have 2,560 in 10" in text


def test_kernels_without_a_name_are_shown():
    text = render_text(count_report(Run("d", False, ()), [KernelCount(9, (3,), (3,), (1,))], 0))
    assert "kernel 9" in text


def test_captured_launches_are_explained_and_have_no_expected_number():
    graph = KernelLaunches(1, "vadd", 1, 1, (), 32, 1, captured=1)
    report = count_report(Run("d", False, (graph,)), [KernelCount(1, (96,), (96,), (3,))], 0)
    text = " ".join(render_text(report).split())
    assert "were recorded into graphs" in text
    assert "but its probed launches" not in text
    assert as_json(report)["kernels"][0]["threads_expected"] is None


def test_a_killed_workload_makes_every_number_a_lower_bound():
    run = Run("d", False, (VADD,), snapshot="the workload was killed 1.2 s after the last snapshot")
    text = render_text(count_report(run, [COUNTS[0]], 0))
    assert "2,560+" in text
    assert "killed 1.2 s after" in " ".join(text.split())


def test_kernellat_shows_quantiles_and_histogram():
    run = Run("simulated device", True, (KernelLaunches(1, "vadd", 1, 1, (), 96, 3),))
    text = render_text(latency_report(run, {1: latency(100, 200, 1500)}, Losses()))
    assert "simulated clock" in text
    assert "1.80 us" in line_with(text, "vadd")
    assert "1.50 us" in text
    assert line_with(text, "[64ns, 128ns)").count("@") == 32
    assert "[256ns, 512ns)" in text  # an empty bucket between full ones
    assert "lower bound" not in text


def test_kernellat_marks_what_is_missing():
    run = Run("d", False, (KernelLaunches(1, "vadd", 1, 1, (), 160, 5),))
    report = latency_report(run, {1: latency(100, 200, 1500, open_blocks=1)}, Losses())
    text = " ".join(render_text(report).split())
    assert "3+" in text
    assert "vadd: 2 blocks and 0 launches did not become complete and are left out." in text
    document = as_json(report)
    assert document["partial"] is True
    assert document["kernels"][0]["blocks_incomplete"] == 2
    assert document["kernels"][0]["launches_incomplete"] == 0
    assert document["kernels"][0]["block"]["log2"][0] == [64, 128, 1]


def test_a_share_of_the_blocks_says_so_and_has_no_launches():
    run = Run("d", False, (KernelLaunches(1, "vadd", 1, 1, (), 160, 5),))
    report = latency_report(run, {1: KernelTimes(durations([100]))}, Losses(), every=5)
    text = " ".join(render_text(report).split())
    assert "1 of 5 blocks" in text
    assert "Launches: first" not in text
    document = as_json(report)
    assert (document["every"], document["kernels"][0]["launch"]) == (5, None)
    assert document["kernels"][0]["block"]["count"] == 1
    assert document["partial"] is False


def test_what_was_lost_makes_kernellat_partial():
    report = latency_report(Run("d", False, ()), {}, Losses(crowded=7, overflow=2))
    text = " ".join(render_text(report).split())
    assert "7 groups of lanes found no room" in text
    assert "2 groups of lanes left kernels beyond the first 256" in text
    document = as_json(report)
    assert document["partial"] is True
    assert document["lost"] == {"crowded": 7, "unsettled": 0, "oversized": 0, "overflow": 2}


def test_durations():
    shown = [duration(n) for n in (0, 999, 1000, 12345, 999_499, 999_600, 1.5e9, 3.6e12)]
    assert shown == [
        "0 ns",
        "999 ns",
        "1.00 us",
        "12.3 us",
        "999 us",
        "1.00 ms",
        "1.50 s",
        "3600 s",
    ]


def test_an_empty_histogram_says_so():
    text = render_text(Report("x/1", (Histogram("h", "ns", ()), Paragraph("end", Weight.COST))))
    assert "(nothing)" in text


def test_lists_of_numbers_stand_on_one_line():
    text = render_json(
        "x/1", {"a": [1, -2, 3.5e-7], "b": ["1", "[\n 2 ]"], "c": [[1, 2], [3]], "d": []}
    )
    assert '"a": [1, -2, 3.5e-07],' in text
    assert "    [1, 2],\n    [3]\n" in text
    assert json.loads(text)["b"] == ["1", "[\n 2 ]"]


def test_json_refuses_what_json_has_no_word_for():
    with pytest.raises(ValueError, match="Out of range"):
        render_json("x/1", {"value": float("nan")})


def test_the_version_is_the_projects():
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == VERSION
