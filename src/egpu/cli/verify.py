"""``egpu verify``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from egpu.bpf.own_maps import with_own_maps
from egpu.cli.counts import Count
from egpu.cli.output import (
    btf_option,
    control_option,
    cost_limit_option,
    json_option,
    load_object,
    lost_updates_option,
)
from egpu.errors import InputError, VerifierError

if TYPE_CHECKING:
    from egpu.bpf.program import Program
    from egpu.verifier import Cost, Limits, Policy, VerifierWarning

EXIT_REJECTED = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier said of one program: its cost (of a thread, of a warp), warnings and the
    turns that a run may take in loops of an unknown number of turns, or why it was refused;
    ``note`` is why `egpu run` does not attach what the verifier accepts, "" if it does."""

    program: Program
    cost: Cost | None
    warp_cost: Cost | None
    error: VerifierError | None
    warnings: tuple[VerifierWarning, ...] = ()
    turns: int | None = None
    note: str = ""


@click.command("verify")
@click.argument("object_file", metavar="OBJECT", type=click.Path(path_type=Path))
@click.option("--cost", is_flag=True, help="Show the worst case per thread and per warp.")
@cost_limit_option
@click.option(
    "--atomic-budget",
    metavar="N",
    type=Count(0),
    default=4,
    show_default=True,
    help="Warn above N atomics of a thread to one address that all threads share.",
)
@click.option("--path", is_flag=True, help="Show the way that leads to each refusal.")
@btf_option
@control_option
@lost_updates_option
@json_option
def command(
    *,
    object_file: Path,
    cost: bool,
    cost_limit: int,
    atomic_budget: int,
    path: bool,
    btf: Path | None,
    allow_control: bool,
    lost_updates: bool,
    as_json: bool,
) -> int:
    """Check the programs of an object file.

    The exit code is 0 if the verifier accepts all, 1 if it refuses one.  Of a program that it
    accepts and `egpu run` does not attach, a note says so.
    """
    programs = load_object(object_file, btf=btf).programs
    if not programs:
        raise InputError("no program in it", where=str(object_file))
    from egpu.verifier import Limits  # noqa: PLC0415

    limits = Limits(cost=cost_limit, same_address=atomic_budget, lost_updates=lost_updates)
    from egpu.verifier import Policy  # noqa: PLC0415

    policy = Policy.CONTROL if allow_control else Policy.PROBE
    verdicts = [_verdict(program, policy, limits) for program in programs]
    if as_json:
        from egpu.export.json import render_json  # noqa: PLC0415

        answer = {"object": str(object_file), "programs": [_data(each) for each in verdicts]}
        click.echo(render_json("verify/1", answer), nl=False)
    else:
        for verdict in verdicts:
            _show(verdict, cost=cost, path=path)
    return EXIT_REJECTED if any(each.error for each in verdicts) else 0


def _verdict(program: Program, policy: Policy, limits: Limits) -> Verdict:
    from egpu.session.arrivals import verify_all  # noqa: PLC0415
    from egpu.session.objects import refused_where  # noqa: PLC0415

    try:
        (verified,) = verify_all((with_own_maps(program),), policy, limits)
    except VerifierError as error:
        return Verdict(program, None, None, error)
    budget = verified.facts.budget
    turns = None if budget is None else budget.turns
    note = refused_where(verified)
    return Verdict(program, verified.cost, verified.warp_cost, None, verified.warnings, turns, note)


def _show(verdict: Verdict, *, cost: bool, path: bool) -> None:
    program, error = verdict.program, verdict.error
    click.echo(f"{program.name} ({program.section}): {'refused' if error else 'accepted'}")
    if error is not None:
        click.echo(f"  {error.rule}: {error}")
        if path:
            for line in error.path or ("(the way was not recorded)",):
                click.echo(f"    {line}")
    if verdict.note:
        click.echo(f"  note: egpu run does not attach it: {verdict.note}")
    for warning in verdict.warnings:
        click.echo(f"  {warning.rule}: warning: {warning}")
    if cost and verdict.cost is not None and verdict.warp_cost is not None:
        warp = asdict(verdict.warp_cost)
        click.echo(f"  {'worst case':<16} {'per thread':>12} {'per warp':>12}")
        for name, value in asdict(verdict.cost).items():
            click.echo(f"  {name.replace('_', ' '):<16} {value:>12,} {warp[name]:>12,}")
        if verdict.turns is not None:
            click.echo(f"  {'budget of turns':<16} {verdict.turns:>12,}")


def _data(verdict: Verdict) -> dict[str, object]:
    error = verdict.error
    return {
        "name": verdict.program.name,
        "section": verdict.program.section,
        "instructions": len(verdict.program.code),
        "accepted": error is None,
        "cost": None if verdict.cost is None else asdict(verdict.cost),
        "warp_cost": None if verdict.warp_cost is None else asdict(verdict.warp_cost),
        "budget": verdict.turns,
        "note": verdict.note,
        "warnings": [asdict(each) for each in verdict.warnings],
        "error": None
        if error is None
        else {
            "rule": error.rule,
            "message": error.message,
            "hint": error.hint,
            "pc": error.pc,
            "instruction": error.insn,
            "line": error.line,
            "path": list(error.path),
        },
    }
