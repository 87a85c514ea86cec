"""Run one example by egpu's Python interface, without a loader; prints what was found as JSON.

    python direct.py PLACE WORKLOAD [--sim] [--launcher FUNCTION] [--set MAP INDEX NUMBER]...

PLACE is the example's in ``examples.EXAMPLES``.  Its programs on the host run at the workload's
FUNCTION, which launches; not at all without.  What is set is set beside what the example sets.
The workload writes to standard output first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from examples import EXAMPLES
from running import PATIENCE, Built, decoded, object_of, words_of

from egpu import session
from egpu.bpf.object import read_object
from egpu.bpf.program import HOST_KINDS as LINUX
from egpu.bpf.program import AttachPoint, Object, Program
from egpu.loader.directly import with_values
from egpu.maps import HashView, MapView, ThreadView
from egpu.session import Options, Ring, Session


def placed(program: Program, place: str) -> Program:
    """``program`` at ``place`` if it is one of the host."""
    points = tuple(
        AttachPoint(point.kind, place.rpartition(":")[2], detail=place)
        if point.kind in LINUX
        else point
        for point in program.attach
    )
    return replace(program, attach=points)


def untyped(made: Object, place: str) -> Object:
    """Without types, so that all is bytes as in a loader, and without the programs of the host if
    there is no ``place`` for them."""
    maps = tuple(replace(spec, btf=None, key_type=0, value_type=0) for spec in made.maps)
    programs = tuple(
        replace(placed(program, place), maps=maps)
        for program in made.programs
        if place or not any(point.kind in LINUX for point in program.attach)
    )
    return replace(made, maps=maps, programs=programs)


def changes(words: Sequence[str]) -> list[tuple[str, int, int]]:
    words = [word for word in words if word != "--set"]
    return [(words[at], int(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), 3)]


def entries(view: MapView | HashView | ThreadView) -> dict[int, bytes]:
    if isinstance(view, HashView):
        return {int.from_bytes(key, "little"): value for key, value in view.to_dict().items()}
    if isinstance(view, ThreadView):
        return {key: view.raw(key) for key in view}
    return dict(view.to_dict())


def found(running: Session) -> dict:
    """Maps as numbers or, of larger values, hexadecimal bytes; records; printed lines."""
    maps: dict[str, list] = {}
    records: dict[str, list[str]] = {}
    for name, view in running.maps.items():
        if isinstance(view, Ring):
            records[name] = [record.hex() for record in (*view, *view.finish())]
            continue
        values = {key: decoded(view.spec, value) for key, value in entries(view).items()}
        maps[name] = [
            [key, value.hex() if isinstance(value, bytes) else value]
            for key, value in values.items()
        ]
    prints = [line.printed.text for line in (*running.prints, *running.prints.finish())]
    unprobed = [
        f"{row.name}: {row.not_probed}, {row.refusals}"
        for row in running.kernels()
        if row.not_probed.keys() - {"unmatched"}
    ]
    return {"maps": maps, "records": records, "prints": prints, "unprobed": unprobed}


def main(place: str, workload: str, *flags: str) -> int:
    example = EXAMPLES[int(place)]
    if "--sim" not in flags:
        example = example.on_a_gpu()
    path = object_of(example)
    words = [word for word in flags if word != "--sim"]
    function = words[1] if words[:1] == ["--launcher"] else ""
    made = untyped(
        read_object(path.read_bytes(), path.name), f"{workload}:{function}" if function else ""
    )
    made = with_values(made, changes((*example.loader, *words[2 if function else 0 :])))
    options = Options(
        simulated="--sim" in flags,
        allow_occupancy_loss="--allow-occupancy-loss" in example.needs,
        allow_control="--allow-control" in example.needs,
        thread_slots=example.slots,
    )
    words = words_of(example, Built(Path(workload), None))
    with session.run(words, programs=made, options=options) as running:
        status = running.wait(PATIENCE)
        print(json.dumps(found(running)))
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
