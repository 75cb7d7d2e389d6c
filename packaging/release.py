"""Check that the checkout is ready to be released: ``make release VERSION=0.1.0``.

    --check  only that all files have the version: what the release workflow runs for a tag

The version is ``hpccoll.__version__``; everything else repeats it. Needs nothing but the standard
library: the archives are built and tested by ``make``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Files that have the version, and the pattern of it in each.
VERSIONS = {
    "hpccoll/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## (\S+) ",
    "packaging/conda/recipe.yaml": r'^  version: "(.+)"$',
    "packaging/spack/package.py": r'^    version\("(\d.+)"\)$',
}


def faults(version: str, root: Path = ROOT) -> list[str]:
    """Return what is wrong with the files, a sentence each."""
    found = []
    for name, pattern in VERSIONS.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if match is None or match[1] != version:
            found.append(f"{name} has version {match[1] if match else 'none'}, not {version}")
    heading = re.search(r"^## .*$", (root / "CHANGELOG.md").read_text(encoding="utf-8"),
                        re.MULTILINE)
    if heading is None or not re.search(r"\(\d{4}-\d{2}-\d{2}\)$", heading[0]):
        found.append(f"CHANGELOG.md: write the date of the release, ## {version} (YYYY-MM-DD)")
    return found


def changes(root: Path = ROOT) -> list[str]:
    """Return the files that are not committed."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True,
                          text=True, check=True)
    return [line[3:] for line in done.stdout.splitlines()]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("version")
    words.add_argument("--check", action="store_true", help="files only: build and test nothing")
    options = words.parse_args()
    wrong = faults(options.version)
    if not options.check and (dirty := changes()):
        wrong.append(f"not committed: {', '.join(dirty[:5])}{' ...' * (len(dirty) > 5)}")
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if options.check:
        return 0
    for command in (["make", "dist"], ["make", "walk"]):  # walk installs what dist built, and uses it
        print("===", *command, flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            return 1
    print(f"Ready. To release: git tag -a v{options.version} -m 'hpccoll {options.version}' && "
          f"git push origin v{options.version}\nThe workflow builds all wheels and waits for your "
          "approval before it uploads them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
