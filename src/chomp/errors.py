"""The exceptions chomp raises on purpose, and the one way their messages are written.

    ChompError
    ├── ConfigError      (ValueError)    a config, an override or a flag that cannot be right
    ├── DataError        (ValueError)    documents, tokenizers or token stores that cannot be used
    ├── StorageError     (OSError)       a file or folder that cannot be read or written
    ├── CheckpointError  (RuntimeError)  a checkpoint that cannot be saved or restored
    ├── NonFiniteError   (ArithmeticError)  a loss or a state with NaN or infinity in it
    ├── KernelError      (ArithmeticError)  a kernel that disagrees with its reference
    ├── LaunchError      (RuntimeError)  steps that cannot be planned, started or finished
    └── RunInterrupted   (RuntimeError)  a run asked to stop, which saved its state first

Every message has three parts: what was given, what is allowed, how to fix it (`RunInterrupted`,
which is no fault, says where the state is instead). A command that ends with a `ChompError` prints
that message alone; any other exception is a bug and keeps its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

# Packages of which chomp uses names that are not public, and the versions it was tried with.
TRIED_VERSIONS = {"jax": "0.10.2", "lm-eval": "0.4.13", "orbax-checkpoint": "0.12.8"}


class ChompError(Exception):
    """Root of everything chomp raises on purpose."""

    exit_code = 1


class ConfigError(ChompError, ValueError):
    """A config, an override or a command-line value that cannot be right."""

    exit_code = 2


class DataError(ChompError, ValueError):
    """Documents, tokenizers or token stores that cannot be used."""


class StorageError(ChompError, OSError):
    """A file or folder that cannot be read or written."""


class CheckpointError(ChompError, RuntimeError):
    """A checkpoint that cannot be saved or restored."""


class NonFiniteError(ChompError, ArithmeticError):
    """A loss or a state holds NaN or infinity."""


class KernelError(ChompError, ArithmeticError):
    """A kernel's values or gradients are not those of its reference."""


class LaunchError(ChompError, RuntimeError):
    """Steps that cannot be planned, started or finished."""


class RunInterrupted(ChompError, RuntimeError):
    """A run was asked to stop and has saved its state; `exit_code` tells by whom."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def message(*, given: str, allowed: str, fix: str) -> str:
    """The three-part text of an error: given, allowed, fix. A list in `given` ends its own line."""
    stop = "" if given.endswith("\n") else ". "
    return f"{given}{stop}Allowed: {allowed}. Fix: {fix}."


def require(condition: bool, *, given: str, allowed: str, fix: str) -> None:
    """Raise `ConfigError` with the three-part message unless `condition` holds."""
    if not condition:
        raise ConfigError(message(given=given, allowed=allowed, fix=fix))


def require_positive(config: object, *names: str) -> None:
    """Raise `ConfigError` unless the named numbers (default: all) in `config` are above 0."""
    for name in names or vars(config):
        value = getattr(config, name)
        require(
            isinstance(value, bool) or not isinstance(value, int | float) or value > 0,
            given=f"{name}={value}",
            allowed="numbers above 0",
            fix=f"set {name} to a positive number",
        )


def require_at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    """Raise `ConfigError` unless `value` is within the limit that another field sets."""
    require(
        value <= limit,
        given=f"{name}={value} with {limit_name}={limit}",
        allowed=f"{name} of at most {limit}",
        fix=f"lower {name} or raise {limit_name}",
    )


def require_divides(divisor_name: str, divisor: int, number_name: str, number: int) -> None:
    """Raise `ConfigError` unless `divisor` divides `number`; the message lists what would."""
    require(
        divisor > 0 and number % divisor == 0,
        given=f"{number_name}={number} with {divisor_name}={divisor}",
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
            message(
                given=f"{package} {version(package)}, which lacks a name that chomp uses: {error}",
                allowed=f"versions that have it, such as {tried}, which chomp is tested with",
                fix=f"run pip install '{package}=={tried}'",
            )
        ) from error
