"""A field that has a name in another section too is one field, by whichever name it is given."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from config_samples import read
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.config import (
    Config,
    apply_overrides,
    config_from_mapping,
    config_hash,
    config_schema,
    config_to_mapping,
    config_to_yaml,
    setting,
)
from chomp.config.fields import also_names
from chomp.config.overrides import find_field
from chomp.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    steps: int = 10
    generation: int = 0  # near enough to `generate_every` to be mixed up with it


@dataclass(frozen=True, kw_only=True)
class Samples(Config):
    every: int | None = setting(default=None, also=("train.generate_every",), zero_is_null=True)
    top_p: float = setting(default=0.5, aliases=("p",), also=("train.generate_top_p",))
    tokens: int = setting(default=7, also=("train.generate_tokens", "trainer.gen_tokens"))


@dataclass(frozen=True, kw_only=True)
class Eval(Config):
    period: int | None = setting(default=None, also=("train.eval_every",), zero_is_null=True)
    batch: int = 4


@dataclass(frozen=True, kw_only=True)
class Run(Config):
    trainer: Trainer = setting(default_factory=Trainer, aliases=("train",))
    samples: Samples = field(default_factory=lambda: Samples(tokens=9))
    eval: Eval | None = setting(default_factory=lambda: Eval(batch=8), mark="cosmetic")


@dataclass(frozen=True, kw_only=True)
class Sweep(Config):
    run: Run = field(default_factory=Run)


def nested(paths: dict[str, Any]) -> dict[str, Any]:
    """A mapping of mappings from dotted paths."""
    made: dict[str, Any] = {}
    for path, value in paths.items():
        *sections, key = path.split(".")
        here = made
        for section in sections:
            here = here.setdefault(section, {})
        here[key] = value
    return made


def overrides(paths: dict[str, Any]) -> list[str]:
    return [f"{path}={'null' if value is None else value}" for path, value in paths.items()]


def refused(mapping: dict[str, Any], cls: type = Run) -> str:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(cls, mapping)
    return str(caught.value)


# The names of a field, values as they are written, and what each means.
every = (["samples.every", "SECTION.generate_every"], st.none() | st.integers(1, 9))
top_p = (["samples.top_p", "samples.p", "SECTION.generate_top_p"], st.floats(0, 1))
tokens = (["samples.tokens", "SECTION.generate_tokens", "SECTION.gen_tokens"], st.integers(0, 9))
period = (["eval.period", "SECTION.eval_every"], st.none() | st.integers(1, 9))


@settings(deadline=None)
@given(st.data(), st.sampled_from(["train", "trainer"]), st.booleans())
def test_every_name_gives_the_same_config_and_hash(
    data: st.DataObject, section: str, has_mix: bool
):
    own: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    fields = [every, top_p, tokens, period]
    for names, values in data.draw(st.lists(st.sampled_from(fields), unique_by=id)):
        name = data.draw(st.sampled_from(names)).replace("SECTION", section)
        own[names[0]] = chosen[name] = data.draw(values)
    if has_mix:  # a section that has fields of its own beside the names of others
        own[f"{section}.steps"] = chosen[f"{section}.steps"] = 3

    expected = config_from_mapping(Run, nested(own))
    found = config_from_mapping(Run, nested(chosen))
    assert found == expected
    assert config_hash(found) == config_hash(expected)
    assert config_from_mapping(Sweep, {"run": nested(chosen)}).run == expected
    changed = apply_overrides(Run(), overrides(own))
    assert apply_overrides(Run(), overrides(chosen)) == changed
    in_sweep = {f"run.{name}": value for name, value in chosen.items()}
    assert apply_overrides(Sweep(), overrides(in_sweep)).run == changed


def test_files_take_the_names_and_what_is_written_out_has_the_field_alone():
    config = read("train: {generate_every: 3, gen_tokens: 1e1}\n", Run)
    assert config == Run(samples=Samples(every=3, tokens=10))
    assert config_to_mapping(config)["trainer"] == {"steps": 10, "generation": 0}
    assert config_to_mapping(config)["samples"]["every"] == 3
    assert read(config_to_yaml(config), Run) == config


@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_zero_is_null_by_the_name_that_says_so_and_a_zero_elsewhere(zero: Any):
    paths = {"train.generate_every": zero, "train.generate_tokens": zero}
    expected = Samples(every=None, tokens=0)
    assert config_from_mapping(Run, nested(paths)).samples == expected
    changed = apply_overrides(Run(samples=Samples(every=5)), overrides(paths))
    assert changed.samples == expected
    assert config_from_mapping(Run, {"samples": {"every": 0}}).samples.every == 0
    assert apply_overrides(Run(), ["samples.every=0"]).samples.every == 0


def test_a_section_that_is_given_elsewhere_alone_keeps_its_other_fields():
    config = config_from_mapping(Run, {"train": {"eval_every": 2}})
    assert config == config_from_mapping(Run, {"eval": {"period": 2}})
    assert config == Run(eval=Eval(period=2, batch=8))


@pytest.mark.parametrize(
    ("paths", "first", "second"),
    [
        ({"train.generate_every": 1, "samples.every": 1}, "samples.every", "train.generate_every"),
        ({"trainer.eval_every": 0, "eval.period": 2}, "eval.period", "trainer.eval_every"),
        (
            {"train.gen_tokens": 1, "train.generate_tokens": 1},
            "train.generate_tokens",
            "train.gen_tokens",
        ),
        ({"train.generate_top_p": 1, "samples.p": 1}, "samples.p", "train.generate_top_p"),
    ],
)
def test_two_names_of_one_field_are_refused_by_both_names(paths, first: str, second: str):
    assert refused(nested(paths)) == (
        f"config: {first} and {second} are the same field. Allowed: one name at a time. "
        f"Fix: remove {second}."
    )


def test_a_section_given_as_an_instance_has_all_its_fields():
    mapping = {"samples": Samples(tokens=3), "train": {"generate_every": 2}}
    assert "samples.every and train.generate_every are the same field" in refused(mapping)


def test_names_that_start_at_different_depths_are_one_field_too():
    @dataclass(frozen=True, kw_only=True)
    class Part(Config):
        size: int = setting(default=1, also=("trainer.size", "outer.size"))

    @dataclass(frozen=True, kw_only=True)
    class Middle(Config):
        trainer: Trainer = field(default_factory=Trainer)
        part: Part = field(default_factory=Part)

    @dataclass(frozen=True, kw_only=True)
    class Whole(Config):
        outer: Trainer = field(default_factory=Trainer)
        middle: Middle = field(default_factory=Middle)

    for name in ("outer.size", "middle.trainer.size", "middle.part.size"):
        assert config_from_mapping(Whole, nested({name: 2})).middle.part.size == 2
        assert apply_overrides(Whole(), [f"{name}=2"]).middle.part.size == 2
    both = refused(nested({"outer.size": 2, "middle.trainer.size": 3}), Whole)
    assert "outer.size and middle.trainer.size are the same field" in both


def test_the_last_override_wins_by_whatever_name():
    texts = ["train.generate_every=2", "samples.every=3"]
    assert apply_overrides(Run(), texts).samples.every == 3
    assert apply_overrides(Run(), texts[::-1]).samples.every == 2
    turned_off = ["samples.every=3", "trainer.generate_every=0"]
    assert apply_overrides(Run(samples=Samples(every=4)), turned_off).samples.every is None


def test_a_wrong_value_is_told_by_the_name_it_was_given_by():
    text = refused({"train": {"generate_every": "often", "generate_top_p": None}})
    assert "train.generate_every='often' (a string). Allowed: an integer or null." in text
    assert "train.generate_top_p=null. Allowed: a number." in text


@pytest.mark.parametrize("nothing", [0, None])
def test_a_period_that_is_none_may_stand_beside_a_section_that_is_none(nothing: int | None):
    content = {"train": {"eval_every": nothing}, "eval": None}
    assert config_from_mapping(Run, content) == Run(eval=None)


def test_a_name_of_a_field_in_a_section_that_is_null_is_refused():
    assert refused({"train": {"eval_every": 2}, "eval": None}) == (
        "config: train.eval_every, which is eval.period, with eval=null. "
        "Allowed: train.eval_every if eval has that field. "
        "Fix: remove train.eval_every, or change eval."
    )
    with pytest.raises(ConfigError, match=r"'train.eval_every=2': eval\.period does not exist"):
        apply_overrides(Run(eval=None), ["train.eval_every=2"])


def test_a_near_miss_of_a_name_is_offered_in_files_and_overrides():
    text = r"train\.generate_evry is not a known key \(did you mean generate_every\?\)"
    with pytest.raises(ConfigError, match=text):
        config_from_mapping(Run, {"train": {"generate_evry": 2}})
    with pytest.raises(ConfigError, match=text):
        apply_overrides(Run(), ["train.generate_evry=2"])


def test_a_whole_section_on_the_command_line_takes_its_own_fields_alone():
    with pytest.raises(ConfigError) as caught:
        apply_overrides(Run(), ["train={steps: 3, eval_every: 2}"])
    assert str(caught.value) == (
        "override: 'train={steps: 3, eval_every: 2}': train.eval_every is a name of a field in "
        "another section than train. Allowed: train.eval_every as an override of its own. "
        "Fix: remove it from train={...} and add train.eval_every=...."
    )
    found = apply_overrides(Sweep(), ["run={train: {steps: 3, eval_every: 2}}"])
    assert found.run == Run(trainer=Trainer(steps=3), eval=Eval(period=2, batch=8))


def test_a_name_elsewhere_leads_to_the_field_and_its_mark():
    assert find_field(Run(), "train.eval_every") == (("eval", "period"), "cosmetic")
    assert find_field(Sweep(), "run.trainer.gen_tokens") == (
        ("run", "samples", "tokens"),
        "identity",
    )
    assert find_field(Run(eval=None), "train.eval_every") is None


def test_a_section_by_itself_does_not_know_the_names_it_has_elsewhere():
    assert config_from_mapping(Samples, {"every": 2}) == Samples(every=2)
    assert "train is not a known key" in refused({"train": {"generate_every": 2}}, Samples)
    assert [".".join(item.name) for item in also_names(Run)] == [
        "train.generate_every",
        "train.generate_top_p",
        "train.generate_tokens",
        "trainer.gen_tokens",
        "train.eval_every",
    ]
    assert also_names(Sweep) == ()  # those of a run are the run's


def test_a_name_is_refused_for_a_kind_of_section_without_the_field():
    @dataclass(frozen=True, kw_only=True)
    class Plain(Config):
        kind: Literal["plain"] = "plain"
        rate: float = setting(default=1.0, also=("trainer.rate",))

    @dataclass(frozen=True, kw_only=True)
    class Fast(Config):
        kind: Literal["fast"] = "fast"
        rate: float = setting(default=2.0, also=("trainer.rate",))
        power: int = setting(default=2, also=("trainer.power",))

    @dataclass(frozen=True, kw_only=True)
    class Two(Config):
        trainer: Trainer = field(default_factory=Trainer)
        way: Plain | Fast = field(default_factory=Plain)

    fast = nested({"way.kind": "fast", "trainer.rate": 3, "trainer.power": 3})
    assert config_from_mapping(Two, fast).way == Fast(rate=3.0, power=3)
    assert apply_overrides(Two(), ["trainer.rate=3"]).way == Plain(rate=3.0)
    plain = refused(nested({"way.kind": "plain", "trainer.power": 3}), Two)
    assert "trainer.power, which is way.power, with way={'kind': 'plain'} (a mapping)" in plain
    both = refused(nested({"way.kind": "plain", "trainer.rate": 3, "trainer.power": 3}), Two)
    assert "with way={'kind': 'plain'} (a mapping)" in both
    unknown = refused(nested({"way.kind": "slow", "trainer.power": 3}), Two)
    assert "way.kind='slow'" in unknown
    assert "trainer.power" not in unknown


@pytest.mark.parametrize(
    ("also", "text"),
    [(("trainer.steps",), "is a field of Trainer"), (("trainer.taken",), "means both")],
)
def test_a_name_that_is_taken_is_a_mistake_in_the_class(also: tuple[str, ...], text: str):
    @dataclass(frozen=True, kw_only=True)
    class Wrong(Config):
        trainer: Trainer = field(default_factory=Trainer)
        first: int = setting(default=1, also=("trainer.taken",))
        second: int = setting(default=1, also=also)

    with pytest.raises(TypeError, match=text):
        config_from_mapping(Wrong, {})


def test_the_schema_lists_the_names_elsewhere():
    properties = config_schema(Run)["$defs"]["Samples"]["properties"]
    assert properties["tokens"]["also"] == ["train.generate_tokens", "trainer.gen_tokens"]
