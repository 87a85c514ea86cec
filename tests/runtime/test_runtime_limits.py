"""What a run refuses or warns of before it loses anything: rings against the grid, costs."""

import importlib.util
import json

import pytest
from test_runtime_cli import ROOT, egpu, pytestmark, workload

from egpu.bpf.demangle import demangle

__all__ = ["pytestmark"]

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
)
RING = """
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("kprobe/*")
int tells(struct egpu_ctx *ctx)
{
	__u64 record[2] = {ctx->launch_id, ctx->thread_x};

	bpf_ringbuf_output(&events, record, sizeof(record), 0);
	return 0;
}
"""
LONG = """
#include "egpu.bpf.h"

__u64 total;

static long step(__u32 turn, __u64 *sum)
{
	*sum += turn;
	return 0;
}

SEC("kprobe/*")
int takes_long(struct egpu_ctx *ctx)
{
	__u64 sum = 0;

	bpf_loop((ctx->thread_x | ctx->thread_y | ctx->thread_z) ? 0 : 40000, step, &sum, 0);
	if (sum)
		__sync_fetch_and_add(&total, sum);
	return 0;
}
"""

BUDGETS = """
#include "egpu.bpf.h"

__u64 wanted = WANTED, turns, plain, ended;

SEC("kprobe/*")
int pays(struct egpu_ctx *ctx)
{
	__u64 n = wanted, i;

	for (i = 0; i < n && can_loop; i++)
		asm volatile("" : "+r"(i));
	__sync_fetch_and_add(&turns, i);
	return 0;
}

SEC("kprobe/*")
int counts(struct egpu_ctx *ctx)
{
	__u64 n = wanted, i;

	for (i = 0; i < n; i++)
		asm volatile("" : "+r"(i));
	__sync_fetch_and_add(&plain, i);
	return 0;
}

SEC("kprobe/*")
int breaks(struct egpu_ctx *ctx)
{
	__u64 i = 0;

	while (!__sync_fetch_and_add(&ended, 0)) {
		i++;
		if (i > 3)
			break;
		cond_break;
	}
	return 0;
}
"""


def compiled(text, folder):
    spec = importlib.util.spec_from_file_location(
        "objects_build", ROOT / "tests" / "unit" / "objects" / "build.py"
    )
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    source, target = folder / "probe.bpf.c", folder / "probe.bpf.o"
    source.write_text(text)
    build.compile_object(source, target)
    return target


def totals_and_report(output):
    """The demo's line among records, and the last line."""
    lines = output.strip().splitlines()
    return json.loads(next(line for line in lines if "digest" in line)), json.loads(lines[-1])


@needs_compiler
def test_rings_smaller_than_a_launch_are_named_once_a_kernel(tmp_path):
    probe = compiled(RING, tmp_path)
    done = egpu("run", probe, "--sim", "--json", "--", *workload(launches=3, size=5000))
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    named = [text for text in report["warnings"] if "in a launch of" in text]
    assert len(named) == len(totals["kernels"])
    for name, row in totals["kernels"].items():
        threads = -(-row["threads"] // row["launches"])
        (text,) = (each for each in named if each.startswith(f"{demangle(name)}: "))
        assert f"{16 * threads:,} in a launch of {threads:,} threads" in text
        assert "its rings hold" in text
    quiet = egpu("run", probe, "--sim", "--json", "--", *workload(launches=1, size=100))
    assert "in a launch of" not in quiet.stdout


@needs_compiler
def test_cost_limit_of_verify_and_run(tmp_path):
    probe = compiled(LONG, tmp_path)
    for command in (("verify", probe), ("run", probe, "--sim", "--", *workload())):
        done = egpu(*command)
        assert done.returncode == 1
        text = done.stdout + done.stderr
        assert "bpf_loop calls its callback up to 40000 times" in text
        assert "the worst case is over 100000 a thread" in text
        assert "--cost-limit" in text
    assert egpu("verify", probe, "--cost-limit", "1000000").returncode == 0
    argv = workload(launches=1, size=100)
    done = egpu("run", probe, "--sim", "--json", "--cost-limit", "1000000", "--", *argv)
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    blocks = sum(row["blocks"] for row in totals["kernels"].values())
    assert json.dumps(report["maps"]).count(str(blocks * 40000 * 39999 // 2)) == 1


@needs_compiler
def test_runs_cut_short_are_counted_and_told(tmp_path):
    """All of three programs' runs have turns enough, or all of two programs' have not."""
    argv = workload(launches=2, size=300)
    limit = ("--cost-limit", "400")
    for wanted, short in ((5, False), (1_000_000, True)):
        probe = compiled(BUDGETS.replace("WANTED", str(wanted)), tmp_path)
        verified = json.loads(egpu("verify", probe, "--json", *limit).stdout)
        budget = {each["name"]: each["budget"] for each in verified["programs"]}
        assert "budget of turns" in egpu("verify", probe, "--cost", *limit).stdout
        done = egpu("run", probe, "--sim", "--json", *limit, "--", *argv)
        assert done.returncode == 0, done.stderr
        totals, report = totals_and_report(done.stdout)
        threads = sum(row["threads"] for row in totals["kernels"].values())
        assert report["cost"]["runs_cut_short"] == (2 * threads if short else 0)
        named = [text for text in report["warnings"] if "were cut short" in text]
        assert [text.split()[0] for text in named] == ([f"{2 * threads:,}"] if short else [])
        turns = budget["pays"] if short else wanted
        text = json.dumps(report["maps"])
        assert text.count(str(turns * threads)) >= 1, text
        if not short:
            assert text.count(str(wanted * threads)) == 2
