"""Where the figures of these tests are written: in `ASSAY_EVIDENCE`, else in the folder `evidence`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.record import plain


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`keep(name=value, ...)`: write figures under the name of the test."""

    def write(**figures: Any) -> None:
        folder = Path(os.environ.get("ASSAY_EVIDENCE", "evidence"))
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(figures), indent=1)
        (folder / f"{request.node.name.replace('/', '-')}.json").write_text(text + "\n")

    return write
