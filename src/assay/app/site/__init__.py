"""The site of a results store; needs the extra `serve`."""

import importlib

from assay.core.extras import needs_extra


with needs_extra("serve", "`assay serve` needs starlette and uvicorn"):
    for _module in ("starlette", "uvicorn"):
        importlib.import_module(_module)
