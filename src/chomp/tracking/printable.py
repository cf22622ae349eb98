"""Text that a model wrote, made safe for a terminal: what would be obeyed is shown instead."""

# What stands in the place of a sign that cannot be shown.
_UNSHOWN = "\ufffd"


def printable(text: str, encoding: str) -> str:
    """The text without what a terminal would obey, or what `encoding` cannot say."""
    # A model of bytes may well write an escape sequence: one can move the cursor, or paste.
    signs = text.replace("\r\n", "\n")
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else _UNSHOWN for sign in signs)
    return shown.encode(encoding, "replace").decode(encoding)
