"""The tokenizer of a run: which one, and the folder it is in once it is built."""

from dataclasses import dataclass, fields
from typing import Literal

from chomp.config import Config, setting
from chomp.errors import require
from chomp.storage import exists
from chomp.tokenize import Tokenizer, load_tokenizer, tokenizer_from_json_file
from chomp.tokenize.tokenizer import MIN_BPE_VOCAB_SIZE, ByteTokenizer

TokenizerKind = Literal["bpe", "byte", "json", "hub"]

# Which fields a kind reads, besides `path`; any other has to be left alone.
_FIELDS: dict[TokenizerKind, frozenset[str]] = {
    "bpe": frozenset({"vocab_size", "training_documents"}),
    "byte": frozenset(),
    "json": frozenset({"file", "eos", "bos"}),
    "hub": frozenset({"name", "revision", "eos", "bos"}),
}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """The tokenizer of a run. `path` is the folder of a built one; the launch file fills it in.

    `bpe` is trained on the run's own documents, `byte` needs nothing, `json` is the
    `tokenizer.json` of another model, `hub` the name of a model that has one.
    """

    kind: TokenizerKind = "bpe"
    # Of a trained BPE: every byte and the end of a document at least.
    vocab_size: int = setting(default=2048, ge=MIN_BPE_VOCAB_SIZE, lt=2**24)
    # That a BPE learns from, the first of each component; None: all. A stream may have no end.
    training_documents: int | None = setting(default=None, ge=1, lt=2**31)
    file: str | None = None  # of kind json
    name: str | None = None  # of kind hub
    revision: str | None = None  # of kind hub; None: the newest
    # Ends a document, by its id or its text; None: the usual one.
    eos: int | str | None = setting(default=None, ge=0, lt=2**24)
    # Begins it, likewise; None: nothing does.
    bos: int | str | None = setting(default=None, ge=0, lt=2**24)
    # To a run its content counts and not the place; to a step, which does not look, the place.
    path: str | None = setting(default=None, mark="cosmetic", is_versioned=True)

    def __post_init__(self) -> None:
        for kind, needed in (("json", "file"), ("hub", "name")):
            require(
                self.kind != kind or bool(getattr(self, needed)) or self.path is not None,
                f"data.tokenizer.kind={kind} without data.tokenizer.{needed}",
                allowed="the path of a tokenizer.json" if kind == "json" else "a name on the hub",
                fix=f"set data.tokenizer.{needed}",
            )
        for other in fields(self):
            is_read = other.name in ("kind", "path", *_FIELDS[self.kind])
            value = getattr(self, other.name)
            require(
                is_read or value == other.default,
                f"data.tokenizer.{other.name}={value} with data.tokenizer.kind={self.kind}",
                allowed=f"{', '.join(sorted(_FIELDS[self.kind])) or 'no other field'}",
                fix=f"remove {other.name}, or choose a kind that uses it",
            )

    @property
    def known_vocab_size(self) -> int | None:
        """How many ids it has, where that is known before it is made."""
        if self.kind == "byte":
            return ByteTokenizer.vocab_size
        if self.kind == "json" and self.file is not None and exists(self.file):
            found = tokenizer_from_json_file(self.file, eos=self.eos, bos=self.bos)
            return found.vocab_size
        return self.vocab_size if self.kind == "bpe" else None

    def load(self) -> Tokenizer:
        """The built tokenizer at `path`."""
        require(
            self.path is not None,
            "data.tokenizer.path=null",
            allowed="the folder of a built tokenizer",
            fix="start this run through a launch file, which builds the tokenizer",
        )
        return load_tokenizer(str(self.path))
