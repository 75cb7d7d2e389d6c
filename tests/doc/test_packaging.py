"""What packages say of hpccoll is what ``setup.cfg`` says; their own tools read them.

The tools are in the extra ``packaging``. Spack is on no index of Python packages: its file runs
here with directives that note what they are told.
"""

import configparser
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from launch import ROOT

import hpccoll

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
RECIPE, SPACK = ROOT / "packaging/conda/recipe.yaml", ROOT / "packaging/spack/package.py"


def requirements(text):
    """Name -> least version of requirements, one a line; ``""`` where any will do."""
    found = re.findall(r"^([A-Za-z][\w-]*)(?:>=([\d.]+))?\s*$", text, re.MULTILINE)
    return {name.lower(): version for name, version in found}


#: What a package needs to run: the core and the command line.
NEEDED = {**requirements(SETUP["options"]["install_requires"]),
          **requirements(SETUP["options.extras_require"]["cli"])}


def test_requirements_are_read():
    assert NEEDED["mpi4py"] == "4.0" and NEEDED["rich"] == "" and len(NEEDED) >= 4


def section(text, name, indent=2):
    """The lines of a section of YAML."""
    pad = " " * indent
    return re.search(rf"^{pad}{name}:\n((?:{pad} .*\n)+)", text, re.MULTILINE)[1]


def test_the_recipe_for_conda_needs_what_setup_says():
    text = RECIPE.read_text(encoding="utf-8")
    run = dict(re.findall(r"- ([\w-]+)(?: >=([\d.]+))?$", section(text, "run"), re.MULTILINE))
    assert run == {**NEEDED, "python": SETUP["options"]["python_requires"].removeprefix(">=")}
    assert f'version: "{hpccoll.__version__}"' in text and SETUP["metadata"]["license"] in text
    assert SETUP["metadata"]["description"] in text
    assert "hpccoll = hpccoll.__main__:main" in text


def test_the_recipe_for_conda_is_read_by_rattler_build():
    rattler = pytest.importorskip("rattler_build")
    variants = rattler.VariantConfig({
        "python": ["3.12.* *_cpython"], "c_compiler": ["gcc"], "c_compiler_version": ["14"],
        "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]})
    rendered, = rattler.Stage0Recipe.from_file(str(RECIPE)).render(variant_config=variants)
    recipe = rendered.recipe.to_dict()
    assert recipe["package"] == {"name": "hpccoll", "version": hpccoll.__version__}
    assert {"mpi4py >=4.0", "rich"} <= set(recipe["requirements"]["run"])
    assert any(each.startswith("gcc") for each in recipe["requirements"]["build"])
    assert len(recipe["tests"]) == 2


@pytest.fixture
def told(monkeypatch):
    """What the file for Spack tells it: directive -> its arguments, in order."""
    noted = {}
    package, builtin = ModuleType("spack.package"), ModuleType("spack_repo.builtin")
    for name in ("license", "version", "variant", "depends_on"):
        noted[name] = []
        setattr(package, name, lambda *args, _to=noted[name], **options: _to.append(
            (args[0], options)))
    python = ModuleType("spack_repo.builtin.build_systems.python")
    python.PythonPackage = type("PythonPackage", (), {})
    for module in (package, builtin, python, ModuleType("spack"), ModuleType("spack_repo"),
                   ModuleType("spack_repo.builtin.build_systems")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = {}
    exec(compile(SPACK.read_text(encoding="utf-8"), str(SPACK), "exec"), names)
    assert names["PyHpccoll"].__doc__.strip() == SETUP["metadata"]["description"] + "."
    return noted


def test_the_package_for_spack_needs_what_setup_says(told):
    assert told["license"][0][0] == SETUP["metadata"]["license"]
    assert hpccoll.__version__ in [version for version, _ in told["version"]]
    run = {spec.partition("@")[0].removeprefix("py-"): spec.partition("@")[2].rstrip(":")
           for spec, options in told["depends_on"]
           if "run" in options["type"] and "when" not in options}
    assert run.pop("python") == SETUP["options"]["python_requires"].removeprefix(">=")
    assert run.pop("numpy") == "2"  # what it is compiled with
    assert run == {name: version for name, version in NEEDED.items() if name != "numpy"}
    variants = {name for name, _ in told["variant"]}
    assert {f"+{name}" for name in variants} == {
        options["when"] for _, options in told["depends_on"] if "when" in options}


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(hpccoll.__version__)}$", text, re.MULTILINE)
    assert f"license: {SETUP['metadata']['license']}\n" in text
    assert f"name: {SETUP['metadata']['author']}\n" in text


def test_the_citation_is_valid():
    cli = pytest.importorskip("cffconvert")
    cli.Citation((ROOT / "CITATION.cff").read_text(encoding="utf-8")).validate()


@pytest.mark.parametrize("name", ["environment.yml", "environment-mpich.yml"])
def test_environments_of_conda_have_what_setup_says(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    listed = dict(re.findall(r"- ([\w-]+)(?:>=([\d.]+))?$", text, re.MULTILINE))
    assert set(NEEDED) <= set(listed) and "matplotlib" in listed
    assert ("mpich" in listed) == (name != "environment.yml")
    assert ("--no-binary=mpi4py" in text) == (name == "environment.yml")
    for package, version in NEEDED.items():
        assert not version or float(listed[package]) >= float(version)


# Releases: one version; checks for sites
def test_all_files_have_one_version():
    """A released change log has a date; until then only that is missing."""
    release = runpy.run_path(str(ROOT / "packaging/release.py"))
    dated = re.search(rf"^## {re.escape(hpccoll.__version__)} \(\d{{4}}-\d\d-\d\d\)$",
                      (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = release["faults"](hpccoll.__version__)
    assert len(found) == (dated is None) and all("date of the release" in one for one in found)
    assert len(release["faults"]("9.9.9")) == len(release["VERSIONS"]) + 1


SITE = """site_configuration = {"systems": [{"name": "here", "hostnames": [".*"], "partitions": [{
    "name": "node", "scheduler": "local", "launcher": "mpiexec", "environs": ["default"]}]}],
    "environments": [{"name": "default"}]}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reframe_runs_the_checks_of_a_site(tmp_path):
    pytest.importorskip("reframe")
    (tmp_path / "site.py").write_text(SITE, encoding="utf-8")
    folder = Path(sys.executable).parent
    done = subprocess.run(
        [folder / "reframe", "-C", "site.py", "-c", ROOT / "packaging/reframe/hpccoll_checks.py",
         "--prefix", tmp_path, "-r"], cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "NO_COLOR": "1"})
    assert "Ran 4/4 test case(s) from 4 check(s) (0 failure(s)" in done.stdout, done.stdout[-3000:]
    assert done.stdout.count("one_mebibyte:") == 2
