"""The corpus every Python brings along: its own standard library, as source and as prose.

`code` is the source files, one document each. `prose` is what people wrote to people: the
docstrings of each file, and the topics of `help()`. A file's docstrings and its source share a
split key, so a held-out file is unseen in both components.
"""

import ast
import hashlib
import os
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

from chomp.data.documents import Document
from chomp.errors import DataError

EmbeddedPart = Literal["code", "prose"]

# Tests and third parties are not the library; `encodings` is tables of numbers; pydoc's topics
# are read as prose.
_SKIPPED_FOLDERS = frozenset(
    "test tests idle_test site-packages dist-packages __pycache__ encodings pydoc_data".split()  # noqa: SIM905 (reads better)
)
# One docstring this short is a label, not prose.
_MIN_DOCSTRING_CHARS = 40
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def embedded_documents(part: EmbeddedPart) -> Iterator[Document]:
    """The documents of one part, in the order of their paths."""
    if part == "prose":
        yield from _prose(embedded_fingerprint("prose"))
        return
    for name, text in _source_texts():
        yield Document(id=name, text=text, split_key=f"stdlib/{name}")


def embedded_fingerprint(part: EmbeddedPart) -> str:
    """SHA-256 of what the documents of a part are made from: another Python is another corpus."""
    digest = hashlib.sha256(part.encode())
    for name, text in _source_texts():
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(text.encode()).digest())
    if part == "prose":
        digest.update(_topics_text().encode())
    return digest.hexdigest()


def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _source_texts() -> Iterator[tuple[str, str]]:
    """The path of each source file below the library's folder, and its text."""
    root, files = _standard_library(), []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_FOLDERS)
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    if not files:
        raise DataError(
            f"no Python sources under {root}",
            allowed="an interpreter installed with its standard library as source files",
            fix="use a regular CPython, or give the run text files of your own",
        )
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        # Left out of documents and fingerprint alike: a few old files in another encoding, links
        # that lead nowhere, and what this user may not read.
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text.strip():
            yield path.relative_to(root).as_posix(), text


# Parsing every module takes seconds, and tokenizer and stores ask one after the other.
@lru_cache(maxsize=1)
def _prose(fingerprint: str) -> tuple[Document, ...]:
    """The documents of the standard library as it is now; `fingerprint` is what "now" is."""
    documents = []
    for name, source in _source_texts():
        with suppress(SyntaxError, ValueError):  # templates and fixtures that are not modules
            found = (
                ast.get_docstring(node)
                for node in ast.walk(_parse(source))
                if isinstance(node, _DOCUMENTED)
            )
            # An escape like "\ud800" stands for a character that UTF-8 cannot hold.
            text = "\n\n".join(
                each.encode("utf-8", "replace").decode()
                for each in found
                if each and len(each) >= _MIN_DOCSTRING_CHARS
            )
            if text:
                key = f"stdlib/{name}"
                documents.append(Document(id=f"{name}#docstrings", text=text, split_key=key))
    # Read, not imported: data is never executed.
    for node in _parse(_topics_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in sorted(ast.literal_eval(node.value).items()):
                key = f"topic/{topic}"
                documents.append(Document(id=key, text=text, split_key=key))
            return tuple(documents)
    raise _no_topics("it assigns no dictionary")


def _topics_text() -> str:
    try:
        return _topics_file().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _no_topics(error) from error


def _topics_file() -> Path:
    return _standard_library() / "pydoc_data" / "topics.py"


def _no_topics(reason: object) -> DataError:
    return DataError(
        f"no help() topics in {_topics_file()}: {reason}",
        allowed="an interpreter that has pydoc_data",
        fix="install the distribution's full Python (on Debian: libpython3-stdlib)",
    )


def _parse(source: str) -> ast.Module:
    # Old escapes such as "\d" are warned about. Under -W error the file would not parse, and the
    # corpus would depend on a flag.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
