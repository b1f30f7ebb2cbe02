"""Real clients against a real server with the default model, each client in an environment of its own.

    python tests/clients/run.py [CLIENT ...]

Clients and what is installed for them are in clients.toml and node/package.json; the tests of the client "name" are
test_name.py, those of Node node/*.test.mjs. After each client the server must be idle, and have logged no error.
Exits with 1 if anything fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import click

from trioserve.model.cache import cache_dir
from trioserve.model.sources import resolve
from trioserve.testing.process import serving_process

HERE = Path(__file__).parent
NODE = "node"
MODEL = "smollm2"
CLIENT_SECONDS = 900


@attrs.frozen
class Client:
    """A client, and what is to be installed for it with pip."""

    name: str
    requirements: tuple[str, ...]

    def test(self, environments: Path, told: Mapping[str, str]) -> bool:
        """Install the client if it is not there yet, run its tests, and tell whether they pass.

        ``told`` are environment variables for the tests.
        """
        folder = environments / self.name
        variables = {**os.environ, **told, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        # the tests must find the client alone
        variables.pop("PYTHONPATH", None)
        install(folder, self.requirements)
        if self.name == NODE:
            sources = install_node(folder, variables)
            return run([folder / "bin" / "node", "--test"], variables, sources)
        test = HERE / f"test_{self.name}.py"
        return run([folder / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", test], variables, HERE)


def run(command: Sequence[str | Path], variables: dict[str, str], folder: Path) -> bool:
    """Run a command in ``folder``, and tell whether it ended well and in time."""
    try:
        return subprocess.run(command, cwd=folder, env=variables, timeout=CLIENT_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        click.echo(f"{command[0]} took more than {CLIENT_SECONDS} seconds")
        return False


def install(folder: Path, requirements: Sequence[str]) -> None:
    """Make an environment with these packages, unless it is there with the same ones."""
    done = folder / "requirements.txt"
    wanted = "\n".join(requirements)
    if done.exists() and done.read_text() == wanted:
        return
    venv.create(folder, clear=True, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements], check=True)
    done.write_text(wanted)


def install_node(folder: Path, variables: dict[str, str]) -> Path:
    """Put the tests of Node and their packages into the environment, and tell where."""
    target = folder / "tests"
    lock = (HERE / NODE / "package-lock.json").read_bytes()
    done = target / "installed"
    digest = hashlib.sha256(lock).hexdigest()
    shutil.copytree(HERE / NODE, target, dirs_exist_ok=True)
    if not done.exists() or done.read_text() != digest:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=target, env=variables, check=True)
        done.write_text(digest)
    return target


def read_clients() -> dict[str, Client]:
    """The clients by their names, from clients.toml."""
    table = tomllib.loads((HERE / "clients.toml").read_text())
    common = table["environment"]["common"]
    found = {name: Client(name, (*common, *packages)) for name, packages in table["python"].items()}
    return {**found, NODE: Client(NODE, tuple(table["node"]["common"]))}


@click.command()
@click.argument("names", metavar="[CLIENT ...]", nargs=-1)
@click.option(
    "--environments",
    type=click.Path(path_type=Path),
    default=Path(".nox/clients-environments"),
    show_default=True,
    help="Where the environments of the clients are kept.",
)
def main(names: tuple[str, ...], environments: Path) -> None:
    """Run the tests of all clients, or of those named."""
    clients = read_clients()
    unknown = set(names) - set(clients)
    if unknown:
        raise click.UsageError(f"there is no {', '.join(unknown)}, only {', '.join(clients)}")
    environments.mkdir(parents=True, exist_ok=True)
    environments = environments.absolute()
    failed: list[str] = []
    chosen = names or tuple(clients)
    file = resolve(MODEL, cache=cache_dir(os.environ)).path
    # the model is not made for embeddings, and no test looks at what they mean
    with serving_process(MODEL, environments / "server.log", "--pooling", "mean") as server:
        told = {"TRIOSERVE_URL": server.url, "TRIOSERVE_MODEL_FILE": str(file)}
        for name in chosen:
            click.echo(f"\n==== {name}")
            passed = clients[name].test(environments, told)
            faults = server.faults()
            for fault in faults:
                click.echo(f"the server, after {name}: {fault}")
            if faults or not passed:
                failed.append(name)
    click.echo(f"\n{len(chosen) - len(failed)} clients passed, {len(failed)} failed {' '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
