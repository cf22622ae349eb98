"""Text without secrets: what is secret never reaches a config dump, a record, a log or a service.

A secret of the environment is known by its variable's name and found by its value, wherever a user
may have put it. A password in an address is known by its place, and so is a token or a signature in
its query; tokens of services that give them a form, by that.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

# WANDB_API_KEY, HF_TOKENS, PGPASSWORD, GITHUB_PAT, AWS_ACCESS_KEY_ID, …; not
# TOKENIZERS_PARALLELISM, not SSH_AUTH_SOCK, and not PWD, which is a folder.
_SECRET_NAME = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE)S?(_|$)|(SECRET|CREDENTIAL|WEBHOOK)S?(_|$)"
    r"|(API|ACCESS|PRIVATE)_?KEYS?(_|$)|_KEYS?$|TOKEN(_|$)|_TOKENS$|(^|_)(PAT|PASS)$|_(AUTH|PWD)$"
    r"|(^|_)(DSN|JWT|CONNECTION_?STRING|CONN_?STR|DATABASE_URL|AUTHORIZATION)$"
)
# Where a record has something (`text_key`), a random key, a count of tokens: all no secrets.
_PLAIN_NAME = re.compile(
    r"(^|_)(TEXT|IDS|MESSAGES|ROLE|CONTENT|LOSS_WEIGHTS|TRAINING|SPLIT|SHUFFLE|FIRST|END|NUM|PUBLIC"
    r"|PRIMARY|FOREIGN|SORT|GROUP|CACHE|PARTITION|PRNG|RANDOM|QUERY|VALUE)_KEYS?$"
    r"|(^|_)(MAX|MIN|NUM|NEW|PROMPT|ROW|CHUNK|SHARD|KEPT|DROPPED|EPOCH|TRAIN|TOTAL|SPECIAL|STOP|EXTRA"
    r"|BATCH)_TOKENS$|(^|_)(PER|IS)_TOKEN$|(^|_)TOKEN_(ID|IDS|COUNT|TYPE|BUDGET)(_|$)"
)
# What a tokenizer's special tokens are called, which are no secrets: `eos_token`,
# `image_start_token`, `end_of_turn_token`. Any other `..._token` is one: `hf_token`.
_SPECIAL_TOKEN = re.compile(
    r"(^|_)(BOS|BOT|BOI|BOA|BOV|SOS|SOT|EOS|EOT|EOM|EOD|EOF|EOL|EOI|EOA|EOV|PAD|PADDING|UNK|UNKNOWN"
    r"|MASK|SEP|SEPARATOR|CLS|START|BEGIN|STOP|END|FIM|PREFIX|MIDDLE|SUFFIX|SENTINEL|SPECIAL|EXTRA"
    r"|IMAGE|IMG|VIDEO|AUDIO|VISION|SPEECH|PATCH|FRAME|TEXT|SENTENCE|PARAGRAPH|DOCUMENT|TURN|MESSAGE"
    r"|HEADER|ROLE|THINK|TOOL|CALL|NEWLINE|SPACE|BLANK|BOUNDARY|PLACEHOLDER)_TOKEN$"
)
# A shorter value is a word like `true`, and would be blotted out all over a config.
_MIN_CHARACTERS = 8
# A shorter password is blotted out where an address has it, and nowhere else: `x` is in any text.
_MIN_PASSWORD = 6
# scheme://user:password@host; a user alone (ssh://git@host) is no secret, nor is a port: digits
# before a path are one in the web's addresses, and in others where no @ follows. Not past the next
# ://, which may begin another address, and keeps the time linear in the text. A quote between two
# letters is part of a password; any other ends the text that the address stands in. So are blanks,
# up to the last @ of the line, where the password does not begin like a port before a blank.
_USER = r"(?!\[[\da-fA-F:.]+\])[^/?#\s:@'\"]*"  # [::1] is a host
_PORT = r"\d+[/?#,;.:)\]}>]*(?:\s|\Z)"
_LETTER = r"(?!://)(?:[^\s'\"]|(?<=[\w\\])['\"](?=\w))"
_BLANK = r"(?!://)[^\S\r\n]"
_ADDRESS = re.compile(
    rf"(?:(?<!http)(?<!https)://{_USER}:|://{_USER}:(?!\d*[/?#]))"
    rf"(?P<rest>(?!{_PORT})(?:{_LETTER}|{_BLANK})*|(?:{_LETTER})*)"
)
# pip's address of a repository, whose path may end in @ and a version.
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+\w+\Z")
_HOST_AND_PATH = re.compile(r"@[^@/]*/")
# What follows the ? of an address, and in it what lets in: ?token=, &X-Amz-Signature=, &sig=.
_QUERY = re.compile(r"(?<=\?)[^\s'\"#?]+")
_OPENING = re.compile(
    r"(?i)(?P<name>(?:^|(?<=&))(?:key|AWSAccessKeyId|(?:[\w.-]*[-_.])?"
    r"(?:api[-_]?key|access[-_]?key|token|sig|signature|secret|password|credential))=)"
    r"(?P<value>[^&<][^&]*)"
)
# Hugging Face, GitHub, GitLab, Slack, AWS, Stripe, npm, PyPI, Google, SendGrid, DigitalOcean, JWTs
# and those that begin like OpenAI's; none is a plain word.
_TOKEN = re.compile(
    r"(?<![\w-])(?:(?:hf|api_org|whsec)_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abprs]-[\w-]{20,}|xapp-[\w-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{32,}"
    r"|[sr]k_(?:live|test)_\w{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|AIza[\w-]{35}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_\w{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})(?![\w-])"
    # A Sentry DSN is an address whose user is the secret.
    r"|(?<=://)[0-9a-f]{32}(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
# Parts of connection strings, and of a request's header.
_NAMED_PART = re.compile(
    r"(?i)(?<![\w-])((?:(?:account|(?:shared)?access)key|password)=|bearer\s+(?=[\w.~+/-]{16}))"
    r"[^\s;'\"&<]{6,}"
)
# Addresses that let in whoever knows their path.
_WEBHOOK = re.compile(
    r"(?<=://)((?:hooks\.slack\.com/(?:services|workflows)|(?:\w+\.)?discord(?:app)?\.com/api/webhooks)/)"
    r"[^\s'\"]+"
)
# A name and its value as people write them in notes: `WANDB_API_KEY=...`.
_NOTED = re.compile(
    r"(?<![\w-])(?P<name>[A-Za-z][\w-]*)['\"]?\s*[:=]\s*['\"]?(?P<value>[^\s'\",;#{}\[\]<>$]+)"
)


def redacted(text: str) -> str:
    """The text with every secret of the environment replaced by `<NAME>` of its variable.

    Passwords in addresses are replaced by `<password>`, also such as hold signs that an address
    may not, as far as a text can tell: not over a line's end, not a quote beside another sign, not
    :// and not after a user with a blank. Tokens in the query of an address are replaced by
    `<secret>`, and any that are known by their form by `<token>`.
    """
    return redactor()(text)


def redactor() -> Callable[[str], str]:
    """`redacted` for many texts: the secrets of the environment are looked up once, now."""
    found = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _MIN_CHARACTERS and is_secret_name(name)
    }
    # The longest first: a shorter one may be the beginning of it, whose rest would be left.
    return partial(_redacted, secrets=sorted(found.items(), key=lambda item: -len(item[0])))


def is_secret_name(name: str) -> bool:
    """Whether a key or a variable is a secret by its name: `hf_token`, `api-key`; not `eos_token`.

    The one rule, for what is redacted, what a config file may not hold, and what a job gets apart.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_"))  # apiKey is api_Key
    upper = re.sub(r"_\d+$", "", words.upper())
    return bool(_SECRET_NAME.search(upper)) and not (
        _SPECIAL_TOKEN.search(upper) or _PLAIN_NAME.search(upper)
    )


