"""Run one example by egpu's Python interface, without a loader; prints what was found as JSON.

    python direct.py PLACE WORKLOAD [--sim]

PLACE is the example's in ``examples.EXAMPLES``.  The workload writes to standard output first.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from examples import EXAMPLES, Example
from running import Built, decoded, object_of, words_of

from egpu import session
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind, Object
from egpu.loader.directly import with_values
from egpu.maps import HashView, MapView, ThreadView
from egpu.session import Options, Ring, Session

LINUX = frozenset({AttachKind.HOST_ENTRY, AttachKind.HOST_EXIT})


def gpu_part(made: Object) -> Object:
    """Without the programs of Linux, and without types, so that all is bytes as in a loader."""
    maps = tuple(replace(spec, btf=None, key_type=0, value_type=0) for spec in made.maps)
    programs = tuple(
        replace(program, maps=maps)
        for program in made.programs
        if not any(point.kind in LINUX for point in program.attach)
    )
    return replace(made, maps=maps, programs=programs)


def changes(example: Example) -> list[tuple[str, int, int]]:
    words = [word for word in example.loader if word != "--set"]
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
    made = with_values(gpu_part(read_object(path.read_bytes(), path.name)), changes(example))
    options = Options(
        simulated="--sim" in flags,
        allow_occupancy_loss="--allow-occupancy-loss" in example.needs,
        allow_control="--allow-control" in example.needs,
        thread_slots=example.slots,
    )
    words = words_of(example, Built(Path(workload), None))
    with session.run(words, programs=made, options=options) as running:
        status = running.wait(60)
        print(json.dumps(found(running)))
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
