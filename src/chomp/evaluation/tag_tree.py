"""Metrics of datasets under tags, and of the tags that lie above tags such as `a/b`."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from chomp.errors import require
from chomp.evaluation.document_sums import DocumentSums


def tagged_metrics(
    sums: Mapping[str, DocumentSums], tags: Mapping[str, Iterable[str]], *, with_bytes: bool
) -> dict[str, float]:
    """Metrics without prefix: over everything, per tag, and per parent of tags such as `a/b`.

    A parent counts each dataset once, however many of its tags lie below; its macro averages are
    over those tags. A tag without tokens has no loss and is left out of macro averages; its token
    count says so. A parent that is a tag of datasets too has their loss as its `loss`, and what
    lies below in `micro_loss` and `macro_loss`. Errors are there from two documents on.
    """
    datasets = datasets_by_tag(tags)
    by_tag = {tag: _total(sums, names) for tag, names in datasets.items()}
    metrics: dict[str, float] = {}
    _put(metrics, "", DocumentSums.joined(sums.values()), with_bytes)
    if len(by_tag) > 1:  # over one tag it would be that tag's loss again
        _put_macro(metrics, "", list(by_tag.values()), with_bytes)
    for tag, item in by_tag.items():
        _put(metrics, f"{tag}/", item, with_bytes)
    for parent in sorted(_parents(by_tag)):
        below = [tag for tag in by_tag if tag.startswith(f"{parent}/")]
        total = _total(sums, [name for tag in below for name in datasets[tag]])
        # A tag has its `loss` from the datasets that carry it, and nothing may write over that.
        if parent not in by_tag:
            _put(metrics, f"{parent}/", total, with_bytes)
        # Without a token below there is no mean: an average over nothing would be NaN.
        if (loss := total.loss_per_token) is not None:
            metrics[f"{parent}/micro_loss"] = loss.value
            _put_macro(metrics, f"{parent}/", [by_tag[tag] for tag in below], with_bytes)
    return metrics


def datasets_by_tag(tags: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The datasets of each tag that some dataset has."""
    by_tag: dict[str, list[str]] = {}
    for name, own in tags.items():
        for tag in own:
            by_tag.setdefault(tag, []).append(name)
    return by_tag


def require_tags(tags: Mapping[str, Iterable[str]]) -> None:
    """Refuse tags from which no metric name of their own can be made."""
    # Beside `ema/`, an empty part would make two tags one name: `a//b` has the parent `a/`.
    for name, own in tags.items():
        for tag in own:
            parts = tag.split("/")
            require(
                all(parts) and parts[0] != "ema",
                f"the tag {tag!r} of the evaluation dataset {name!r}",
                allowed="words joined by single slashes, the first not `ema`, where the metrics of "
                "averaged weights are",
                fix="rename it, as in `text/web`: it becomes eval/text/web/loss",
            )


def _total(sums: Mapping[str, DocumentSums], names: Iterable[str]) -> DocumentSums:
    """The sums of the named datasets, each counted once."""
    return DocumentSums.joined(sums[name] for name in dict.fromkeys(names))


def _parents(tags: Iterable[str]) -> set[str]:
    return {
        "/".join(parts[:depth])
        for parts in (tag.split("/") for tag in tags)
        for depth in range(1, len(parts))
    }


def _put(metrics: dict[str, float], prefix: str, item: DocumentSums, with_bytes: bool) -> None:
    metrics[f"{prefix}tokens"] = item.num_tokens
    metrics[f"{prefix}documents"] = float(item.num_documents)
    found = {"loss": item.loss_per_token, "bpb": item.bits_per_byte if with_bytes else None}
    for name, ratio in found.items():
        if ratio is not None:
            metrics[f"{prefix}{name}"] = ratio.value
            if ratio.stderr is not None:
                metrics[f"{prefix}{name}_stderr"] = ratio.stderr


def _put_macro(
    metrics: dict[str, float], prefix: str, items: Sequence[DocumentSums], with_bytes: bool
) -> None:
    """Means over the items that have tokens, and over those that have bytes: each counts once."""
    losses = [ratio.value for item in items if (ratio := item.loss_per_token) is not None]
    if losses:
        metrics[f"{prefix}macro_loss"] = float(np.mean(losses))
    in_bytes = [ratio.value for item in items if (ratio := item.bits_per_byte) is not None]
    if with_bytes and in_bytes:
        metrics[f"{prefix}macro_bpb"] = float(np.mean(in_bytes))
