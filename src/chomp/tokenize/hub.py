"""A tokenizer by its name on the Hugging Face hub. What counts is still its content, not the name.

The download and its cache are the hub library's; `HF_HUB_OFFLINE=1` uses the cache alone.
"""

import logging

from chomp.errors import ChompError, DataError, StorageError
from chomp.tokenize.json_tokenizer import JsonTokenizer
from chomp.tokenize.trial import read_rules


def load_hub_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    eos: int | str | None = None,
    bos: int | str | None = None,
    is_patient: bool = True,
) -> JsonTokenizer:
    """The `tokenizer.json` of the model `name` on the hub, of a branch, tag or commit.

    A branch moves: a later load of the same name can be another tokenizer, with another hash.
    Raises `StorageError` if no hub answers and the cache does not have it, else `DataError`.
    `is_patient`: a hub that does not answer is asked for another half a minute.
    """
    text = _downloaded(name, revision, is_patient=is_patient)
    return JsonTokenizer(text, eos=eos, bos=bos, source=f"{name} (hub)")


def show_hub_warnings_once() -> None:
    """Take away the handlers that the hub libraries give themselves when they are imported.

    Their messages also go to the handlers of Python's root logger, and would be shown twice.
    """
    for name in ("huggingface_hub", "datasets"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if type(handler) is logging.StreamHandler:  # a subclass is somebody's own
                logger.removeHandler(handler)


def _downloaded(name: str, revision: str | None, *, is_patient: bool) -> str:
    # What the tokenizers library's own `from_pretrained` does, but the file as it was written:
    # that library renumbers tokens, which has to be seen.
    try:
        import huggingface_hub as hub  # noqa: PLC0415  optional, and slow to import

        cached = hub.try_to_load_from_cache(name, "tokenizer.json", revision=revision)
        show_hub_warnings_once()  # only now: the library imports its parts when they are used
        if not (is_patient or isinstance(cached, str)):
            hub.get_hf_file_metadata(hub.hf_hub_url(name, "tokenizer.json", revision=revision))
        path = hub.hf_hub_download(name, "tokenizer.json", revision=revision)
    except ImportError as error:
        install = "install it: pip install huggingface_hub"
        raise _unreachable(name, revision, error, fix=install) from error
    except Exception as error:  # the hub has its own errors, and lets the network's through
        access = "check the name, the network and your access"
        raise _unreachable(name, revision, error, fix=access) from error
    return read_rules(path)


def _unreachable(name: str, revision: str | None, error: Exception, *, fix: str) -> ChompError:
    # The hub's errors go on for many lines; the first says what happened.
    reason = next(iter(str(error).splitlines()), "").rstrip(".")
    # Wrong names never will be right, nor what the hub has refused; without an answer it may be.
    is_wrong = isinstance(error, ValueError | ImportError) or hasattr(error, "response")
    return (DataError if is_wrong else StorageError)(
        f"hub tokenizer {name!r}, revision {revision or 'main'!r}: "
        f"{type(error).__name__}: {reason}",
        allowed="the name of a model with a tokenizer.json, on a hub that can be reached",
        fix=f"{fix}; or download its tokenizer.json on another machine and give its path",
    )
