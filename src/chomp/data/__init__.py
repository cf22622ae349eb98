"""From documents to the batch of step n, exactly."""

from chomp.data.batch_schedule import BatchSchedule
from chomp.data.config import (
    LmComponentConfig,
    LmDataConfig,
    MixtureStage,
    PackingConfig,
    PackingMode,
)
from chomp.data.dataset import TrainDataset, build_train_dataset, mixture_of
from chomp.data.documents import (
    Document,
    LocatedDocument,
    Position,
    Span,
    Split,
    documents_of_split,
    is_held_out,
)
from chomp.data.eval_dataset import EvalDataset, EvalRows, build_eval_datasets
from chomp.data.examples import GrugLmExample
from chomp.data.first_documents import early_tokenizer, read_first_documents
from chomp.data.forecast import Forecast, forecast, forecast_table
from chomp.data.loader import (
    TrainLoader,
    build_train_loader,
    iter_from_step,
    require_even_batches,
)
from chomp.data.mixture import Mixture, StopStrategy
from chomp.data.packed_rows import PackedRows, PackingRule
from chomp.data.passport import RowOrigin, Sighting, row_origin, sightings
from chomp.data.row_limits import RowLimits
from chomp.data.rows import ConcatRows, RowBatch
from chomp.data.shuffle import BlockShuffleConfig, Permutation, RowOrder
from chomp.data.sources.arrays import ArraysSource
from chomp.data.sources.embedded import embedded_documents
from chomp.data.sources.formats import ChatFormat, Format, PrebuiltFormat, TextFormat
from chomp.data.sources.source import (
    EmbeddedSource,
    HuggingFaceSource,
    JsonlSource,
    MemorySource,
    ParquetSource,
    Source,
    TextSource,
    located_documents,
    part_names,
    source_documents,
    source_fingerprint,
)
from chomp.data.steps import with_data_steps
from chomp.data.store.build import StoreBuildConfig, build_store
from chomp.data.store.encoding import EncodedBatch, encoded
from chomp.data.store.token_store import StoreIdentity, StoreManifest, TokenStore
from chomp.data.streams.stream import StreamConfig, StreamRows
from chomp.data.tokenizer_build import TokenizerBuildConfig, build_tokenizer
from chomp.data.tokenizer_config import TokenizerConfig
from chomp.data.trained_texts import TrainedTexts

__all__ = [
    "ArraysSource",
    "BatchSchedule",
    "BlockShuffleConfig",
    "ChatFormat",
    "ConcatRows",
    "Document",
    "EmbeddedSource",
    "EncodedBatch",
    "EvalDataset",
    "EvalRows",
    "Forecast",
    "Format",
    "GrugLmExample",
    "HuggingFaceSource",
    "JsonlSource",
    "LmComponentConfig",
    "LmDataConfig",
    "LocatedDocument",
    "MemorySource",
    "Mixture",
    "MixtureStage",
    "PackedRows",
    "PackingConfig",
    "PackingMode",
    "PackingRule",
    "ParquetSource",
    "Permutation",
    "Position",
    "PrebuiltFormat",
    "RowBatch",
    "RowLimits",
    "RowOrder",
    "RowOrigin",
    "Sighting",
    "Source",
    "Span",
    "Split",
    "StopStrategy",
    "StoreBuildConfig",
    "StoreIdentity",
    "StoreManifest",
    "StreamConfig",
    "StreamRows",
    "TextFormat",
    "TextSource",
    "TokenStore",
    "TokenizerBuildConfig",
    "TokenizerConfig",
    "TrainDataset",
    "TrainLoader",
    "TrainedTexts",
    "build_eval_datasets",
    "build_store",
    "build_tokenizer",
    "build_train_dataset",
    "build_train_loader",
    "documents_of_split",
    "early_tokenizer",
    "embedded_documents",
    "encoded",
    "forecast",
    "forecast_table",
    "is_held_out",
    "iter_from_step",
    "located_documents",
    "mixture_of",
    "part_names",
    "read_first_documents",
    "require_even_batches",
    "row_origin",
    "sightings",
    "source_documents",
    "source_fingerprint",
    "with_data_steps",
]
