"""The site of a results store; needs the extra `serve`."""

import importlib

from assay.core.extras import needs_extra


with needs_extra("serve", "`assay serve` needs starlette, uvicorn and prometheus-client"):
    for _module in ("starlette", "uvicorn", "prometheus_client"):
        importlib.import_module(_module)
