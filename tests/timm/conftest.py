"""The tests of this folder need timm, which lives in an environment of its own: `make test-timm`."""

import importlib.util


# A folder called timm is found as a namespace even without the package, torchvision is not.
_INSTALLED = importlib.util.find_spec("torchvision") is not None

collect_ignore_glob = [] if _INSTALLED else ["test_*.py"]


def pytest_report_header() -> str | None:
    if not _INSTALLED:
        return "tests/timm: left out, timm is not installed here; run `make test-timm`"
    return None


if _INSTALLED:
    # Test modules import timm by name; the package imports it first, as it does for a user.
    from assay.models.timm_models import timm_create_model

    timm_create_model("the tests of this folder")
