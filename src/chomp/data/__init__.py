"""From documents to the batch of step n, exactly."""

from chomp.data.build_steps import (
    TokenizerBuildConfig,
    build_tokenizer,
    early_tokenizer,
    read_first_documents,
    with_data_steps,
)
from chomp.data.config import (
    LmComponentConfig,
    LmDataConfig,
    LmValidationConfig,
    MixtureStage,
    PackingConfig,
    StreamConfig,
    TokenizerConfig,
)
from chomp.data.contamination import contamination_summary
from chomp.data.dataset import (
    EvalDataset,
    EvalRows,
    TrainDataset,
    TrainedTexts,
    build_eval_datasets,
    build_train_dataset,
    mixture_of,
)
from chomp.data.documents import (
    Document,
    LocatedDocument,
    Position,
    Span,
    Split,
    documents_of_split,
    is_held_out,
)
from chomp.data.examples import GrugLmExample, RowLimits
from chomp.data.forecast import MAX_EPOCHS, Forecast, forecast, forecast_table
from chomp.data.formats import ChatFormat, Format, PrebuiltFormat, TextFormat
from chomp.data.huggingface import HuggingFaceSource
from chomp.data.loader import (
    TrainLoader,
    build_train_loader,
    iter_from_step,
    require_even_batches,
)
from chomp.data.mixture import (
    BatchSchedule,
    Mixture,
    first_difference,
    mixture_length,
    require_served,
)
from chomp.data.order import BlockShuffleConfig, Permutation, RowOrder
from chomp.data.packing import PackingRule, cut_documents, pack, pack_documents
from chomp.data.provenance import DocumentPart, RowOrigin, occurrences, row_origin
from chomp.data.rows import ConcatRows, PackedRows, RowBatch, require_row_len
from chomp.data.sources import (
    ArraysSource,
    EmbeddedSource,
    JsonlSource,
    MemorySource,
    ParquetSource,
    Source,
    TextSource,
    located_documents,
    source_documents,
    source_fingerprint,
)
from chomp.data.stdlib_corpus import embedded_documents
from chomp.data.store.build import (
    EncodedBatch,
    StoreBuildConfig,
    StoreWriter,
    build_store,
    encode_documents,
    encode_in_order,
)
from chomp.data.store.store import (
    MANIFEST,
    PARTS,
    TOKENS,
    StoreIdentity,
    StoreManifest,
    TokenStore,
    read_manifest,
)
from chomp.data.store.verify import verify_store
from chomp.data.stream import StreamRows

__all__ = [
    "MANIFEST", "MAX_EPOCHS", "PARTS", "TOKENS", "ArraysSource", "BatchSchedule",
    "BlockShuffleConfig", "ChatFormat", "ConcatRows", "Document", "DocumentPart",
    "EmbeddedSource", "EncodedBatch", "EvalDataset", "EvalRows", "Forecast", "Format",
    "GrugLmExample", "HuggingFaceSource", "JsonlSource", "LmComponentConfig", "LmDataConfig",
    "LmValidationConfig", "LocatedDocument", "MemorySource", "Mixture", "MixtureStage",
    "PackedRows", "PackingConfig", "PackingRule", "ParquetSource", "Permutation", "Position",
    "PrebuiltFormat", "RowBatch", "RowLimits", "RowOrder", "RowOrigin", "Source", "Span", "Split",
    "StoreBuildConfig", "StoreIdentity", "StoreManifest", "StoreWriter", "StreamConfig",
    "StreamRows", "TextFormat", "TextSource", "TokenStore", "TokenizerBuildConfig",
    "TokenizerConfig", "TrainDataset", "TrainLoader", "TrainedTexts", "build_eval_datasets",
    "build_store", "build_tokenizer", "build_train_dataset", "build_train_loader",
    "contamination_summary", "cut_documents", "documents_of_split", "early_tokenizer",
    "embedded_documents", "encode_documents", "encode_in_order", "first_difference", "forecast",
    "forecast_table", "is_held_out", "iter_from_step", "located_documents", "mixture_length",
    "mixture_of", "occurrences", "pack", "pack_documents", "read_first_documents",
    "read_manifest", "require_even_batches", "require_row_len", "require_served", "row_origin",
    "source_documents", "source_fingerprint", "verify_store", "with_data_steps",
]  # fmt: skip
