"""Maps that are pinned by name begin with what was saved under it, as libbpf reuses pinned maps."""

from __future__ import annotations

from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, UnsupportedError
from egpu.maps import Contents, Values
from egpu.maps.contents import summed
from egpu.session.arenas import Arenas
from egpu.session.host_maps import HostMap
from egpu.session.pins import LivePin, Pins
from egpu.session.service import answers


def reuse_pinned(arenas: Arenas) -> None:
    """Give every map that is declared with LIBBPF_PIN_BY_NAME what was saved of it.

    Raises InputError if another session has it, or what was saved is of another shape;
    UnsupportedError for values per SM that cannot be summed.
    """
    wanted = [(index, spec) for index, spec in enumerate(arenas.maps) if spec.pin_by_name]
    if not wanted:
        return
    pins = Pins()
    for index, spec in wanted:
        found = pins.find(spec.name)
        if isinstance(found, Contents):
            _restore(arenas, index, found)
            if found.frozen:
                arenas.frozen.add(index)
        elif isinstance(found, LivePin) and answers(found):
            raise InputError(
                f"is pinned by the session of process {found.pid}, which still runs",
                where=f"map {spec.name}",
                hint="one session at a time can have it",
            )


def _restore(arenas: Arenas, index: int, found: Contents) -> None:
    spec = arenas.maps[index]
    _check(spec, found)
    if traits(spec.type).keyless:
        with arenas.changing:
            arenas.initial.fill(index, found.pushed(0) if found.copies else ())
    else:
        HostMap(arenas, index).restore(_rows(spec, found))


def _check(spec: MapSpec, found: Contents) -> None:
    where = f"map {spec.name}"
    for name in ("type", "key_size", "value_size", "max_entries", "extra"):
        now, then = getattr(spec, name), getattr(found.spec, name)
        if now != then:
            raise InputError(
                f"{name} is {now}, that of the map pinned as {spec.name} is {then}",
                where=where,
                hint=f"`egpu map unpin {spec.name}` lets it begin anew",
            )
    if len(found.copies) > 1:
        raise UnsupportedError(
            f"{where}: what is pinned has the contents of {len(found.copies)} contexts",
            needs=f"`egpu map unpin {spec.name}`",
        )


def _rows(spec: MapSpec, found: Contents) -> list[tuple[bytes, Values]]:
    kind = traits(spec.type)
    rows = list(found.copies[0].items()) if found.copies else []
    if not kind.per_sm:
        return rows
    try:
        return [(key, (summed(spec, values),)) for key, values in rows]
    except InputError as error:
        raise UnsupportedError(
            f"map {spec.name}: values per SM that were pinned ({error.message})",
            needs="values of integers only, which can be summed",
        ) from error
