"""``egpu map``: maps of running sessions and pinned ones."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from egpu.cli.output import hex_bytes, json_option
from egpu.cli.values import key_typed, plain, shown, value_typed
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.maps import Contents
    from egpu.session import PinnedMap


_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[1-9][0-9]*|0)")

_DIGITS = 50  # more than a number of 128 bits has


class _Numbers(click.Command):
    """A command whose arguments may be negative numbers, which are no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(text.startswith("-") and _NUMBER.fullmatch(text) for text in args):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)


reference_argument = click.argument("reference", metavar="MAP")


@click.group("map")
def command() -> None:
    """Read and change maps of running sessions, and pinned ones.

    MAP is the name of a pin, or PID:NAME for a map of a running session of yours.  KEY and VALUE
    are numbers, text, or JSON for structs and arrays; hexadecimal bytes for maps without types.
    """


@command.command("list")
@json_option
def list_command(*, as_json: bool) -> None:
    """List every map that you can reach."""
    from egpu.session import list_maps  # noqa: PLC0415

    rows = list_maps()
    if as_json:
        _json("maps/1", {"maps": [asdict(row) for row in rows]})
        return
    if not rows:
        click.echo("no session of yours runs, and no map is pinned")
        return
    width = max(len(row.reference) for row in rows)
    kind = max(len(row.type) for row in rows)
    for row in rows:
        shape = f"key {row.key_size} B, value {row.value_size} B, {row.max_entries:,} entries"
        notes = ["frozen"] if row.frozen else []
        notes += ["pinned"] if row.pinned else []
        session = f" of {row.pid}" if row.pid else ""
        text = f"{row.reference:<{width}}  {row.type:<{kind}}  {row.state}{session}"
        click.echo(", ".join([f"{text}  {shape}" if row.type else text, *notes]))


@command.command("dump")
@reference_argument
@click.option("--per-sm", is_flag=True, help="The values on each SM, not their sums.")
@json_option
def dump(*, reference: str, per_sm: bool, as_json: bool) -> None:
    """Print every entry of a snapshot.  Of a Bloom filter it says how full it is."""
    from egpu.bpf.maptypes import MapType, traits  # noqa: PLC0415

    found = _open(reference).contents()
    spec = found.spec
    if per_sm and not traits(spec.type).per_sm:
        raise click.UsageError(f"{reference} is {spec.type.phrase}: it has no copy per SM")
    head: dict[str, object] = {"map": spec.name, "type": spec.type.name}
    head |= {"complete": found.complete, "frozen": found.frozen}
    if spec.type is MapType.BLOOM_FILTER:
        if as_json:
            _json("map/1", head | {"fill": found.fill()})
            return
        click.echo(f"{found.fill():.1%} of its bits are set; what is in it cannot be listed:")
        click.echo(f"`egpu map peek {reference} VALUE` asks for a value")
        return
    copies = [_rows(found, number, per_sm=per_sm) for number in range(len(found.copies))]
    if as_json:
        contexts = [[{"key": plain(key), name: plain(value)} for key, name, value in copy]
                    for copy in copies]  # fmt: skip
        _json("map/1", head | {"counters": dict(found.counters), "contexts": contexts})
        return
    for number, copy in enumerate(copies):
        if len(copies) > 1:
            click.echo(f"context {number}:")
        for key, name, value in copy:
            text = f"{shown(key, typed=key_typed(spec))}: {shown(value, typed=value_typed(spec))}"
            click.echo(f"{text} by SM" if name == "parts" else text)
    for name, count in found.counters.items():
        if count:
            click.echo(f"{name}: {count:,}")


def _rows(found: Contents, number: int, *, per_sm: bool) -> list[tuple[Any, str, object]]:
    """(key, "value", value), or (key, "parts", values by SM) where they are asked for or cannot be
    summed."""
    if not per_sm:
        with contextlib.suppress(InputError):  # what cannot be summed is shown by SM
            return [(key, "value", value) for key, value in found.decoded(number).items()]
    return [(key, "parts", values) for key, values in found.parts(number).items()]


@command.command("get", cls=_Numbers)
@reference_argument
@click.argument("key")
@click.option("--parts", is_flag=True, help="The value on each SM, or of each thread.")
@json_option
def get(*, reference: str, key: str, parts: bool, as_json: bool) -> None:
    """Print the value of KEY; exit code 1 if it is not there."""
    opened = _open(reference)
    wanted = _key(opened, key)
    try:
        value = _parts(opened, wanted) if parts else opened[wanted]
    except KeyError:
        raise InputError(f"the key {key} is not there", where=f"map {reference}") from None
    if as_json:
        _json("value/1", {"key": plain(wanted), "value": plain(value)})
    else:
        click.echo(shown(value, typed=value_typed(opened.spec)))


def _parts(opened: PinnedMap, key: Any) -> tuple[object, ...]:
    from egpu.maps.view import variable_of  # noqa: PLC0415

    if not (isinstance(key, str) and _indexed(opened)):
        return opened.parts(key)
    position = variable_of(opened.spec, key).position
    return tuple(value[position] for value in opened.parts(0) if isinstance(value, tuple))


