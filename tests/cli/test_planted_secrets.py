"""Secrets that somebody has put into a config, a message or the environment: in no file of ours."""

import json
import logging
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chomp.cli.load_config import GivenConfig
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path, versioned
from chomp.storage.secrets import is_secret_name, redacted, without_passwords_of, without_secrets
from chomp.tokenize import ByteTokenizer
from chomp.tracking import WandbConfig
from chomp.training.run_folder import RunFolder
from experiments.grug.base.launch import GrugBaseLaunchConfig, run_config
from tests.cli.conftest import Chomp

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "configs/debug_smoke.yaml")
# As long as real ones, each known by the name of its variable.
PLANTED = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_planted0123456789",
    "RAY_AUTH_TOKEN": "ray-planted-0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws/planted+0123456789",
}
PASSWORD = "pa55-w0rd.planted"  # in an address, and in no variable
ADDRESS = f"https://someone:{PASSWORD}@example.org/data?x=1"
ALL = (*PLANTED.values(), PASSWORD)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)


def files_with_a_secret(folder: Path) -> list[tuple[str, str]]:
    """Every file below a folder that holds one, and which."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, "nothing was written that could hold a secret"
    return [
        (path.name, secret)
        for path in files
        for secret in ALL
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (ADDRESS, "https://someone:<password>@example.org/data?x=1"),
        (f"s3://:{PASSWORD}@bucket", "s3://:<password>@bucket"),
        ("https://u:hf_planted0123456789@host/x", "https://u:<HF_TOKEN>@host/x"),
        (f"two: {ADDRESS}, {ADDRESS}", None),
        ("s3://a:b@c,s3://d:e@f", "s3://a:<password>@c,s3://d:<password>@f"),
        # As people write them, with signs that belong escaped.
        ("s3://me:p@ss@bucket/x", "s3://me:<password>@bucket/x"),
        ("s3://me:pa/ss?w#d@bucket", "s3://me:<password>@bucket"),
        ("s3://me:p@s/s@bucket", "s3://me:<password>@bucket"),
        ("s3://me:@pass@bucket", "s3://me:<password>@bucket"),
        ("git+https://me:pass@a.org/x@v1", "git+https://me:<password>@a.org/x@v1"),
        ("git+https://me:p@s.s/x@a.org/x@v1", "git+https://me:<password>@a.org/x@v1"),
        # Even one that looks like a host and a path goes whole, and what follows it if it must.
        ("https://me:p@ss.word/x@a.org/data", "https://me:<password>@a.org/data"),
        ("s3://me:p@ss.word/x@bucket", "s3://me:<password>@bucket"),
        ("https://me:p@ss.word/x@host:80?y", "https://me:<password>@host:80?y"),
        ("https://me:pass@a.org/x?to=b@c.org", "https://me:<password>@c.org"),
        # Digits before a slash are a port in the web's addresses alone.
        ("postgres://me:12/34@host/db", "postgres://me:<password>@host/db"),
        ("https://me:pa'ss@host", "https://me:<password>@host"),
        ("{'a': 'https://host:x', 'b': 'c@d'}", "{'a': 'https://host:x', 'b': 'c@d'}"),
        # Blanks belong to it, up to the last @ of the line.
        ("https://u:p ss@host", "https://u:<password>@host"),
        ("https://u:p@s s@host/x y", "https://u:<password>@host/x y"),
        ("no https://u:p\tss @host: ask a.b", "no https://u:<password>@host: ask a.b"),
        ("https://u:1 2@host", "https://u:1 2@host"),  # may be a port and a mail address
        ("at s3://u:p s@h\nand a@b", "at s3://u:<password>@h\nand a@b"),
        ("http://h:80 is up: ask a@b", "http://h:80 is up: ask a@b"),
        ("ray://h:80: gone, says a@b", "ray://h:80: gone, says a@b"),
        ("redis://h:6379, a@b", "redis://h:6379, a@b"),
        ("http://[::1]:80 and a@b", "http://[::1]:80 and a@b"),
        # What lets in stands in the query too.
        ("https://a.org/x?token=abcdefgh&y=1", "https://a.org/x?token=<secret>&y=1"),
        (
            "https://a.org?y=1&X-Amz-Signature=0a1b#z",
            "https://a.org?y=1&X-Amz-Signature=<secret>#z",
        ),
        ("az://c/x?sv=1&sig=a%3D and more", "az://c/x?sv=1&sig=<secret> and more"),
        ("https://a.org/x?max_tokens=123456789", "https://a.org/x?max_tokens=123456789"),
        ("https://a.org/x?sort_key=name&token=", "https://a.org/x?sort_key=name&token="),
        # Tokens with a form of their own, in any text.
        (f"tags: [hf_{'aB3' * 12}]", "tags: [<token>]"),
        (f"ghp_{'aB3' * 12}, glpat-{'x' * 20}", "<token>, <token>"),
        (f"AKIA{'A1' * 8}", "<token>"),
        (f"hf_{'a_b' * 12} AKIA-1 sk-short", f"hf_{'a_b' * 12} AKIA-1 sk-short"),
        # What only looks a little like one stays as it is.
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("https://me:@host", "https://me:@host"),
        ("ssh://git@host/x.git", "ssh://git@host/x.git"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("https://host/a:b@c", "https://host/a:b@c"),
        ("mail me: a:b@example.org", "mail me: a:b@example.org"),
    ],
)
def test_a_password_in_an_address_is_blotted_out_and_nothing_else(text: str, left: str | None):
    assert redacted(text) == (left or text.replace(PASSWORD, "<password>"))
    assert redacted(redacted(text)) == redacted(text)
    assert without_secrets({"a": [text]}) == {"a": [redacted(text)]}


SIGNS = st.characters(exclude_categories=["C", "Z"], exclude_characters="'\"")
NAMES = st.text(SIGNS.filter(lambda sign: sign not in "/?#:@[]<>"), max_size=8)
# Blanks inside, and a letter first: digits and a blank can be a port.
PASSWORDS = st.builds("{}{}".format, st.sampled_from("aZé"), st.text(SIGNS | st.just(" ")))


@given(NAMES, PASSWORDS.filter(lambda text: "://" not in text), st.sampled_from(["", "/x y"]))
def test_any_password_on_one_line_goes_whole(user: str, password: str, path: str):
    address = f"s3://{user}:{password}@host{path}"
    left = f"s3://{user}:<password>@host{path}"
    assert redacted(address) == left
    assert redacted(f"no answer\nfrom {address}\nto a@b") == f"no answer\nfrom {left}\nto a@b"
    assert redacted(left) == left
    assert without_secrets([{"a": address}]) == [{"a": left}]


def test_a_secret_that_begins_another_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "abcdefgh")
    monkeypatch.setenv("WANDB_API_KEY", "abcdefghijkl")
    assert redacted("abcdefgh abcdefghijkl") == "<HF_TOKEN> <WANDB_API_KEY>"


@pytest.mark.parametrize(("password", "left"), [("model", "model"), ("model-", "<password>")])
def test_a_short_password_is_blotted_out_of_addresses_alone(password: str, left: str):
    content = {"source": [f"s3://me:{password}@bucket"]}
    assert without_passwords_of(content, f"{password}: 1") == f"{left}: 1"


# W&B takes seconds to begin and to end.
@pytest.mark.parametrize("has_wandb", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_secret_reaches_the_files_of_a_run_or_those_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_wandb: bool
):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    # W&B tells of the checkout that a run was started in, and of where that came from.
    for words in (["init", "-q"], ["remote", "add", "origin", ADDRESS]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.chdir(tmp_path)
    base = run_config(replace(GrugBaseLaunchConfig(), output_path=str(tmp_path / "run")))
    wandb = WandbConfig(enabled=has_wandb, mode="offline", tags=(ADDRESS, *PLANTED.values()))
    settings = replace(base.logging, console=False, wandb=wandb, project=PLANTED["HF_TOKEN"])
    config = replace(base, logging=settings, run_id=f"mine-{PLANTED['HF_TOKEN']}")
    with RunFolder.open(config.output_path, config.logging) as folder:
        template, derived = ROOT / "experiments/grug/base", {"train": {"from": ADDRESS}}
        folder.describe(config, template=template, tokenizer=ByteTokenizer(), derived=derived)
        for secret in (ADDRESS, *PLANTED.values()):
            logging.getLogger("chomp").warning("could not reach %s", secret)
        with folder.tracker(settings, total_steps=1, start_step=0) as tracker:
            tracker.log({"train/loss": 1.0}, step=0)
    (tmp_path / ".git/config").unlink()
    assert (tmp_path / "run/train.log").read_text().count("could not reach") == 5
    assert bool(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) is has_wandb
    assert files_with_a_secret(tmp_path) == []


@pytest.mark.parametrize("is_failing", [False, True])
def test_no_secret_reaches_the_records_of_a_step(tmp_path: Path, is_failing: bool):
    def work(config: dict[str, object]) -> None:
        if is_failing:
            raise ValueError(f"no answer from {ADDRESS} to {PLANTED['HF_TOKEN']}")

    step = secret_step(work)
    failures = run_plan(plan_steps([step], prefix=str(tmp_path)), runner)
    assert len(failures) == is_failing
    assert files_with_a_secret(tmp_path) == []


def runner(item: object) -> None:
    """Does what a planned step says, in this process."""
    item.step.fn(item.config)  # type: ignore[attr-defined]


def secret_step(fn: Callable[..., None], **changes: str) -> ExecutorStep:
    """A step whose config is full of them, in what is versioned and in what is not."""
    config = {
        "out": this_output_path(),
        "source": versioned(ADDRESS),
        "token": PLANTED["HF_TOKEN"],
        "keys": [f"key={PLANTED['RAY_AUTH_TOKEN']}"],
        **changes,
    }
    return ExecutorStep(name="secretive", fn=fn, config=config)


def test_a_record_without_its_secrets_is_still_that_of_the_same_step(tmp_path: Path):
    def work(config: dict[str, object]) -> None:
        pass

    def planned(**changes: str):
        [found] = plan_steps([secret_step(work, **changes)], prefix=str(tmp_path))
        return found

    assert run_plan([planned()], runner) == []
    again = planned()
    assert (again.action, again.differences) == ("skip", ())
    # Another value beside it is told, and the plan that tells it has no secret either.
    other = planned(keys="none")
    told = " ".join(other.differences)
    assert "keys" in told
    assert not [secret for secret in ALL if secret in told]
    new = planned(source=versioned(f"{ADDRESS}&more"))  # type: ignore[arg-type]
    assert new.action == "run"
    assert "source" in new.reason
    assert PASSWORD not in new.reason


def test_configs_are_shown_and_compared_without_passwords(chomp: Chomp, tmp_path: Path):
    shown = chomp("config", "show", DEBUG, "-o", f"logging.wandb.tags=['{ADDRESS}']")
    assert shown.code == 0, shown.err
    tags = yaml.safe_load(shown.out)["logging"]["wandb"]["tags"]
    assert tags == ["https://someone:<password>@example.org/data?x=1"]
    content = yaml.safe_load(Path(DEBUG).read_text())
    for name, tag in (("a", ADDRESS), ("b", PLANTED["HF_TOKEN"])):
        content["logging"] = {"wandb": {"tags": [tag]}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    compared = chomp("config", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert compared.code == 0, compared.err
    assert "logging.wandb.tags" in compared.out
    assert not [secret for secret in ALL if secret in compared.out]


SOURCES = {
    "there": {"kind": "jsonl", "paths": [f"memory://someone:{PASSWORD}@host/*.jsonl"]},
    "text": {"kind": "text", "paths": [f"s3://someone:{PASSWORD}@bucket/x.txt"]},
    "parquet": {"kind": "parquet", "paths": [f"https://someone:{PASSWORD}@localhost:1/x.parquet"]},
    "arrays": {"kind": "arrays", "paths": [f"ftp://someone:{PASSWORD}@localhost:1/x.npy"]},
    "hub": {"kind": "hf", "path": "json", "data_files": [f"{ADDRESS}/x.json"]},
    "unknown": {"kind": "hf", "path": "sql", "con": f"postgresql://someone:{PASSWORD}@host/db"},
}
COMMANDS = [
    *("data build", "data forecast", "data inspect", "data where --step 1", "data where --doc x"),
    *("data verify", "train --dry-run", "config show"),
]


@pytest.mark.parametrize("name", SOURCES)
def test_no_command_prints_a_password_in_the_address_of_a_source(
    chomp: Chomp, tmp_path: Path, name: str
):
    there = fsspec.filesystem("memory")
    lines = "".join(json.dumps({"text": f"document {i} " * 9}) + "\n" for i in range(200))
    there.pipe(f"/someone:{PASSWORD}@host/x.jsonl", lines.encode())
    content = yaml.safe_load(Path(DEBUG).read_text())
    content["data"]["components"] = {"theirs": {"source": SOURCES[name]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    for command in COMMANDS if name == "there" else ("data build", "train --dry-run"):
        words = [*command.split(), str(tmp_path / "mine.yaml"), "--template", "base"]
        told = chomp(*words, *([] if "config" in command else ["--prefix", str(tmp_path / "out")]))
        assert "Traceback" not in told.err
        assert PASSWORD not in told.out + told.err, command
        if name == "there":
            assert told.code == (1 if "--doc" in command else 0), told.err
        else:
            assert told.code, command
    (tmp_path / "mine.yaml").unlink()
    there.rm(f"/someone:{PASSWORD}@host", recursive=True)
    if name == "there":
        assert files_with_a_secret(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        {"variables": {"hf_token": "not-in-the-environment"}},
        {"variables": {"mine": {"api-key": "not-in-the-environment"}}},
        {"logging": {"wandb": {"api_key": "not-in-the-environment"}}},
        {"data": {"components": {"a": {"source": {"headers": [{"password": "not-in-the"}]}}}}},
    ],
    ids=str,
)
def test_a_secret_in_a_file_is_refused_by_its_name_and_not_shown(
    chomp: Chomp, tmp_path: Path, content: dict[str, object]
):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    run = str(tmp_path / "run")
    for command in (["config", "show", str(path)], ["train", str(path), "--run-dir", run]):
        told = chomp(*command)
        assert told.code == 2
        assert "which is a secret by its name" in told.err
        assert "in the environment" in told.err.partition("Fix: ")[2]
        assert "not-in-the" not in told.err + told.out
    assert [each.name for each in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_special_token_is_no_secret(chomp: Chomp, tmp_path: Path):
    text = Path(DEBUG).read_text()
    variables = "variables: {eos_token: endoftextlong, bos_token: <|begin|>, max_tokens: 123456789}"
    (tmp_path / "mine.yaml").write_text(f"{variables}\n{text}")
    assert chomp("config", "show", str(tmp_path / "mine.yaml")).code == 0


@pytest.mark.parametrize(
    ("names", "is_secret"),
    [
        (
            "stop_token eot_token image_token bos_token eos_token pad_token unk_token mask_token",
            False,
        ),
        ("sep_token cls_token image_start_token end_of_turn_token fim-prefix-token", False),
        ("decoder_start_token max_tokens tokenizer", False),
        ("token hf_token api_token auth_token access_token HF_TOKEN RAY_AUTH_TOKEN", True),
        ("session_token github-token deadend_token api_key AWS_SECRET_ACCESS_KEY", True),
        ("GITHUB_PAT SMTP_PASS PGPASSWORD MY_KEY APP_SECRET_FILE NPM_AUTH SSH_PRIVATE_KEY", True),
        ("HF_TOKENS SENTRY_DSN SLACK_WEBHOOK_URL SERVICE_JWT DB_CONNECTION_STRING GHTOKEN", True),
        ("text_key ids_key training_key messages_key role_key content_key split_key", False),
        ("prompt_tokens flops_per_token eos_token_id SSH_AUTH_SOCK PWD compat bypass", False),
        ("apiKey secretKey webhookUrl dbPass MY_KEY_2 GITHUB_PAT_2 Authorization", True),
        ("eosToken maxTokens textKey query_key value_key boundary_token key2", False),
    ],
)
def test_names_of_special_tokens_are_told_from_those_of_secrets(
    names: str, is_secret: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in names.split():
        assert is_secret_name(name) == is_secret, name
        monkeypatch.setenv(name, "as long as a secret")
        assert (redacted("as long as a secret") == f"<{name}>") == is_secret, name
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "value",
    [
        "sk_live_" + "a1" * 12,
        "npm_" + "a1" * 18,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "https://hooks.slack.com/services/T0/B0/planted0123",
        "postgresql://me:planted0123@host/db",
        "https://" + "0a1b" * 8 + "@o1.ingest.sentry.io/1",
        "AccountName=me;AccountKey=planted0123/+==;EndpointSuffix=core.windows.net",
        "Server=host;Password=planted0123;",
        "Authorization: Bearer planted0123planted0123",
        "xapp-1-A01-" + "a1" * 12,
        "whsec_" + "a1" * 16,
        "-----BEGIN RSA PRIVATE KEY-----\nplanted0123\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_value_with_the_form_of_a_secret_is_not_told(value: str):
    told = redacted(f"see {value} here")
    assert value not in told
    assert "planted0123" not in told
    assert redacted(told) == told


def test_what_a_comment_notes_after_the_name_of_a_secret_is_not_kept(tmp_path: Path):
    lines = [
        "# export WANDB_API_KEY=planted-0123456789 before this",
        "# password: 'planted-0123456789', of me",
        "template: base # hf-token = planted-0123456789",
        "# eos_token: endoftextlong, max_tokens=123456789, token: short, a secret: of long ago",
    ]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    kept = GivenConfig(path=str(tmp_path / "mine.yaml")).original_text()
    assert kept is not None
    assert kept.splitlines() == [
        "# export WANDB_API_KEY=<WANDB_API_KEY> before this",
        "# password: '<password>', of me",
        "template: base # hf-token = <hf-token>",
        lines[3],
    ]
