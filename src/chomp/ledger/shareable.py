"""Text that may be committed: no secret, no password, and no folder of somebody's machine."""

import re

from chomp.storage import name_of
from chomp.storage.secrets import redacted

# Folders from a root, a home, above here or at an address; not `eval/loss`, nor `./x`.
_FOLDERS = re.compile(
    r"(?<![\w./~:])(?:(?:\.\./)+|~\w*/|/|[A-Za-z][\w+.-]*://)(?:[^\s'\",;=\[\]{}()/]+/)+"
)


def shareable(text: str) -> str:
    """The text with secrets blotted out and every such path cut to its last name."""
    return _FOLDERS.sub("…/", redacted(text))


def side_name(text: str) -> str:
    """What one side is called: a name, or the last one of a path or an address."""
    return name_of(redacted(text)) if "/" in text else redacted(text)
