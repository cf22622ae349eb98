"""Where a cluster takes jobs: the address of its dashboard, from whatever names the cluster."""

import http.client
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from chomp.errors import LaunchError
from chomp.launch.ray_connection import host_and_port, imported_ray, require_listening

# Files of Ray's cluster launcher, by the name of the cluster.
CLUSTERS = Path("infra/clusters")
_PORT = 8265
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_PROBE_S = 5.0
_FIX = "start one with ray start --head, correct --cluster, or reach it by ray dashboard or ssh -L"


def job_client(cluster: str | None, environ: Mapping[str, str] | None = None) -> Any:
    """A client of Ray's job API on the cluster, which answers; `LaunchError` if it does not.

    `cluster` is the address of a dashboard or of a head, or the file or the name of one of Ray's
    launcher; None: what RAY_API_SERVER_ADDRESS or RAY_ADDRESS say, else this machine.
    """
    environ = os.environ if environ is None else environ
    given = next((environ[name] for name in _VARIABLES if environ.get(name)), None)
    address = job_address(cluster or given or f"127.0.0.1:{_PORT}")
    imported_ray()
    return _client(address)


def job_address(cluster: str) -> str:
    """The dashboard of the cluster as http://host:port, or host:port of its head.

    Somebody listens there. Raises `LaunchError` for what names no cluster.
    """
    if cluster.endswith((".yaml", ".yml")):
        return job_address(f"http://{_launched_head(Path(cluster))}:{_PORT}")
    if not any(mark in cluster for mark in ":.") and cluster != "localhost":
        return job_address(str(_file_named(cluster)))
    if "://" in cluster:
        return _checked_url(cluster)
    host, port = host_and_port(cluster, _PORT)
    require_listening(host, port, what="the Ray cluster", fix=_FIX)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    # Head and dashboard have ports of their own, and people name either.
    return url if _speaks_http(url) else f"{host}:{port}"


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "ray" and parts.hostname:
        return _checked_url(f"http://{parts.hostname}:{_PORT}")  # that of Ray's clients
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LaunchError(
            f"--cluster {url}",
            allowed="http://host:port of a dashboard, host:port of a head, or a launcher file",
            fix=f"write for example --cluster http://127.0.0.1:{_PORT}",
        )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    require_listening(parts.hostname, port, what="the Ray dashboard", fix=_FIX)
    return url.rstrip("/")


def _speaks_http(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/api/version", timeout=_PROBE_S).close()
    except urllib.error.HTTPError:
        return True  # it wants a token, which Ray's client has
    except (OSError, http.client.HTTPException):
        return False
    return True


def _file_named(name: str) -> Path:
    path = CLUSTERS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in CLUSTERS.glob("*.yaml"))) or "none"
        raise LaunchError(
            f"--cluster {name}, for which there is no {path}",
            allowed=f"a cluster of that folder ({known}), an address, or a file",
            fix=f"correct the name; for a machine of that name write {name}:{_PORT}",
        )
    return path


def _launched_head(path: Path) -> str:
    """The address of the head of a cluster that Ray's launcher has started."""
    try:
        config = yaml.safe_load(path.read_text())
        is_fine = isinstance(config, dict) and "cluster_name" in config and "provider" in config
        fault = None if is_fine else "it has no cluster_name and provider"
    except (OSError, yaml.YAMLError) as error:
        fault = str(error)
    if fault is not None:
        raise LaunchError(
            f"--cluster {path}: {fault}",
            allowed="a file of Ray's cluster launcher, as `ray up` takes it",
            fix="give such a file, or the address of the cluster",
        )
    imported_ray()
    from ray.autoscaler.sdk import get_head_node_ip  # noqa: PLC0415

    try:
        return get_head_node_ip(str(path))
    # Whatever a cloud's library raises for want of rights, network or a cluster.
    except Exception as error:
        raise LaunchError(
            f"the head of the cluster in {path} cannot be found ({error})",
            allowed="a cluster that runs, and rights to ask its cloud about it",
            fix=f"ray up {path}, or keep ray dashboard {path} running beside this and give "
            f"--cluster http://127.0.0.1:{_PORT}",
        ) from error


def _client(address: str) -> Any:
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

    # It tells of every upload. What matters is told by the command.
    for handler in logging.getLogger("ray").handlers:
        handler.setLevel(logging.WARNING)
    # In Ray they would count for more than what --cluster says.
    kept = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # Ray's own, and those of the libraries it calls
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise LaunchError(
            f"the Ray cluster at {address} takes no jobs from here ({first})",
            allowed="a dashboard of ray[default], and the token of its cluster",
            fix="for a token: copy it to ~/.ray/auth_token, or set RAY_AUTH_MODE=token and "
            f"RAY_AUTH_TOKEN; else {_FIX}",
        ) from error
    finally:
        os.environ.update(kept)
