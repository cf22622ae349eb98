"""Which special token ends a document and which begins one: by id, by its text, or by custom."""

from collections.abc import Mapping

from chomp.errors import DataError

# In the vocabularies of GPT-2, Llama 3, SentencePiece, Gemma and BERT.
# Not "<|end|>" and "<|eot_id|>": those end a turn of a chat, in vocabularies that have both.
USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_SHOWN = 12  # special tokens listed in an error; some vocabularies have hundreds


def end_id(named: int | str | None, specials: Mapping[int, str], *, source: str) -> int:
    """The id that ends a document: the one named, or the only one with a usual name."""
    if named is not None:
        return _named_id(named, "end-of-document", specials, source=source)
    found = {i: name for i, name in specials.items() if name in USUAL_ENDS}
    if len(found) == 1:
        return next(iter(found))
    raise DataError(
        f"tokenizer {source}, in which {_listed(found) or 'no special token'} "
        f"{'each have' if found else 'has'} a usual name for the end of a document",
        allowed=f"exactly one such token, or a named one; special tokens: {_choice(specials)}",
        fix="name the token that ends a document, by id or text: eos=...",
    )


def begin_id(named: int | str | None, specials: Mapping[int, str], *, source: str) -> int | None:
    """The id that begins a document; None unless one is named."""
    # No custom here: the vocabularies that have such a token are as often trained without it.
    if named is None:
        return None
    return _named_id(named, "beginning-of-document", specials, source=source)


def _named_id(named: int | str, role: str, specials: Mapping[int, str], *, source: str) -> int:
    for token_id, name in specials.items():
        if named in (token_id, name):
            return token_id
    what = f"{role} id {named}" if isinstance(named, int) else f"{role} token {named!r}"
    raise DataError(
        f"tokenizer {source}: {what} is not one of its special tokens",
        allowed=f"a special token: {_choice(specials)}",
        fix="name one of these, by id or text",
    )


def _choice(specials: Mapping[int, str]) -> str:
    return _listed(specials) or "there is none"


def _listed(specials: Mapping[int, str]) -> str:
    shown = [f"{i} ({specials[i]})" for i in sorted(specials)]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
