"""The exceptions that chomp raises on purpose, and how they are printed.

    ChompError
    ├── ConfigError      (ValueError)    a config, an override or a flag that cannot be right
    ├── DataError        (ValueError)    documents, tokenizers or token stores that cannot be used
    ├── StorageError     (OSError)       a file or folder that cannot be read or written
    ├── CheckpointError  (RuntimeError)  a checkpoint that cannot be saved or restored
    ├── NonFiniteError   (ArithmeticError)  a loss or a state with NaN or infinity in it
    ├── KernelError      (ArithmeticError)  a kernel that disagrees with its reference
    ├── LaunchError      (RuntimeError)  steps that cannot be planned, started or finished
    ├── HookError        (RuntimeError)  a function between two steps of a run that failed
    └── RunInterrupted   (RuntimeError)  a run asked to stop, which saved its state first

An error has three parts as fields: what was `given`, what is `allowed`, how to `fix` it
(`RunInterrupted` is no fault and says where the state is instead). A command that ends with a
`ChompError` prints them as one line; any other exception is a bug and keeps its traceback.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Self

# Packages of which chomp uses names that are not public, and the versions it was tried with.
TRIED_VERSIONS = {"jax": "0.10.2", "lm-eval": "0.4.13", "orbax-checkpoint": "0.12.8"}


class ChompError(Exception):
    """Root of everything chomp raises on purpose: `given`, `allowed` and `fix` are its fields."""

    exit_code = 1

    def __init__(self, given: str, *, allowed: str = "", fix: str = "") -> None:
        super().__init__(given)
        self.given = given
        self.allowed = allowed
        self.fix = fix

    def __str__(self) -> str:
        """The three parts as one line; `given` alone if there is nothing to allow or to fix."""
        if not (self.allowed or self.fix):
            return self.given
        stop = "" if self.given.endswith("\n") else ". "  # a table ends its own line
        return f"{self.given}{stop}Allowed: {self.allowed}. Fix: {self.fix}."

    def within(self, place: str) -> Self:
        """This error, with `place` written before what was given: a component, a file, a step."""
        self.given = f"{place}: {self.given}"
        return self


class ConfigError(ChompError, ValueError):
    """A config, an override or a command-line value that cannot be right.

    `problems` holds each one if a config has several.
    """

    exit_code = 2

    def __init__(
        self, given: str, *, allowed: str = "", fix: str = "", problems: Sequence[Self] = ()
    ) -> None:
        super().__init__(given, allowed=allowed, fix=fix)
        self.problems = tuple(problems)


class DataError(ChompError, ValueError):
    """Documents, tokenizers or token stores that cannot be used."""


class StorageError(ChompError, OSError):
    """A file or folder that cannot be read or written; `errno` is the system's number, if any."""

    errno: int | None = None


class CheckpointError(ChompError, RuntimeError):
    """A checkpoint that cannot be saved or restored."""


class NonFiniteError(ChompError, ArithmeticError):
    """A loss or a state holds NaN or infinity."""


class KernelError(ChompError, ArithmeticError):
    """A kernel's values or gradients are not those of its reference."""


class LaunchError(ChompError, RuntimeError):
    """Steps that cannot be planned, started or finished."""


class HookError(ChompError, RuntimeError):
    """A hook of a run failed; `hook` is its name, and `__cause__` what it raised."""

    def __init__(self, given: str, *, allowed: str = "", fix: str = "", hook: str = "") -> None:
        super().__init__(given, allowed=allowed, fix=fix)
        self.hook = hook


class RunInterrupted(ChompError, RuntimeError):
    """A run was asked to stop and has saved its state; `exit_code` tells by whom."""

    def __init__(self, given: str, *, exit_code: int) -> None:
        super().__init__(given)
        self.exit_code = exit_code


def require(condition: bool, given: str, *, allowed: str, fix: str) -> None:
    """Raise `ConfigError` unless `condition` holds."""
    if not condition:
        raise ConfigError(given, allowed=allowed, fix=fix)


def require_at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    """Raise `ConfigError` unless `value` is within the limit that another field sets."""
    require(
        value <= limit,
        f"{name}={value} with {limit_name}={limit}",
        allowed=f"{name} of at most {limit}",
        fix=f"lower {name} or raise {limit_name}",
    )


def require_divides(divisor_name: str, divisor: int, number_name: str, number: int) -> None:
    """Raise `ConfigError` unless `divisor` divides `number`; the message lists what would."""
    require(
        divisor > 0 and number % divisor == 0,
        f"{number_name}={number} with {divisor_name}={divisor}",
        allowed=f"{divisor_name} that divides {number_name}",
        fix=f"set {divisor_name} to one of {divisors(number)}",
    )


def divisors(number: int) -> list[int]:
    """The positive divisors of `number`: what an error about an indivisible size offers."""
    return [d for d in range(1, number + 1) if number % d == 0]


@contextmanager
def private_names(package: str) -> Iterator[None]:
    """Raise `ConfigError` with the version of `package` if a name inside of the block is not there.

    For what a package does not promise to keep, imported where it is needed and nowhere else.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        tried = TRIED_VERSIONS[package]
        raise ConfigError(
            f"{package} {version(package)}, which lacks a name that chomp uses: {error}",
            allowed=f"versions that have it, such as {tried}, which chomp is tested with",
            fix=f"run pip install '{package}=={tried}'",
        ) from error
