"""Comments beside and above a field are its documentation, in the schema too."""

from dataclasses import dataclass, field

from chomp.config import Config, config_schema, setting
from chomp.config.schema import classes_inside, field_comments


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    width: int = 4  # of a row


@dataclass(frozen=True, kw_only=True)
class Base(Config):
    # Two lines
    # above it.
    steps: int = 3

    # Of nothing: a line lies between.

    plain: int = 2
    said: int = setting(default=1, doc="What it is.")  # not this


@dataclass(frozen=True, kw_only=True)
class Outer(Base):
    inner: Inner = field(
        # of the default, not of the field
        default_factory=Inner,
    )
    many: dict[str, tuple[Inner, ...]] = field(default_factory=dict)  # by name
    plain: int = 3  # said here


def test_a_field_is_described_by_its_comments_or_its_doc():
    assert field_comments(Base) == {"steps": "Two lines above it.", "said": "What it is."}


def test_inherited_fields_keep_their_comments_and_new_ones_replace_them():
    assert field_comments(Outer) == {
        "steps": "Two lines above it.",
        "plain": "said here",
        "said": "What it is.",
        "many": "by name",
    }


def test_a_class_without_a_source_has_none():
    assert field_comments(type("Made", (Inner,), {})) == {"width": "of a row"}


def test_the_schema_describes_fields_of_nested_classes_too():
    schema = config_schema(Outer)
    assert schema["properties"]["steps"]["description"] == "Two lines above it."
    assert schema["$defs"]["Inner"]["properties"]["width"]["description"] == "of a row"
    assert classes_inside(Outer) == [Outer, Inner]
