"""Every picture of the documentation exists and is described; none lies unused."""

import re
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
}
# ![alt](target), or a directive with the target in its first line.
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<short>[^)]+)\)|\{(?:image|figure)\} (?P<long>\S+)")


def pictures(text: str) -> list[str]:
    return [match["short"] or match["long"] for match in PICTURE.finditer(text)]


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if pictures(text)])
def test_the_pictures_of_a_page_exist_and_are_described(page: str) -> None:
    for target in pictures(PAGES[page]):
        assert (DOCS / page).parent.joinpath(target).is_file(), target
    for match in PICTURE.finditer(PAGES[page]):
        assert match["long"] or len(match["alt"].split()) > 2, f"{page}: {match[0]} needs an alternative text"


def test_every_picture_is_shown() -> None:
    shown = {
        (DOCS / page).parent.joinpath(target).resolve()
        for page, text in PAGES.items()
        for target in pictures(text)
    }
    stored = {path.resolve() for path in (DOCS / "images").iterdir()}
    assert not stored - shown
