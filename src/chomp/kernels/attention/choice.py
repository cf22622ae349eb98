"""Which backend computes attention: a static choice, logged, and never a silent fallback.

A backend asked for by name runs or is refused. `auto` takes the fast one of the platform; where
that one cannot do the call, it takes the chunked one and says so.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from chomp.errors import ConfigError
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.cudnn import unsupported_by_cudnn
from chomp.kernels.attention.cudnn_packed import unsupported_by_cudnn_packed
from chomp.kernels.attention.splash import unsupported_by_splash

# tokamax is left out: it was not to be had where these were measured, so nothing is known of its
# speed or of its masks beside them.
Backend = Literal["auto", "reference", "chunked", "cudnn", "cudnn_packed", "splash"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """The backend that runs, why, and whether a faster one was expected."""

    name: Backend
    reason: str
    is_fallback: bool = False


# Why a backend cannot do a call. The other two can do every call, on every platform.
_LIMITS: dict[Backend, Callable[[AttentionCall], str | None]] = {
    "cudnn": unsupported_by_cudnn,
    "cudnn_packed": unsupported_by_cudnn_packed,
    "splash": unsupported_by_splash,
}


def unsupported(backend: Backend, call: AttentionCall) -> str | None:
    """Why `backend` cannot do the call, with what it could do; None if it can."""
    if backend not in _LIMITS:
        return None
    if call.value_dim is not None and call.value_dim % call.head_dim:
        # Values of several widths go in as several heads (`wide_values`).
        return f"it takes values of a multiple of head_dim={call.head_dim}, not {call.value_dim}"
    return _LIMITS[backend](call)


def choose_backend(call: AttentionCall, requested: Backend = "auto") -> BackendChoice:
    """The backend for a call: the one requested, or with `auto` the best that can do it."""
    if requested != "auto":
        _require_runs(requested, call)
        return BackendChoice(name=requested, reason="asked for by name")
    if call.platform == "cpu":
        return BackendChoice(name="chunked", reason="the fast one on cpu")
    best = _best_backend(call)
    if best is None:
        reason = f"no faster one is known for the platform {call.platform}"
        return BackendChoice(name="chunked", reason=reason, is_fallback=True)
    if (limit := unsupported(best, call)) is not None:
        reason = f"{best} cannot do this call: {limit}"
        return BackendChoice(name="chunked", reason=reason, is_fallback=True)
    return BackendChoice(name=best, reason=f"the fast one on {call.platform}")


@cache
def log_choice(choice: BackendChoice) -> None:
    """Say which backend runs, once for each choice; a fallback is a warning."""
    text = f"attention backend {choice.name}: {choice.reason}"
    if choice.is_fallback:
        _log.warning(
            "%s. This is slower. Set model.attention to the backend you expect to make it an "
            "error, or to chunked to be content with it.",
            text,
        )
    else:
        _log.info("%s", text)


def _best_backend(call: AttentionCall) -> Backend | None:
    if call.platform == "gpu":
        return "cudnn_packed" if call.has_documents else "cudnn"
    return "splash" if call.platform == "tpu" else None


def _require_runs(requested: Backend, call: AttentionCall) -> None:
    limit = unsupported(requested, call)
    if limit is None:
        return
    names = [name for name in get_args(Backend) if name != "auto"]
    works = ", ".join(name for name in names if unsupported(name, call) is None)
    raise ConfigError(
        f"attention backend {requested}, which cannot do this call: {limit}",
        allowed=f"backends that can: {works}",
        fix="set model.attention to one of them, or to auto",
    )
