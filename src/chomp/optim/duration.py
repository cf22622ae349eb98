"""How long a part of a run is: in steps, or as a share of the run. The two are different types.

An integer is steps, text such as "5%" is a share. One number that means either by its size would
make `1` both one step and the whole run, so a float is refused with both spellings.
"""

import re

from chomp.errors import require

# Floats are declared only so that they arrive here, to be refused in words that help.
Duration = int | float | str

_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def require_duration(name: str, value: Duration, *, least: int) -> None:
    """Raise `ConfigError` unless `value` is at least `least` steps, or a share of up to 100 %."""
    if isinstance(value, str):
        share = _share(value)
        require(
            share is not None and (least == 0 or share > 0) and share <= 100,
            f"{name}={value!r}",
            allowed=f"a share {'above' if least else 'from'} 0% and up to 100%, or a whole number",
            fix="write '5%' for a twentieth of the run, or 100 for a hundred steps",
        )
        return
    require(
        not isinstance(value, bool | float),
        f"{name}={value}",
        allowed="a whole number of steps, or a share of the run in quotes",
        fix=_both_spellings(name, value),
    )
    require(
        value >= least,
        f"{name}={value}",
        allowed="above 0" if least else "0 or more",
        fix=f"set {name} to {least} or more steps, or to a share such as '5%'",
    )


def steps_of(value: Duration, num_steps: int) -> int:
    """The steps that a checked `value` stands for in a run of `num_steps`.

    A share is rounded to the nearest step, and is one step at least unless it is 0 %.
    """
    if not isinstance(value, str):
        return int(value)
    share = _share(value)
    assert share is not None  # by require_duration
    return max(round(share / 100 * num_steps), 1) if share > 0 else 0


def _share(text: str) -> float | None:
    found = _SHARE.fullmatch(text)
    return float(found[1]) if found else None


def _both_spellings(name: str, number: int | float) -> str:
    """Both ways to write a number that could mean either, with what it may have meant."""
    share = f"{100 * number:g}%" if 0 < number <= 1 else "5%"
    steps = f"{number:.0f}" if number >= 1 and float(number).is_integer() else "100"
    return f"set {name} to {steps} for steps, or to '{share}' for a share of the run"
