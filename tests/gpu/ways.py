"""The demo's kernels as PTX and as machine code alone, and objects that are run on them."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from building import HERE, Built
from observing import egpu, plain, require


class Way(enum.Enum):
    """How probes get into the demo's kernels; the value is what ``--explain`` says."""

    PTX = "PTX"
    MACHINE_CODE = "SASS"


WAYS = (Way.PTX, Way.MACHINE_CODE)

# Objects whose programs are refused in the machine code of every kernel, and why.
REFUSED = {
    "ending": "ending threads in machine code",
}


@dataclass(frozen=True)
class Run:
    """What a run under an object printed: JSON documents, egpu's report last; all its text."""

    output: str
    report: Mapping
    totals: Mapping  # the demo's own, by kernel


def demo(built: Built, way: Way, launches: int, size: int) -> list[str]:
    """The demo workload, with its PTX or with a cubin of sm_90."""
    argv = [str(built.demo), "--launches", str(launches), "--size", str(size), "--json"]
    return argv if way is Way.PTX else [*argv, "--ptx", built.demo_cubin]


def run_object(
    name: str,
    argv: Sequence[str],
    way: Way,
    *options: str,
    timeout: float = 120,
    **variables: str,
) -> Run | None:
    """The demo under an object of probes/, whose probes went in that way and no other.

    None where REFUSED says that they cannot go into machine code, and for that reason they did not.
    """
    program = str(HERE / "probes" / f"{name}.bpf.o")
    command = egpu("run", program, "--json", "--explain", *options, "--", *argv)
    run = plain(command, timeout=timeout, **variables)
    require(run.code == 0, f"{name}: exit {run.code}: {run.errors[-2000:]}")
    found = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    (totals,) = [each for each in found if "kernels" in each and "maps" not in each]
    rows = [row for row in found[-1]["explain"] if row["why_not"] != ["no link asks for it"]]
    ways = {row["way"] for row in rows}
    if way is Way.MACHINE_CODE and name in REFUSED:
        require(ways == {"no"}, f"{name}: probed by {sorted(ways)}, to be refused")
        for row in rows:
            require(
                any(REFUSED[name] in text for text in row["why_not"]),
                f"{name}: {row['name']}: {row['why_not']}, not: {REFUSED[name]}",
            )
        return None
    require(bool(rows) and ways == {way.value}, f"{name}: probed by {sorted(ways)}: {rows}")
    return Run(run.output, found[-1], totals["kernels"])


def answers(texts: Mapping[Way, str]) -> str:
    """What a check says of each way."""
    return "; ".join(f"{way.value}: {text}" for way, text in texts.items())
