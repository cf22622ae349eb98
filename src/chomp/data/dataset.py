"""Examples by number: example n of a run is a pure function of config, seed and n."""

import hashlib
from functools import lru_cache

import numpy as np
from jaxtyping import Int

from chomp.data.config import LmComponentConfig, LmDataConfig
from chomp.data.documents import Split
from chomp.data.examples import GrugLmExample
from chomp.data.mixture import Mixture
from chomp.data.permutation import Permutation
from chomp.data.rows import ConcatRows
from chomp.data.store import TokenStore
from chomp.errors import DataError, message
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.tokenize import Tokenizer


class TrainDataset:
    """The mixture of a run's components, each shuffled anew every epoch."""

    def __init__(
        self, config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int
    ) -> None:
        self.config = config
        self.mixture = Mixture(config.weights)
        self.seq_len = seq_len
        self._seed = seed
        self._eos_id = tokenizer.eos_id
        self._rows = {
            name: ConcatRows(_open(name, config.components[name], "train", tokenizer), seq_len)
            for name in self.mixture.names
        }
        self._permutation = lru_cache(maxsize=64)(self._new_permutation)

    def examples(self, start: int, stop: int) -> GrugLmExample:
        """Examples start..stop-1 of the run, as numpy rows in that order."""
        components, positions = self.mixture.assign(start, stop)
        tokens = np.empty((stop - start, self.seq_len), np.int32)
        segments = np.empty((stop - start, self.seq_len), np.int32)
        for i, name in enumerate(self.mixture.names):
            mine = components == i
            if mine.any():
                tokens[mine], segments[mine] = self._rows[name].read(
                    self._shuffled(name, positions[mine])
                )
        return GrugLmExample.from_rows(
            tokens,
            segments,
            eos_id=self._eos_id,
            mask_boundary_loss=self.config.mask_boundary_loss,
            train_on_eos=self.config.train_on_eos,
        )

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which tokens example n has."""
        parts = (self._seed, self.seq_len, self.mixture.proportions)
        digest = hashlib.sha256(repr(parts).encode())
        for rows in self._rows.values():
            # Where documents end tells apart what two versions of chomp made of one source.
            digest.update(repr(rows.store.manifest).encode() + rows.store.document_ends.tobytes())
        return digest.hexdigest()

    def epochs(self, examples: int) -> dict[str, float]:
        """How many times each component has been read once that many examples are served."""
        counts = self.mixture.counts_before(examples)
        return {
            name: count / self._rows[name].num_rows
            for name, count in zip(self.mixture.names, counts, strict=True)
        }

    def _shuffled(self, name: str, positions: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        size = self._rows[name].num_rows
        rows = np.empty_like(positions)
        epochs = positions // size
        for epoch in np.unique(epochs):
            mine = epochs == epoch
            rows[mine] = self._permutation(name, int(epoch))(positions[mine] % size)
        return rows

    def _new_permutation(self, name: str, epoch: int) -> Permutation:
        # Keyed by name: adding or renaming another component moves nothing here.
        return Permutation(self._rows[name].num_rows, f"{self._seed}/{name}/{epoch}")


class EvalDataset:
    """The held-out rows of one component, in order, padded to whole batches."""

    def __init__(
        self, name: str, config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int
    ) -> None:
        component = config.components[name]
        self.name = name
        self.tags = (name, *component.tags)
        self._config = config
        self._eos_id = tokenizer.eos_id
        self._rows = ConcatRows(
            _open(name, component, "validation", tokenizer), seq_len, is_eval=True
        )

    @property
    def num_rows(self) -> int:
        """Rows that hold every held-out token once as a target."""
        return self._rows.num_rows

    def beginning(self, num_tokens: int) -> list[int]:
        """The first tokens of the first held-out document, without its end: a prompt."""
        store = self._rows.store
        length = max(min(num_tokens, int(store.document_ends[0]) - 1), 1)
        return store.read_windows(np.zeros(1, np.int64), length)[0].tolist()

    def batch(self, index: int, batch_size: int) -> GrugLmExample:
        """Batch `index` of rows; past the last row, rows that count for nothing."""
        start = min(index * batch_size, self.num_rows)
        rows = np.arange(start, min(start + batch_size, self.num_rows))
        tokens = np.zeros((batch_size, self._rows.seq_len), np.int32)
        segments = np.full(tokens.shape, PAD_SEGMENT, np.int32)
        tokens[: len(rows)], segments[: len(rows)] = self._rows.read(rows)
        return GrugLmExample.from_rows(
            tokens,
            segments,
            eos_id=self._eos_id,
            mask_boundary_loss=self._config.mask_boundary_loss,
            train_on_eos=True,
        )


def build_train_dataset(
    config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int
) -> TrainDataset:
    """The training examples of a run. Opens every store, so damage shows before step 0."""
    return TrainDataset(config, tokenizer, seq_len=seq_len, seed=seed)


def build_eval_datasets(
    config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int
) -> list[EvalDataset]:
    """The held-out part of every component, in the order of names."""
    return [
        EvalDataset(name, config, tokenizer, seq_len=seq_len) for name in sorted(config.components)
    ]


def _open(
    name: str, component: LmComponentConfig, split: Split, tokenizer: Tokenizer
) -> TokenStore:
    path = component.train_store if split == "train" else component.validation_store
    if path is None:
        raise DataError(
            message(
                given=f"component {name!r} has no {split}_store",
                allowed="the folder of a built token store",
                fix="let the launch file build it, or set "
                f"data.components.{name}.{split}_store to one",
            )
        )
    return TokenStore.open(path, tokenizer_hash=tokenizer.content_hash)