@command.command("set", cls=_Numbers)
@reference_argument
@click.argument("key")
@click.argument("value")
@click.option("--noexist", is_flag=True, help="Only if the key is not there.")
@click.option("--exist", is_flag=True, help="Only if the key is there.")
def set_command(*, reference: str, key: str, value: str, noexist: bool, exist: bool) -> None:
    """Set the value of KEY."""
    from egpu.maps import UpdateFlag  # noqa: PLC0415

    if noexist and exist:
        raise click.UsageError("--noexist and --exist exclude each other")
    flag = UpdateFlag.NOEXIST if noexist else UpdateFlag.EXIST if exist else UpdateFlag.ANY
    opened = _open(reference)
    wanted = _key(opened, key)
    if isinstance(wanted, str) and _indexed(opened):  # a global variable, which is always there
        if flag is UpdateFlag.NOEXIST:
            raise InputError(f"the variable {key} is there already", where=f"map {reference}")
        opened[wanted] = _value(opened, value)
    else:
        opened.update(wanted, _value(opened, value), flag)


@command.command("delete", cls=_Numbers)
@reference_argument
@click.argument("key")
def delete(*, reference: str, key: str) -> None:
    """Delete KEY."""
    opened = _open(reference)
    wanted = _key(opened, key)
    if isinstance(wanted, str) and _indexed(opened):
        raise InputError("global variables have no deletion", where=f"map {reference}")
    opened.delete(wanted)


@command.command("push", cls=_Numbers)
@reference_argument
@click.argument("value")
@click.option("--exist", is_flag=True, help="A full one gives up its oldest value.")
def push(*, reference: str, value: str, exist: bool) -> None:
    """Push VALUE to a queue, stack or Bloom filter."""
    from egpu.maps import UpdateFlag  # noqa: PLC0415

    opened = _open(reference)
    opened.push(_value(opened, value), UpdateFlag.EXIST if exist else UpdateFlag.ANY)


@command.command("pop")
@reference_argument
@json_option
def pop(*, reference: str, as_json: bool) -> None:
    """Take and print the next value of a queue or stack.  The exit code is 1 if there is none."""
    opened = _open(reference)
    _print_value(opened.pop(), typed=value_typed(opened.spec), as_json=as_json)


@command.command("peek", cls=_Numbers)
@reference_argument
@click.argument("value", required=False)
@json_option
def peek(*, reference: str, value: str | None, as_json: bool) -> None:
    """Print the value that would be popped next.  Of a Bloom filter: whether VALUE may be in it."""
    from egpu.bpf.maptypes import MapType, traits  # noqa: PLC0415

    opened = _open(reference)
    if opened.spec.type is MapType.BLOOM_FILTER:
        if value is None:
            raise click.UsageError("a Bloom filter is asked for a VALUE")
        _print_value(_value(opened, value) in opened, as_json=as_json)
        return
    if value is not None or not traits(opened.spec.type).keyless:
        raise click.UsageError(f"{reference} is {opened.spec.type.phrase}: see get and dump")
    _print_value(opened.peek(), typed=value_typed(opened.spec), as_json=as_json)


def _print_value(value: object, *, typed: bool = True, as_json: bool) -> None:
    if as_json:
        _json("value/1", {"value": plain(value)})
    else:
        click.echo(shown(value, typed=typed))


@command.command("freeze")
@reference_argument
def freeze(*, reference: str) -> None:
    """Refuse every later change but those of programs."""
    _open(reference).freeze()


@command.command("pin")
@reference_argument
@click.argument("name")
def pin(*, reference: str, name: str) -> None:
    """Pin a map of a running session as NAME; it outlives the session."""
    _open(reference).pin(name)


@command.command("unpin")
@click.argument("name")
def unpin(*, name: str) -> None:
    """Take a pin away, and what was saved under it."""
    from egpu.session.pinned import remove_pin  # noqa: PLC0415

    remove_pin(name)


def _open(reference: str) -> PinnedMap:
    from egpu.session import open_map  # noqa: PLC0415

    return open_map(reference)


def _key(opened: PinnedMap, text: str) -> Any:
    """The key that ``text`` says; of an array its number, or the name of a global variable."""
    from egpu.maps.view import variable_of  # noqa: PLC0415

    if not _indexed(opened):
        return _parsed(opened.spec.btf if opened.spec.key_type else None, text, "key")
    if _NUMBER.fullmatch(text):
        return _number(text, "key")
    try:
        variable_of(opened.spec, text)
    except KeyError as error:
        raise InputError(str(error.args[0]), usage=True) from None
    return text


def _indexed(opened: PinnedMap) -> bool:
    from egpu.bpf.maptypes import traits  # noqa: PLC0415

    return traits(opened.spec.type).indexed


def _value(opened: PinnedMap, text: str) -> Any:
    return _parsed(opened.spec.btf if opened.spec.value_type else None, text, "value")


def _parsed(btf: object, text: str, what: str) -> Any:
    """A number, JSON, or the text itself; bytes for what has no type."""
    if _NUMBER.fullmatch(text):
        return _number(text, what)
    if btf is None:
        return hex_bytes(text, what)
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise InputError(f"{what} nests too deep", usage=True) from None


def _number(text: str, what: str) -> int:
    if len(text) > _DIGITS:
        raise InputError(f"{what} has {len(text):,} digits: no number is that large", usage=True)
    return int(text, 0)


def _json(kind: str, data: dict[str, object]) -> None:
    from egpu.export.json import render_json  # noqa: PLC0415

    click.echo(render_json(kind, data), nl=False)
