"""Writes the recipe of conda-forge for the sdist that `make dist` has built: dist/recipe/recipe.yaml.

    python tools/conda.py            reads dist/
    python tools/conda.py FOLDER     reads another folder
    python tools/conda.py --url=URL  with the address of the sdist, as conda-forge wants it

Version, digest and requirements come from the sdist itself, so that they stand in no second place. With the package
py-rattler-build installed, the recipe is rendered as well: a mistake in it ends with rattler-build's own words. To
build it, conda's channels must be in reach.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tarfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

DIST = Path(__file__).resolve().parent.parent / "dist"
CALLED = {"torch": "pytorch"}  # on conda-forge
OLDEST = "3.10"  # a noarch package has one list of requirements: that of the oldest Python
URL = "--url="
RECIPE = """\
schema_version: 1

package:
  name: attnwidget
  version: {version}

source:
  {source}
  sha256: {digest}

build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation

requirements:
  host:
    - python {python}
    - pip
    - hatchling >=1.27
  run:
    - python {python}
{run}

tests:
  - python:
      imports: [attnwidget]
      pip_check: true

about:
  summary: {summary}
  license: {license}
  license_file: [LICENSE, licenses/]
"""


def about(sdist: Path) -> dict[str, list[str]]:
    """Return the metadata of an sdist, each field as a list."""
    with tarfile.open(sdist) as archive:
        name = next(one for one in archive.getnames() if one.count("/") == 1 and one.endswith("/PKG-INFO"))
        file = archive.extractfile(name)
        assert file is not None
        found = HeaderParser().parsestr(file.read().decode())
    return {field: found.get_all(field) or [] for field in set(found.keys())}


def needs(fields: dict[str, list[str]]) -> list[str]:
    """Return what the package needs on the oldest Python, by conda-forge's names."""
    named = map(Requirement, fields["Requires-Dist"])
    there = [one for one in named if one.marker is None or one.marker.evaluate({"python_version": OLDEST, "extra": ""})]
    return sorted(f"{CALLED.get(one.name, one.name)} {one.specifier}" for one in there)


def recipe_of(sdist: Path, url: str = "") -> str:
    """Return the recipe of an sdist; without its address it is read from beside the recipe's folder."""
    fields = about(sdist)
    return RECIPE.format(
        version=json.dumps(fields["Version"][0]),
        source=f"url: {url}" if url else f"path: ../{sdist.name}",
        digest=hashlib.sha256(sdist.read_bytes()).hexdigest(),
        python=fields["Requires-Python"][0],
        run="\n".join(f"    - {one}" for one in needs(fields)),
        summary=json.dumps(fields["Summary"][0]),
        license=fields["License-Expression"][0],
    )


def main(arguments: Sequence[str]) -> None:
    """Write the recipe, and render it where that is possible."""
    url = next((one.removeprefix(URL) for one in arguments if one.startswith(URL)), "")
    folder = next((Path(one) for one in arguments if not one.startswith(URL)), DIST)
    (sdist,) = folder.glob("attnwidget-*.tar.gz")
    path = folder / "recipe" / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(recipe_of(sdist, url), encoding="utf-8")
    print(path)
    if importlib.util.find_spec("rattler_build") is None:
        print("not rendered: py-rattler-build is not installed")
        return
    import rattler_build  # type: ignore[import-not-found]

    rendered = rattler_build.Stage0Recipe.from_yaml(path.read_text(encoding="utf-8")).render(
        rattler_build.VariantConfig()
    )
    print(f"rendered {len(rendered)} package by rattler-build {rattler_build.get_rattler_build_version_py()}")


if __name__ == "__main__":
    main(sys.argv[1:])
