"""Put the address of the repository into a checkout before a release is built: URL TAG.

Project URLs go into pyproject.toml, and the relative links of the README become absolute, since the package
index shows it without the files. The tag must be the version of the package.
"""

import re
import sys
from pathlib import Path


def main(url: str, tag: str) -> str | None:
    """What is wrong; none if both files were changed."""
    root = Path(__file__).resolve().parents[1]
    source = (root / "src" / "assay" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    found = version[1] if version else "without a version"
    if tag != f"v{found}":
        return f"the tag is {tag}, the package {found}; tag the commit v{found}"
    if not re.fullmatch(r"https://[\w.-]+/[\w./-]+", url):
        return f"{url!r} is not the address of a repository; give https://HOST/OWNER/NAME"

    project = root / "pyproject.toml"
    urls = (
        f'[project.urls]\nRepository = "{url}"\nIssues = "{url}/issues"\n'
        f'Documentation = "{url}/blob/{tag}/docs/index.md"\nChangelog = "{url}/blob/{tag}/CHANGELOG.md"\n\n'
    )
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("[project.scripts]", urls + "[project.scripts]", 1), encoding="utf-8")

    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/raw/{tag}/", text)
    text = re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/blob/{tag}/", text)
    readme.write_text(text, encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
