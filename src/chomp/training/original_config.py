"""`config_original.yaml` of a run folder: the file a run was started with, as somebody wrote it.

`chomp train` hands its file on to the process that trains. It says nothing of the run that the
config does not say, so it is no part of any config: the environment carries it, to processes that
this one starts and to those on Ray. It holds no secret: it was blotted out before it set out.
"""

import base64
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from chomp.errors import ConfigError
from chomp.storage import exists, join, read_text, write_text_atomic
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tracking.run_files import ORIGINAL_CONFIG

VARIABLE = "CHOMP_ORIGINAL_CONFIG"
# Linux starts no process with a longer variable (128 KiB with its name); ten times that of YAML
# comes down to less.
_MAX_CHARACTERS = 120_000

_log = logging.getLogger(__name__)


def original_config() -> str | None:
    """The file that this process was started for; None: it was started without one."""
    packed = os.environ.get(VARIABLE)
    if not packed:
        return None
    try:
        return zlib.decompress(base64.b64decode(packed, validate=True)).decode()
    except (ValueError, zlib.error) as error:
        raise ConfigError(
            f"{VARIABLE}, which does not hold a packed file: {error}",
            allowed="what `chomp train` puts there",
            fix=f"unset {VARIABLE}",
        ) from error


@contextmanager
def handed_on(text: str | None) -> Iterator[None]:
    """Let runs that start inside keep `text` as their original config; None: they have no file."""
    before = os.environ.pop(VARIABLE, None)
    # Packed, it is plain ASCII whatever the locale, and short.
    packed = "" if text is None else base64.b64encode(zlib.compress(text.encode())).decode()
    if len(packed) > _MAX_CHARACTERS:
        _log.warning("the config file is too long to be kept: %s has all fields", ORIGINAL_CONFIG)
    elif packed:
        os.environ[VARIABLE] = packed
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def write_original(folder: str, text: str, *, attempt: int) -> None:
    """The folder's original config is `text`; another one that it had is kept beside it.

    What held before attempt 3 is `config_original.before-3.yaml`.
    """
    path = join(folder, ORIGINAL_CONFIG)
    before = read_text(path, max_bytes=MAX_TEXT_BYTES) if exists(path) else text
    aside = join(folder, f"config_original.before-{attempt}.yaml")
    # One that is there is of a start that left a row: the file of the start after it, which left
    # none and so had this same number, trained nothing.
    if before != text and not exists(aside):
        write_text_atomic(aside, before)
    write_text_atomic(path, text)
