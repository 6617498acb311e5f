"""Builds wheel and sdist, checks them, and runs the ten lines where nothing else is installed.

`make release-check`. Everything is made in a new folder, which is removed; dist/ is written when
all went well. The index that pip is set up with must have the dependencies.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
IN_SDIST = (
    *("mkdocs.yml", "docs/index.md", "tests/docs/test_packaging.py", "examples/ten_lines.py"),
    *("coprefl_flwr/federation/client_app.py", "coprefl_flwr/strategies/coprefl.py"),
)


def main() -> None:
    """Run all checks; exits with the status of the first command that fails."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tools, empty = environment(folder / "tools"), environment(folder / "empty")
        run(tools, "-m", "pip", "install", "--quiet", "build", "twine", *wanted())
        run(tools, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        run(tools, "-m", "twine", "check", "--strict", wheel, sdist)
        sources = check_sdist(sdist, folder / "sources")
        run(tools, "-m", "mkdocs", "build", "--strict", cwd=sources)
        run(empty, "-m", "pip", "install", "--quiet", wheel)
        run(empty, "-m", "pip", "check")
        # From a folder without sources, so that what is imported is the wheel.
        shutil.copy(ROOT / "examples" / "ten_lines.py", folder)
        run(empty, "-I", "ten_lines.py", cwd=folder)
        run(empty, "-I", "-m", "coprefl_flwr.cli", "--version", cwd=folder)
        shutil.copytree(folder / "dist", ROOT / "dist", dirs_exist_ok=True)
    print(f"good: {wheel.name} and {sdist.name} are in dist/")


def environment(folder: Path) -> Path:
    """Make a virtual environment; return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def wanted() -> list[str]:
    """Return what building the site needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["docs"])


def check_sdist(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist; exit if it lacks what the site and the tests are made of."""
    shutil.unpack_archive(sdist, folder)
    (root,) = folder.iterdir()
    missing = [name for name in IN_SDIST if not (root / name).exists()]
    if missing:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    return root


def run(python: Path, *arguments: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, and exit as it does if it fails."""
    print("$", "python", *arguments, flush=True)
    done = subprocess.run([python, *arguments], cwd=cwd)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
