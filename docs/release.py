"""Builds and checks wheel and sdist, and runs the ten lines in an empty environment.

`make release-check`. The command works in a new folder, which it removes at the end. It writes
dist/ only if all checks passed. The index that pip uses must have the dependencies.
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
    *(
        "LICENSE",
        "mkdocs.yml",
        "docs/index.md",
        "tests/docs/test_packaging.py",
        "examples/ten_lines.py",
    ),
    *("coprefl_flwr/federation/client_app.py", "coprefl_flwr/strategies/coprefl.py"),
)


def main() -> None:
    """Run all checks; exit with the status of the first command that fails."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        tools, empty = environment(folder / "tools"), environment(folder / "empty")
        run(tools, "-m", "pip", "install", "--quiet", "build", "twine", *site_requirements())
        run(tools, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        run(tools, "-m", "twine", "check", "--strict", wheel, sdist)
        sources = check_sdist(sdist, folder / "sources")
        run(tools, "-m", "mkdocs", "build", "--strict", cwd=sources)
        run(empty, "-m", "pip", "install", "--quiet", wheel)
        run(empty, "-m", "pip", "check")
        # In a folder without sources, so that Python imports the wheel.
        shutil.copy(ROOT / "examples" / "ten_lines.py", folder)
        run(empty, "-I", "ten_lines.py", cwd=folder)
        run(empty, "-I", "-m", "coprefl_flwr.cli", "--version", cwd=folder)
        shutil.copytree(folder / "dist", ROOT / "dist", dirs_exist_ok=True)
    print(f"good: {wheel.name} and {sdist.name} are in dist/")


def environment(folder: Path) -> Path:
    """Make a virtual environment; return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def site_requirements() -> list[str]:
    """Return the requirements of the site's build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["docs"])


def check_sdist(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist; exit if it lacks files of the site or the tests."""
    shutil.unpack_archive(sdist, folder)
    (root,) = folder.iterdir()
    missing = [name for name in IN_SDIST if not (root / name).exists()]
    if missing:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    return root


def run(python: Path, *arguments: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; if it fails, exit with its status."""
    print("$", "python", *arguments, flush=True)
    done = subprocess.run([python, *arguments], cwd=cwd)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
