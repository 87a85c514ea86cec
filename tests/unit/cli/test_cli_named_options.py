"""Options that messages, hints and help name: the command that says so must have them."""

import ast
import re
from pathlib import Path

import click
import pytest

from egpu.cli.app import COMMANDS, app

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "egpu"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")
# `egpu run --sim`: the command stands before its options.
OF_COMMAND = re.compile(r"egpu ([a-z-]+(?: [a-z]+)?)[^.;,()`]*?$")

# Who shows what a module says.  Modules that are not here say nothing with options in it.
ATTACHING = ("run", "attach", "run-on-gpu")
VERIFYING = (*ATTACHING, "verify", "exec")
SAID_BY = {
    "agent/totals.py": ("run",),  # only it samples launches
    "cli/attach.py": ("attach",),
    "cli/cache.py": ("cache clear",),  # and cache list of --json
    "cli/exec.py": ("exec",),
    "cli/extras.py": ("run",),
    "cli/inspect.py": ("inspect",),
    "cli/loader_run.py": ("run", "run-on-gpu"),
    "cli/machine.py": (),  # doctor says of other commands what works
    "cli/map.py": ("map set",),
    "cli/map_report.py": (*ATTACHING, "exec"),
    "cli/object_run.py": (*ATTACHING, "exec"),
    "cli/run.py": ("run",),
    "cli/run_on_gpu.py": ("run-on-gpu",),
    "cli/session_options.py": ("run", "attach"),
    "session/kernel_types.py": (*VERIFYING, "gen"),
    "session/launch_stacks.py": ("run",),
    "session/splicing.py": ("run",),  # only it leaves machine code alone
    "tools/blocksched/report.py": ("run", "attach"),
    "tools/explain.py": ("run",),
    "tools/running.py": (*ATTACHING, "exec"),
    "tools/stacks.py": ("run",),
    # conformance-plugin's arguments are the conformance suite's, not a person's.
    "verifier/budgets.py": VERIFYING,
    "verifier/calls.py": (*ATTACHING, "verify"),  # exec: of programs run directly, which has it
    "verifier/contention.py": (),  # a warning of all, and verify sets its limit
    "verifier/explore.py": VERIFYING,
    "verifier/one_call.py": VERIFYING,
}
# Command lines of other programs, and of egpu's own modules (`python -m egpu.sim`).
NOT_OURS = {
    "agent/headers.py", "agent/launch.py", "bpf/header.py", "cli/demo.py", "image/cubin_facts.py",
    "loader/protocol.py", "session/assemble.py", "sim/__main__.py", "sim/server.py",
    "splice/ptxas.py", "splice/sass_probe.py", "tools/build.py",
}  # fmt: skip
IGNORED = {("cli/machine.py", "--print-targets"), ("cli/app.py", "--help")}


def commands(group=app, before=""):
    """Every command by its words, and its options."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            names = {each for p in command.params for each in (*p.opts, *p.secondary_opts)}
            yield f"{before}{name}", names | {"--help"}


OPTIONS = dict(commands())


def texts(path):
    """String constants of a module that are no docstrings and declare no option."""
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            left_out.add(body[0].value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option":
            left_out.update(node.args)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def named(text):
    """(command or None, option) for each option in a text."""
    for found in OPTION.finditer(text):
        command = OF_COMMAND.search(text[: found.start()])
        words = command[1] if command else None
        yield (words if words in OPTIONS or not words else words.split()[0]), found[0]


def said():
    for path in sorted(SOURCE.rglob("*.py")):
        module = str(path.relative_to(SOURCE))
        if module not in NOT_OURS:
            for line, text in texts(path):
                for command, option in named(text):
                    if (module, option) not in IGNORED:
                        yield f"{module}:{line}", module, command, option


def test_messages_name_options_that_there_are():
    wrong, seen = [], set()
    for place, module, command, option in said():
        seen.add(module)
        assert module in SAID_BY, f"{place} names {option}: which commands say it? See SAID_BY"
        for each in SAID_BY[module] if command is None else (command,):
            if option not in OPTIONS[each]:
                wrong.append(f"{place}: egpu {each} has no {option}")
    assert wrong == []
    assert seen == set(SAID_BY)


@pytest.mark.parametrize("words", OPTIONS)
def test_help_names_options_that_there_are(words):
    command = app
    for word in words.split():
        command = command.get_command(None, word)
    texts = [command.help or "", *(getattr(each, "help", "") or "" for each in command.params)]
    for text in texts:
        for other, option in named(text):
            assert option in OPTIONS[other or words], text


def test_the_way_that_options_are_found():
    """The last command before it, in the same clause."""
    assert list(named("egpu verify --cost names it; allow more (--cost-limit)")) == [
        ("verify", "--cost"),
        (None, "--cost-limit"),
    ]
    assert list(named("`egpu map set` sets it, --sim is of none")) == [(None, "--sim")]
    assert list(named("egpu map set NAME --exist")) == [("map set", "--exist")]
    assert set(OPTIONS) >= {*COMMANDS} - {"map", "cache"}


def test_pages_name_options_that_there_are():
    """`egpu run --sim` in a page, or a line of a session in it."""
    code = re.compile(r"^```\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
    wrong, seen = [], 0
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        for blocks in code.findall(page.read_text()):
            for line in "\n".join(blocks).splitlines():
                # What is quoted, behind "--" or in a comment is not egpu's.
                own = re.split(r" -- | \| |#", re.sub(r"'.*?'", "", line))[0]
                words = own.split()[1:3]
                command = next(
                    (each for n in (2, 1) if (each := " ".join(words[:n])) in OPTIONS), ""
                )
                if not own.startswith("egpu ") or own.startswith("egpu --"):
                    continue
                for option in OPTION.findall(own):
                    seen += 1
                    if option not in OPTIONS.get(command, ()):
                        wrong.append(f"{page.name}: {line}")
    assert wrong == []
    assert seen > 30
