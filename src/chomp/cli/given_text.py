"""The YAML file that a command was given, as its run keeps it."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from chomp.cli.given_config import GivenConfig

_HEAD = "# With these options of the command line:"


def given_text(given: GivenConfig) -> str | None:
    """The file byte for byte, and options that change it as comments at its end; None: no YAML.

    Secrets are blotted out, also passwords that variables put into an address, and what a comment
    notes down after the name of one.
    """
    from chomp.config.files import parse_yaml
    from chomp.config.variables import replace_variables
    from chomp.storage import read_text
    from chomp.storage.secrets import redacted, without_noted_secrets, without_passwords_of

    if given.kind() != "YAML file":
        return None
    text = read_text(given.path)
    # Of the file and not of the config, in which an option may have replaced the address.
    content = replace_variables(parse_yaml(text, source=given.path) or {}, source=given.path)
    kept = without_noted_secrets(redacted(_with_comments(text, _options(given))))
    return without_passwords_of(content, kept)


def _options(given: GivenConfig) -> list[str]:
    options = [] if given.template is None else [f"--template {given.template}"]
    return [*options, *(f"-o {override}" for override in given.overrides)]


def _with_comments(text: str, options: list[str]) -> str:
    if not options:
        return text
    # A value may have lines of its own, and each must stay a comment.
    lines = [line for option in options for line in option.splitlines()]
    end = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{end}{_HEAD}\n" + "".join(f"#   {line}\n" for line in lines)
