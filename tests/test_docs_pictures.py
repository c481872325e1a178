"""Every page of the documentation has a picture, or says why it has none; no picture lies unused."""

import re
import tomllib
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
}
REASONS = tomllib.loads((DOCS / "without_pictures.toml").read_text(encoding="utf-8"))["reasons"]
# ![alt](target), or a directive with the target in its first line.
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<short>[^)]+)\)|\{(?:image|figure)\} (?P<long>\S+)")


def pictures(text: str) -> list[str]:
    return [match["short"] or match["long"] for match in PICTURE.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_picture_or_a_reason(page: str) -> None:
    shown = pictures(PAGES[page])
    assert bool(shown) != (page in REASONS), f"{page}: {len(shown)} pictures, reason {REASONS.get(page)!r}"
    for target in shown:
        assert (DOCS / page).parent.joinpath(target).is_file(), target
    for match in PICTURE.finditer(PAGES[page]):
        assert match["long"] or len(match["alt"].split()) > 2, f"{page}: {match[0]} needs an alternative text"


def test_reasons_are_of_pages_that_exist() -> None:
    assert set(REASONS) <= set(PAGES)
    assert all(reason.strip() for reason in REASONS.values())


def test_every_picture_is_shown() -> None:
    shown = {
        (DOCS / page).parent.joinpath(target).resolve()
        for page, text in PAGES.items()
        for target in pictures(text)
    }
    stored = {path.resolve() for path in (DOCS / "images").iterdir()}
    assert not stored - shown
