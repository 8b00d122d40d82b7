"""The command line's help texts and how it reads values."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import click
import pytest

from superopt.cli.main import cli
from superopt.cli.options import parse_duration, parse_sizes

Run = Callable[..., SimpleNamespace]


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}".strip())
        else:
            yield f"{path} {name}".strip(), command


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", ALL)
def test_help(
    name: str, superopt: Run, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = superopt(*name.split(), "--help")
    assert done.code == 0
    assert done.err == ""
    golden(f"help-{name.replace(' ', '-') or 'superopt'}.txt", done.out)


@pytest.mark.parametrize("name", ALL)
def test_at_most_twenty_flags(name: str) -> None:
    context = click.Context(ALL[name], help_option_names=["-h", "--help"])
    shown = [p for p in ALL[name].get_params(context) if p.get_help_record(context)]
    assert len([p for p in shown if isinstance(p, click.Option)]) <= 20


@pytest.mark.parametrize(
    "name", [n for n, c in ALL.items() if n and not isinstance(c, click.Group)]
)
def test_every_command_has_debug_and_json(name: str) -> None:
    options = {option for p in ALL[name].params for option in p.opts}
    assert {"--debug", "--json"} <= options


UNGUARDED = {"cache path", "cache clear"}  # one reads nothing, one asks at the terminal


@pytest.mark.parametrize(
    "name", [n for n, c in ALL.items() if n and not isinstance(c, click.Group)]
)
def test_every_command_has_a_guard(name: str) -> None:
    options = {option for p in ALL[name].params for option in p.opts}
    assert ("--max-memory" in options) == (name not in UNGUARDED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60s", 60.0),
        ("2m", 120.0),
        ("1.5", 1.5),
        (" 500ms", 0.5),
        ("1h", 3600.0),
        ("3 min", 180.0),
        (".5s", 0.5),
        ("5S", 5.0),
    ],
)
def test_durations(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "s", "soon", "-1", "1e3", "nan", "inf", "0", "0s", "1 2", "60x", "1m30s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not a|zero)"):
        parse_duration(text)


def test_dimensions() -> None:
    assert parse_sizes("batch=8, sequence=128") == {"batch": 8, "sequence": 128}
    assert parse_sizes("a=b=2,n=1,n=1") == {"a=b": 2, "n": 1}  # any name that a model may use


@pytest.mark.parametrize("text", ["", "batch", "batch=", "=8", "batch=0", "batch=-1", "n=1,n=2"])
def test_no_dimensions(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not NAME=SIZE|is given twice"):
        parse_sizes(text)
