"""bpf_printk of a real workload on the simulated device: every line, where it came from, drops."""

import sys

from test_runtime_cli import ROOT, egpu, pytestmark, workload

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from print_lines import documents, wrong_lines

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "prints.bpf.o"


def run(*options):
    done = egpu("run", PROGRAM, "--sim", "--json", *options, "--", *workload())
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def test_every_line_is_as_its_place_asks():
    lines, report, kernels = run("--print-limit", "0")
    assert wrong_lines(lines, report, kernels) == []
    assert report["printed"]["dropped"] == report["printed"]["suppressed"] == 0
    assert len({line["kernel"] for line in lines}) == len(kernels) == 5
    assert len({line["pid"] for line in lines}) == 1


def test_a_limit_holds_lines_back_and_counts_them():
    lines, report, kernels = run("--print-limit", "3")
    assert wrong_lines(lines, report, kernels) != []  # fewer by program, none wrong
    assert report["printed"]["suppressed"] > 0
    tried = sum(row["value"] for row in report["maps"]["tried"])
    assert report["printed"]["shown"] + report["printed"]["suppressed"] == tried


def test_text_names_kernel_block_and_thread():
    done = egpu("run", PROGRAM, "--sim", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    assert "] block 1,0,0 thread 0,0,0: block 1 begins -1\n" in done.stdout
    assert "bpf_printk: " in done.stdout
    assert ".printk" not in done.stdout
