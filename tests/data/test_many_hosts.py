"""Several processes with one mesh over their devices: each reads its rows, all have the batch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from number_stores import NUMBERS, number_data

from chomp.config import config_to_mapping
from chomp.data import BatchSchedule, build_train_dataset
from chomp.launch.gang import free_port

HOST = """
import json, sys
import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, number, config = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
jax.distributed.initialize(address, num_processes=2, process_id=number)

from chomp.config import config_from_mapping
from chomp.data import BatchSchedule, LmDataConfig, build_train_dataset, build_train_loader
from chomp.data import iter_from_step
from chomp.mesh import MeshConfig, create_mesh, local_rows
from number_stores import NUMBERS

dataset = build_train_dataset(
    config_from_mapping(LmDataConfig, config), NUMBERS, seq_len=8, seed=0,
    batches=BatchSchedule(8, grad_accum=2),
)
mesh = create_mesh(MeshConfig(data=4))
loader = build_train_loader(dataset, mesh)
for step, batch in enumerate(iter_from_step(loader, 3, 6), start=3):
    assert batch.tokens.shape == (2, 8, 8)
    for shard in batch.tokens.addressable_shards:
        rows = list(range(*shard.index[1].indices(8)))
        print(json.dumps([step, rows, shard.data.tolist()]))
print(json.dumps(local_rows(mesh, 8).tolist()), file=sys.stderr)
"""


def test_two_hosts_have_the_batches_of_one_and_read_half_each(tmp_path: Path):
    data = number_data(tmp_path, {"a": [200, 150], "b": [90]})
    address = f"127.0.0.1:{free_port()}"
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, address, str(number), json.dumps(config_to_mapping(data))],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [host.communicate(timeout=300) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    read = [json.loads(stderr.splitlines()[-1]) for _, stderr in outputs]
    assert sorted([*read[0], *read[1]]) == list(range(8))
    dataset = build_train_dataset(
        data, NUMBERS, seq_len=8, seed=0, batches=BatchSchedule(8, grad_accum=2)
    )
    found = [json.loads(line) for stdout, _ in outputs for line in stdout.splitlines()]
    assert len(found) == 3 * 4
    for step, rows, tokens in found:
        expected = dataset.examples(16 * step, 16 * (step + 1)).tokens.reshape(2, 8, 8)
        np.testing.assert_array_equal(np.asarray(tokens), expected[:, rows])
