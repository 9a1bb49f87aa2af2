"""A built wheel holds everything that the code opens, under one name."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_works_away_from_the_checkout(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"mmts_ray"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for path in [*(ROOT / "mmts_ray").rglob("*"), *(ROOT / "analysis").rglob("*")]:
        if path.suffix in (".py", ".html", ".css", ".js"):
            inside = path.relative_to(ROOT)
            assert str(inside if inside.parts[0] == "mmts_ray" else Path("mmts_ray") / inside) in names
    code = "import mmts_ray, mmts_ray.analysis.report as r; print(mmts_ray.__file__, r.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert all(word.startswith(str(tmp_path / "site")) for word in run.stdout.split())


def test_dependencies_are_lower_bounds_and_the_demo_is_an_extra():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"] + project["optional-dependencies"]["demo"]:
        assert re.fullmatch(r"[\w.-]+(\[[\w,]+\])?>=[\w.]+", requirement), requirement
    asked = {re.match(r"[\w.-]+", r)[0] for r in project["dependencies"]}
    assert {"ray", "torch", "optuna", "open_clip_torch", "sentence-transformers", "scikit-learn", "pandas"} <= asked
    assert len(project["optional-dependencies"]["demo"]) == 5
    assert project["scripts"] == {"mmts-ray": "mmts_ray.cli:main"}


def test_the_version_is_said_once():
    import mmts_ray

    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {mmts_ray.__version__}" in changelog
