"""How a command is declared, and the options that several commands share.

A command is a class: its fields are typer's parameters, its docstring is the help. `work` names the
function that does it, in a module of this folder. That is imported when the command is run, so help
and wrong options are answered at once, without JAX.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

import typer
from typer.models import ArgumentInfo

from chomp import __version__
from chomp.step_options import Overrides

app = typer.Typer(
    help="Language-model pretraining in JAX.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes around help take 0.55 s instead of 0.4
)
_GROUPS = {"": app}
for _name, _help in {
    "launch": "Processes that train together.",
    "config": "Configs: show in full, compare, print the schema.",
    "data": "Token stores: build, verify, inspect, trace, forecast.",
    "metrics": "The record of a run: show it, or send it to a service.",
    "checkpoint": "Checkpoints: list, verify, compare, export.",
    "variant": "Templates: copy, compare, list, retire; the ledger.",
}.items():
    _GROUPS[_name] = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_help)
    app.add_typer(_GROUPS[_name], name=_name)


def argument(help: str, *, metavar: str, default: Any = ...) -> Any:
    """A positional argument of a command; required without a default."""
    return typer.Argument(default, metavar=metavar, help=help)


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option of a command; without `names` it is called as its field. `more` is typer's."""
    return typer.Option(default, *names, help=help, **more)


def flag(help: str, name: str) -> Any:
    """An option that is given or not."""
    return typer.Option(False, name, help=help)


class Command:
    """What a command line asks for."""

    work: ClassVar[str]  # module:function


C = TypeVar("C", bound=type[Command])


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(argument, option, flag)
)
def command(words: str, work: str, *examples: str) -> Callable[[C], C]:
    """Make a class the command `chomp WORDS`; the examples are shown below its help."""

    def register(cls: C) -> C:
        cls = dataclass(frozen=True, kw_only=True)(cls)  # type: ignore[assignment]
        cls.work = work

        def parsed(**options: Any) -> Command:
            return cls(**options)

        def rank(parameter: inspect.Parameter) -> int:
            """Help shows a command's own options before those that it shares with others."""
            is_argument = isinstance(parameter.default, ArgumentInfo)
            return 0 if is_argument else 1 if parameter.name in cls.__annotations__ else 2

        ordered = sorted(inspect.signature(cls).parameters.values(), key=rank)
        parsed.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        parsed.__annotations__ = {each.name: each.annotation for each in ordered}
        # \b keeps the lines of its paragraph as they are.
        epilog = "\n".join(["\b", "Examples:", *(f"  {each}" for each in examples), ""])
        group, _, name = words.rpartition(" ")
        made = _GROUPS[group].command(name, help=cls.__doc__, epilog=epilog if examples else None)
        made(parsed)
        return cls

    return register


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"chomp {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


# --- options that several commands share --------------------------------------------------------

# Those that launch files have too are in chomp/step_options.py.
ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file or a launch file.")]
Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, a launch file or a run folder.")
]
Prefix = Annotated[
    str | None, typer.Option(help="Folder of outputs; default: CHOMP_PREFIX, or outputs/.")
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The template that a YAML file configures, by its name under experiments/grug or its "
        "folder; default: its key `template`, or megalodon.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the run's template, whoever wrote it.")]
AllowChanged = Annotated[
    bool,
    typer.Option(
        "--allow-changed",
        help="Go on if the run's config or template is not what the checkpoint was saved with.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Where the JSON goes; default: the run's artifacts/."),
]
_PLACE = "A run folder or its checkpoints folder (the newest checkpoint), or a step-N."
Place = Annotated[str, typer.Argument(metavar="PLACE", help=_PLACE)]
RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")]
Variant = Annotated[str, typer.Argument(metavar="NAME", help="A folder under experiments/grug.")]
WeightsName = Literal["params", "ema"]
OneOfTheWeights = Annotated[
    WeightsName | None,
    typer.Option(
        help="The weights themselves, or their moving average; default: the average, if any."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(Command):
    """Options that go with a CONFIG."""

    overrides: Overrides = None
    prefix: Prefix = None
    template: Template = None


@dataclass(frozen=True, kw_only=True)
class GivenRun(Command):
    """A run to look at, and the options that go with it, before anything is read."""

    run: str = argument(_PLACE, metavar="RUN_OR_CHECKPOINT")
    overrides: Overrides = None
    template: str | None = option("Replaces the run's own template.", metavar="FOLDER")
    tokenizer: str | None = option("Replaces the run's own tokenizer.", metavar="FOLDER")
    trust: Trust = False
    allow_changed: AllowChanged = False
