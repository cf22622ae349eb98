"""A process that only reads batches of one store, and says what memory it took.

    python -m benchmarks.resident_memory STORE BATCHES

Prints one JSON object: the most bytes that were resident, those after the imports alone, and tokens
per second. Rows are shuffled over the whole store, so nearly each is from a chunk that was not read
before, and most from a shard that is not open.
"""

import json
import sys
import time

from chomp.data import (
    BatchSchedule,
    LmComponentConfig,
    LmDataConfig,
    build_train_dataset,
    build_train_loader,
)
from chomp.mesh import MeshConfig, create_mesh
from chomp.tokenize import ByteTokenizer

BATCH_SIZE, SEQ_LEN = 64, 2048


def peak_bytes() -> int:
    """The most that was resident in this process since it began."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def read_batches(store: str, count: int) -> float:
    """Read the first batches of a run that trains on the store; tokens per second."""
    component = LmComponentConfig(train_store=store, validation_store=store)
    dataset = build_train_dataset(
        LmDataConfig(components={"large": component}),
        ByteTokenizer(),
        seq_len=SEQ_LEN,
        seed=0,
        batches=BatchSchedule(BATCH_SIZE),
    )
    loader = build_train_loader(dataset, create_mesh(MeshConfig()))
    begin = time.perf_counter()
    for step in range(count):
        loader.host_batch(step)
    return count * BATCH_SIZE * SEQ_LEN / (time.perf_counter() - begin)


if __name__ == "__main__":
    imported = peak_bytes()
    speed = read_batches(sys.argv[1], int(sys.argv[2]))
    found = {"peak": peak_bytes(), "imported": imported, "tokens_per_second": speed}
    print(json.dumps(found))
