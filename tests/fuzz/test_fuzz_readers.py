"""Damaged files, of every kind that is read: a named error or a value, and nothing else happens."""

import os
import pickle
import subprocess
from pathlib import Path
from random import Random

import fuzz_targets
import hypothesis
import pytest
from hypothesis import strategies as st
from reader_guard import Breach, watched


EXAMPLES = int(os.environ.get("ASSAY_FUZZ_EXAMPLES", "25"))  # of each kind


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_a_damaged_file_is_read_or_named(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("damaged") / "files"
    seen = set()

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)
    @hypothesis.given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        seen.add(fuzz_targets.attack(name, random, root))

    run()
    assert seen - {"read"}, "no damage was noticed, so none was done"


def test_the_watch_sees_what_must_not_happen(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    with watched(inside):
        (inside / "fine").write_text("fine")
    for forbidden in (
        lambda: outside.write_text("x"),
        lambda: (inside / "fine").rename(outside),
        lambda: subprocess.run(["true"], check=True),
        lambda: pickle.loads(b"cos\nsystem\n."),  # noqa: S301 - this is what must be seen
    ):
        with pytest.raises(Breach), watched(inside):
            forbidden()
    with pytest.raises(MemoryError), watched():
        bytearray(1 << 40)
