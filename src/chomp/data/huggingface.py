"""Datasets of the Hugging Face `datasets` library: a name on the hub, or a local folder of files.

Code that comes with a dataset is never run.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from chomp.config import fingerprint
from chomp.data.formats import Record, missing_key
from chomp.data.source_files import (
    BaseSource,
    files_of,
    hash_of_files,
    optional_package,
    refuse_download,
)
from chomp.errors import ChompError, DataError, StorageError, require
from chomp.executor import is_planning
from chomp.tokenize import show_hub_warnings_once

# Names that stand for a kind of file and not for a dataset.
_FILE_BUILDERS = ("arrow", "csv", "json", "parquet", "text", "webdataset", "xml")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceSource(BaseSource):
    """One split of a dataset, as `datasets.load_dataset` names it.

    Without `streaming` it is downloaded first and read by index. A stream is read as it comes:
    going on in its middle means passing over what lies before. A hub dataset without a `revision`
    may change between two runs.
    """

    kind: Literal["hf"] = "hf"
    path: str
    name: str | None = None  # the dataset's configuration, where it has several
    split: str = "train"
    revision: str | None = None  # a commit of the hub's repository; None: its newest
    data_files: tuple[str, ...] = ()  # of a generic builder: path "json" and these files
    streaming: bool = False

    def __post_init__(self) -> None:
        require(
            bool(self.path.strip() and self.split.strip()),
            f"path={self.path!r} and split={self.split!r} of a Hugging Face dataset",
            allowed="the name of a dataset or a folder, and the name of a split",
            fix="set both, for example path: allenai/c4 and split: train",
        )

    @property
    def is_stream_of_hub(self) -> bool:
        """Whether nothing of it is on this machine before it is trained on."""
        return self.streaming and not self._local_files()

    def part_names(self) -> tuple[str, ...]:
        """One part, named for dataset, configuration and split."""
        return ("/".join(filter(None, (self.path, self.name, self.split))),)

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The examples of the split, with the named columns."""
        dataset = self._load()
        with _explain_errors(f"record {part}:{first} or a later one"):
            columns = dataset.column_names  # a stream may not know them
            if columns is not None:
                for key in keys:
                    if key not in columns:
                        raise missing_key(f"{part}:{first}", key, columns)
                dataset = dataset.select_columns(list(keys))
            # A downloaded dataset refuses to skip all it has; a stream cannot know.
            if first == 0 or self.streaming or first < len(dataset):
                yield from enumerate(dataset.skip(first) if first else dataset, start=first)

    def fingerprint(self) -> str:
        """SHA-256 of names and revision; of a local dataset the files, of a downloaded one more.

        What a stream from the hub holds is not known before it has been read.
        """
        names = [self.name, self.split, self.revision]
        local = self._local_files()
        if local:
            # The library tells splits apart by the names of files.
            inner = [os.path.basename(file) for file in local]
            return hash_of_files(local, salt=f"{self.kind} {names} {inner}")
        content = None if self.streaming else self._load()._fingerprint
        return fingerprint([self.kind, self.path, list(self.data_files), *names, content])

    def _local_files(self) -> tuple[str, ...]:
        if os.path.isdir(self.path):
            return files_of([os.path.join(self.path, "**")])
        # Beside a dataset of the hub, data_files are files of its repository.
        is_local = self.path in _FILE_BUILDERS and not any("://" in f for f in self.data_files)
        return files_of(self.data_files) if is_local else ()

    def _load(self) -> Any:
        given = f"the Hugging Face dataset {self.part_names()[0]}"
        datasets = optional_package("datasets", extra="hf", purpose=given)
        show_hub_warnings_once()
        with _explain_errors(given):
            names = (self.path, self.name)
            options = {"data_files": list(self.data_files) or None, "revision": self.revision}
            # The builder reads what the dataset says of itself; its folder is there once the
            # dataset is downloaded.
            if is_planning() and not self.streaming:
                builder = datasets.load_dataset_builder(*names, **options)
                if not os.path.isdir(builder.cache_dir):
                    refuse_download(given)
            return datasets.load_dataset(
                *names, split=self.split, streaming=self.streaming, **options
            )


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Raise what the library raises as `DataError` (wrong names or content) or `StorageError`.

    A failed read may succeed when it is tried again; wrong names and content never will.
    """
    try:
        yield
    except ChompError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        # The library wraps what happened while it was building the dataset.
        cause: BaseException | None = error
        while not isinstance(cause, ValueError | KeyError | FileNotFoundError | OSError | None):
            cause = cause.__cause__
        if isinstance(cause, ValueError | KeyError | FileNotFoundError):
            raise DataError(
                f"{what} cannot be read: {reason}",
                allowed="a dataset of this name that datasets.load_dataset can read",
                fix="correct path, name, split or revision, or the dataset's files",
            ) from error
        raise StorageError(
            f"{what} cannot be read now: {reason}",
            allowed="a dataset on a hub that answers, or a local one",
            fix="check the network and the hub, or use a local dataset, and run the command again",
        ) from error
