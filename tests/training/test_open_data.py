"""The data of a run, opened by several processes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from chomp.config import config_to_mapping
from tests import tiny
from tests.process_gang import Gang

# Opens the data of a run and says which folders it made, and what the first batch is.
OPEN = """
import json, sys
from pathlib import Path

made = []
sys.addaudithook(lambda event, about: made.append(str(about[0])) if event == "os.mkdir" else None)

from chomp.config import config_from_mapping
from chomp.data import LmDataConfig
from chomp.training import open_data
from chomp.mesh import MeshConfig, create_mesh, join_processes
from tests import tiny

join_processes()
data = config_from_mapping(LmDataConfig, json.loads(sys.argv[1]))
config = tiny.run_config(data, Path("nowhere"))
mesh = create_mesh(MeshConfig(data=2))
found = open_data(config, mesh)
plans = [path for path in made if "/packing/" in path]
print(json.dumps([plans, found.loader.host_batch(0).tokens.tolist()]))
"""


def test_one_process_alone_writes_the_plans_of_packed_rows(tmp_path: Path):
    data = replace(tiny.build_data(tmp_path), packing_mode="packed")
    (tmp_path / "program.py").write_text(OPEN)
    gang = Gang(
        tmp_path / "program.py",
        json.dumps(config_to_mapping(data)),
        count=2,
        folder=tmp_path / "said",
        imports=("tests.tiny",),
    )
    assert gang.exit_codes() == [0, 0], gang.errors()
    (first, tokens), (second, same) = map(json.loads, gang.outputs())
    assert first
    assert second == []
    np.testing.assert_array_equal(tokens, same)
