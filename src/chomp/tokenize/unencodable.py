"""The error for a text that a tokenizer cannot write: which text, where in it, and what to do."""

from chomp.errors import DataError

_CONTEXT = 20  # characters of the text shown on each side


class UnencodableText(DataError):
    """A text that has no ids; `text_index` is its number in the batch, from 0."""

    def __init__(
        self, given: str, *, allowed: str = "", fix: str = "", text_index: int = 0
    ) -> None:
        super().__init__(given, allowed=allowed, fix=fix)
        self.text_index = text_index


def unencodable(
    index: int, text: str, *, start: int, end: int, why: str, offset: int = 0
) -> UnencodableText:
    """The error for characters `start` to `end` of text number `index` of a batch.

    `offset`: where `text` begins, if it is a piece of a longer one.
    """
    around = text[max(0, start - _CONTEXT) : end + _CONTEXT]
    piece = text[start:end][:_CONTEXT]
    code = f" (U+{ord(piece):04X})" if len(piece) == 1 else ""
    # `ascii` where a character is half of a pair: such a message could not be printed otherwise.
    return UnencodableText(
        f"character {offset + start}: {_shown(piece)}{code} {why}, in {_shown(around)}",
        allowed="texts whose characters all have ids",
        fix="use a tokenizer that can write any text (byte-level or with byte fallback), or "
        "remove such characters from the documents",
        text_index=index,
    )


def lone_surrogate(index: int, text: str, offset: int = 0) -> UnencodableText | None:
    """The error for a text that is no Unicode (half of a surrogate pair); None if it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = "is half of a surrogate pair, which UTF-8 cannot hold"
        at = error.start
        return unencodable(index, text, start=at, end=at + 1, why=why, offset=offset)
    return None


def _shown(text: str) -> str:
    return repr(text) if text.isprintable() else ascii(text)
