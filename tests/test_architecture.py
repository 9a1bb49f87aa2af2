"""The table of README's "Rooms": who may import whom, and what a cheap command must not load."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mmts_ray"

# module -> modules of ours it may import (at any depth of the file)
DECLARATIONS = {"schedules", "losses", "groups", "data", "models", "metrics", "recipe"}
OURS: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "space": set(),
    "results": set(),
    "schedules": {"space"},
    "kernels": set(),
    "losses": {"space", "kernels"},
    "metrics": {"space", "kernels"},
    "recipe": {"space"},
    "cache": set(),
    "data": {"cache", "data", "space"},
    "encoders": {"data", "space"},
    "features": {"cache", "data", "encoders", "space"},
    "groups": {"cache", "data", "features", "space"},
    "models": {"encoders", "space", "student", "towers"},
    "student": {"encoders", "recipe", "towers"},
    "sentences": {"cache", "data", "encoders", "features", "student"},
    "towers": {"data", "encoders", "kernels", "recipe", "space"},
    "gradcache": {"losses"},
    "config": {"space"} | DECLARATIONS,
    "study": {"config", "space"},
    "space_file": {"explore", "config", "loggers", "losses", "metrics", "results", "space", "space_file", "study"},
    "reference": {"config", "space", "study"},
    "prepare": {"data", "encoders", "features", "models", "sentences"},
    "train": {"cache", "config", "features", "gradcache", "kernels", "prepare", "sentences", "space", "student"}
    | DECLARATIONS,
    "sampler": {"config", "space", "study", "tpe"},
    "tpe": set(),
    "health": {"data", "features", "groups"},
    "folder": {"", "storage", "config", "features", "health", "results", "space", "space_file", "study"},
    "explore": {"config", "space", "study"},
    "storage": {"cache", "results"},
    "status": {"ranking", "results", "storage"},
    "loggers": {"results"},
    "interop": {
        *("config", "encoders", "features", "folder", "losses", "plan", "prepare", "results", "space"),
        *("status", "storage", "student", "towers", "train"),
    },
    "progress": {"plan", "results", "status", "study"},
    "trial": {"config", "results", "storage", "train"},
    "ranking": {"results"},
    "plan": {"config", "ranking", "results", "space", "study"},
    "plan_file": {"config", "plan", "ranking", "results", "space", "study"},
    "search": {
        "config",
        "explore",
        "features",
        "loggers",
        "plan",
        "plan_file",
        "ranking",
        "results",
        "sampler",
        "storage",
        "study",
        "trial",
    },
    "spot": set(),
    "submit": {"storage", "study"},
}
RAY = {"trial", "search", "submit", "spot"}
RAY_ON_IMPORT = {"trial", "search"}
OPTUNA = {"interop", "sampler", "tpe"}
HEAVY = {
    "torch",
    "ray",
    "optuna",
    "open_clip",
    "sentence_transformers",
    "timm",
    "matplotlib",
    "pandas",
    "sklearn",
    "scipy",
}
MAY_LOAD_TORCH_ON_IMPORT = {"gradcache", "kernels", "student", "towers", "train"}


def modules() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Dotted names a file imports; `top_only` leaves out those inside functions and under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    nodes = []

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if top_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if top_only and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            nodes.append(child)
            walk(child)

    walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # the analysis runs under two names, `analysis` and `mmts_ray.analysis`, so its own imports are relative
            assert node.level == 0 or ROOT / "analysis" in path.parents, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.level == 0 else set()
    return names


def ours(names: set[str]) -> set[str]:
    found = set()
    for name in names:
        parts = name.split(".")
        if parts[0] == "mmts_ray":
            is_module = len(parts) > 1 and (parts[1] in modules() or parts[1] == "analysis")
            found.add(parts[1] if is_module else "")
    return found


@pytest.mark.parametrize("module", [m for m in modules() if m != "cli"])
def test_a_room_imports_only_the_rooms_it_may(module):
    assert module in OURS, f"{module} is new: give it a line in OURS and in README's tree"
    for path in modules()[module]:
        assert ours(imports(path)) <= OURS[module] | {module}, path


def test_every_room_in_the_table_exists():
    assert set(OURS) <= set(modules())


@pytest.mark.parametrize("module", list(modules()))
def test_ray_and_optuna_stay_at_the_rim_and_heavy_libraries_inside_functions(module):
    for path in modules()[module]:
        roots = {name.split(".")[0] for name in imports(path)}
        assert module in RAY or "ray" not in roots, path
        assert module in OPTUNA or "optuna" not in roots, path
        at_import = {name.split(".")[0] for name in imports(path, top_only=True)} & HEAVY
        allowed = ({"torch"} if module in MAY_LOAD_TORCH_ON_IMPORT else set()) | (
            {"ray"} if module in RAY_ON_IMPORT else set()
        )
        assert at_import <= allowed | ({"optuna"} if module in OPTUNA else set()), path


def test_the_analysis_knows_only_results_and_space():
    for path in sorted((ROOT / "analysis").rglob("*.py")):
        names = imports(path)
        assert ours(names) <= {"results", "space", "analysis"}, path
        assert not {n.split(".")[0] for n in names} & {"torch", "ray", "optuna"}, path


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["params"], ["params", "info_nce"], ["check", str(ROOT / "search_spaces" / "demo.yaml")]],
    ids=["help", "params", "params of one", "check"],
)
def test_cheap_commands_load_nothing_heavy(arguments):
    code = (
        "import sys\nfrom mmts_ray.cli import main\n"
        f"try:\n    status = main({arguments!r})\nexcept SystemExit as end:\n    status = end.code\n"
        f"loaded = sorted({HEAVY!r} & set(sys.modules))\n"
        "assert status in (0, None), status\nassert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in (PACKAGE, ROOT / "analysis", ROOT / "tests") for path in folder.rglob("*.py")),
    ids=str,
)
def test_files_fit_in_a_sitting(path):
    assert len(path.read_text(encoding="utf8").splitlines()) <= 420


def asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name in {"pytest.raises", "pytest.fail"} or name.rpartition(".")[2].startswith("assert_")
    return isinstance(node, ast.Assert)


def test_every_test_says_in_its_own_lines_what_must_hold():
    """Who reads a test does not see an assertion that only a helper makes."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                assert any(asserts(node) for node in ast.walk(test)), f"{path}: {test.name}"


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {path.parent.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("__init__.py")}
    there |= {"mmts_ray" / path.parent.relative_to(ROOT) for path in (ROOT / "analysis").rglob("__init__.py")}
    assert sorted(listed) == sorted(".".join(path.parts) for path in there)
