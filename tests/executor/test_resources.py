"""What a step asks of a machine: refused where it cannot be, and never part of what the step is."""

from dataclasses import replace
from typing import Any

import pytest
from executor_samples import step

from chomp.config import config_from_mapping
from chomp.errors import ConfigError
from chomp.executor import Resources, plan_steps


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        ({"processes": 0}, "processes=0"),
        ({"processes": 1.5}, "Resources: processes=1.5 (a number)"),
        ({"cpus": -1}, "cpus=-1"),
        ({"gpus": -1}, "gpus=-1"),
        ({"gpus": True}, "Resources: gpus=true (a boolean)"),
        ({"memory_gb": 0}, "memory_gb=0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"custom": {"TPU": 0}}, "custom.TPU=0"),
        ({"custom": {" ": 1}}, "resources.custom with the name [' ']"),
        ({"custom": "TPU"}, "Resources: custom='TPU' (a string)"),
    ],
)
def test_what_no_machine_can_give_is_refused(wrong: dict[str, Any], given: str):
    with pytest.raises(ConfigError) as caught:
        replace(step("own"), resources=Resources(**wrong))
    assert caught.value.given == given
    assert caught.value.allowed


def test_an_unknown_resource_in_a_file_names_the_nearest_known():
    with pytest.raises(ConfigError, match=r"gpu.*did you mean gpus"):
        config_from_mapping(Resources, {"gpu": 1})
    found = config_from_mapping(Resources, {"processes": 2, "custom": {"TPU": 4}})
    assert (found.processes, found.custom) == (2, {"TPU": 4.0})


def test_resources_of_a_step_are_no_mapping_and_no_part_of_its_identity():
    asked = replace(step("own"), resources=Resources(processes=2, gpus=8, custom={"TPU": 4}))
    paths = {plan_steps([each], prefix="nowhere")[0].path for each in (step("own"), asked)}
    assert len(paths) == 1
    with pytest.raises(ConfigError, match=r"step 'own' with resources=\{'gpus': 1\}"):
        replace(step("own"), resources={"gpus": 1})
