"""The command group, and the one place that turns exceptions into exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from egpu.cli import failure
from egpu.errors import InputError
from egpu.version import VERSION

# fmt: off
COMMANDS: dict[str, tuple[str, str]] = {  # name: (module of egpu.cli, what it does)
    "run":                ("run",         "Run a workload under a tool or an object file."),
    "attach":             ("attach",      "Attach a tool or an object to a process that runs."),
    "run-on-gpu":         ("run_on_gpu",  "Run a program as a kernel of its own."),
    "tools":              ("tools",       "List the tools that come with egpu."),
    "verify":             ("verify",      "Check the programs of an object file."),
    "inspect":            ("inspect",     "Show kernels and probe sites of an image or program."),
    "cache":              ("cache",       "Show and clear the twins that are kept on disk."),
    "gen":                ("gen",         "Write a Python module with the types of an object."),
    "map":                ("map",         "Read and change maps of running sessions, pinned ones."),
    "doctor":             ("doctor",      "Say what works on this machine and what to install."),
    "exec":               ("exec",        "Run one eBPF program once, on memory of your own."),
    "conformance-plugin": ("conformance", "Speak the public conformance suite's plugin protocol."),
    "demo":               ("demo",        "Run the demo workload under two tools."),
    "version":            ("version",     "Print the version."),
}
# fmt: on
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


class _Lazy(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        command = importlib.import_module(f"egpu.cli.{row[0]}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"egpu.cli.{row[0]}.command is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="egpu %(version)s")
def app() -> None:
    """eBPF programs, verified for SIMT, inside the GPU kernels of unmodified programs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's) and give its exit code.

    0 done, 1 refused or failed, 2 wrong usage; ``run`` gives the workload's own.  With
    ``EGPU_DEBUG=1`` the traceback of an error is printed as well.
    """
    try:
        result = app.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="egpu",
            standalone_mode=False,
        )
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILURE
    except (click.Abort, KeyboardInterrupt):
        click.echo("egpu: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; let the interpreter's own flush find nothing to do.
        failure.discard(sys.stdout)
        return EXIT_FAILURE
    except Exception as error:
        failure.say(error)
        return EXIT_USAGE if isinstance(error, InputError) and error.usage else EXIT_FAILURE
