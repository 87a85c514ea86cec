"""Global variables of an object as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from egpu.bpf.btf import BtfKind
from egpu.maps import MapView


class Globals:
    """The global variables of one section as attributes, typed and checked by BTF.

    Reading gives what the last snapshot of the map has; variables of ``.rodata`` can be set until
    the object runs.  AttributeError for a name that the section does not have.
    """

    def __init__(self, section: Callable[[], MapView]) -> None:
        object.__setattr__(self, _SECTION, section)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        try:
            return _section(self)[name]
        except KeyError as error:
            raise AttributeError(str(error.args[0])) from None

    def __setattr__(self, name: str, value: object) -> None:
        try:
            _section(self)[name] = value
        except KeyError as error:
            raise AttributeError(str(error.args[0])) from None

    def __dir__(self) -> list[str]:
        return [*(name for name in super().__dir__() if name != _SECTION), *_variables(self)]

    def __repr__(self) -> str:
        return f"<Globals {', '.join(_variables(self))}>"


_SECTION = "section of variables"  # no name that a variable can have


def _section(of: Globals) -> MapView:
    view: MapView = vars(of)[_SECTION]()
    return view


def _variables(of: Globals) -> tuple[str, ...]:
    spec = _section(of).spec
    row = spec.btf.resolve(spec.value_type) if spec.btf is not None else None
    if spec.btf is None or row is None or row.kind is not BtfKind.DATASEC:
        return ()
    return tuple(spec.btf.type_at(member.type).name for member in row.members)
