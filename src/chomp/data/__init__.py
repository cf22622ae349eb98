"""From documents to the batch of step n, exactly."""

from chomp.data.build import StoreBuildConfig, TokenizerBuildConfig, build_store, build_tokenizer
from chomp.data.config import LmComponentConfig, LmDataConfig, TokenizerConfig
from chomp.data.dataset import EvalDataset, TrainDataset, build_eval_datasets, build_train_dataset
from chomp.data.documents import Document, Split, documents_of_split, is_held_out
from chomp.data.embedded import embedded_documents
from chomp.data.examples import GrugLmExample
from chomp.data.loader import TrainLoader, build_train_loader, iter_from_step
from chomp.data.mixture import Mixture
from chomp.data.permutation import Permutation
from chomp.data.rows import ConcatRows
from chomp.data.sources import (
    EmbeddedSource,
    Source,
    TextSource,
    source_documents,
    source_fingerprint,
)
from chomp.data.steps import with_data_steps
from chomp.data.store import StoreManifest, TokenStore

__all__ = [
    "ConcatRows",
    "Document",
    "EmbeddedSource",
    "EvalDataset",
    "GrugLmExample",
    "LmComponentConfig",
    "LmDataConfig",
    "Mixture",
    "Permutation",
    "Source",
    "Split",
    "StoreBuildConfig",
    "StoreManifest",
    "TextSource",
    "TokenStore",
    "TokenizerBuildConfig",
    "TokenizerConfig",
    "TrainDataset",
    "TrainLoader",
    "build_eval_datasets",
    "build_store",
    "build_tokenizer",
    "build_train_dataset",
    "build_train_loader",
    "documents_of_split",
    "embedded_documents",
    "is_held_out",
    "iter_from_step",
    "source_documents",
    "source_fingerprint",
    "with_data_steps",
]
