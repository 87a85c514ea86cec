"""Example 14, made for late attach: programs that are attached to a workload which runs already."""

import json
import re
import subprocess
import sys

from examples import EXAMPLES
from running import environment, object_of, words_of

(LATE,) = (each for each in EXAMPLES if each.number == 14)
LAUNCHES, PAUSE_MS = 80, 100


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "egpu", *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_example_14_is_attached_late(built, tmp_path, monkeypatch):
    """Every thread of every launch from then on, and none of those before."""
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path))
    words = words_of(LATE, built)
    words[words.index("--launches") + 1] = str(LAUNCHES)
    idle = start("run", "--idle", "--sim", "--", *words, "--sleep", PAUSE_MS)
    with idle:
        pid = re.search(r"egpu attach (\d+)", idle.stderr.readline())[1]
        options = (*LATE.needs, "--json", "--interval", "0.05")
        with start("attach", pid, object_of(LATE), *options) as late:
            out, err = late.communicate(timeout=100)
        assert late.returncode == 0, err
        output, _ = idle.communicate(timeout=60)
        assert idle.returncode == 0
    assert "wrong=0" in output, output
    report = json.loads(out.splitlines()[-1])
    (kernel,) = report["kernels"]
    probed = kernel["launches_probed"]
    assert kernel["launches_seen"] == probed > 0
    threads = LATE.threads
    maps = {
        name: {row["key"]: row["value"] for row in rows} for name, rows in report["maps"].items()
    }
    assert len(maps["thread_mapping"]) == threads
    assert sum(maps["sm_histogram"].values()) == threads * probed
    assert sum(maps["warp_histogram"].values()) == threads * probed
