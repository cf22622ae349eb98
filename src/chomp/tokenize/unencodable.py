"""The error for a text that a tokenizer cannot write: which text, where in it, and what to do."""

from chomp.errors import DataError, message

_CONTEXT = 20  # characters of the text shown on each side


def unencodable(
    index: int, text: str, *, start: int, end: int, why: str, offset: int = 0
) -> DataError:
    """The error for characters `start` to `end` of text number `index` of a batch.

    `offset`: where `text` begins, if it is a piece of a longer one.
    """
    around = text[max(0, start - _CONTEXT) : end + _CONTEXT]
    piece = text[start:end][:_CONTEXT]
    code = f" (U+{ord(piece):04X})" if len(piece) == 1 else ""
    # `ascii` where a character is half of a pair: such a message could not be printed otherwise.
    return DataError(
        message(
            given=f"text {index} of a batch, character {offset + start}: {_shown(piece)}{code} "
            f"{why}, in {_shown(around)}",
            allowed="texts in which every character has ids of its own",
            fix="use a tokenizer that can write any text (byte-level or with byte fallback), or "
            "take such characters out of the documents",
        )
    )


def lone_surrogate(index: int, text: str, offset: int = 0) -> DataError | None:
    """The error for a text that is no Unicode (half of a surrogate pair); None if it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = "is half of a surrogate pair, which no UTF-8 text can hold"
        at = error.start
        return unencodable(index, text, start=at, end=at + 1, why=why, offset=offset)
    return None


def _shown(text: str) -> str:
    return repr(text) if text.isprintable() else ascii(text)