def without_noted_secrets(text: str) -> str:
    """The text without values that follow the name of a secret, as in `# HF_TOKEN=...`."""

    def blotted(found: "re.Match[str]") -> str:
        if len(found["value"]) < _MIN_CHARACTERS or not is_secret_name(found["name"]):
            return found[0]
        return f"{found[0].removesuffix(found['value'])}<{found['name']}>"

    return _NOTED.sub(blotted, text)


def without_secrets(value: Any) -> Any:
    """The same nested mappings and lists with `redacted` texts; keys stay."""
    clean = redactor()

    def without(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items()}
        return [without(inner) for inner in value] if isinstance(value, list | tuple) else value

    return without(value)


def without_passwords_of(value: Any, text: str) -> str:
    """The text without the passwords of all addresses in nested mappings and lists.

    They go wherever they stand: a file may write a password apart from the address it is of. Short
    ones stay where they are apart, or they would be blotted out of other words.
    """
    found = {password for password in _passwords(value) if len(password) >= _MIN_PASSWORD}
    # The longest first, of which a shorter one may be a part.
    for password in sorted(found, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "<password>", text)
    return text


def _redacted(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for value, name in secrets:
        text = text.replace(value, f"<{name}>")
    # After those, whose names tell more; the mark that one of them left is no password.
    left, end = [], 0
    for place in _password_places(text):
        left += [text[end : place.start], "<password>"]
        end = place.stop
    text = "".join([*left, text[end:]])
    if "://" in text:
        text = _QUERY.sub(lambda query: _OPENING.sub(r"\g<name><secret>", query[0]), text)
        text = _WEBHOOK.sub(r"\1<secret>", text)
    return _TOKEN.sub("<token>", _NAMED_PART.sub(r"\1<secret>", text))


def _password_places(text: str) -> Iterator[slice]:
    """Where the passwords of addresses stand, without marks that took the place of others."""
    for found in _ADDRESS.finditer(text) if "://" in text else ():
        start, rest = found.start("rest"), found["rest"]
        # Passwords may hold @ and / as they are: all up to the last @ goes, rather a little too
        # much. Only in the address of a repository something may follow the host.
        length = rest.rfind("@")
        if _REPOSITORY.search(text, max(0, found.start() - 16), found.start()):
            length = max((host.start() for host in _HOST_AND_PATH.finditer(rest)), default=length)
        password = rest[: max(length, 0)]
        if password and not (password.startswith("<") and password.endswith(">")):
            yield slice(start, start + length)


def _passwords(value: Any) -> set[str]:
    """The passwords of all addresses in a value, and what lets in by their queries."""
    if isinstance(value, str):
        queries = _QUERY.findall(value) if "://" in value else []
        tokens = {found["value"] for query in queries for found in _OPENING.finditer(query)}
        return {value[place] for place in _password_places(value)} | tokens
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_passwords, value)) if isinstance(value, list | tuple) else set()
