"""GGUF files as checkpoints: read by transformers, their weights dequantised."""

import warnings
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from assay.core.errors import FileFormatError
from assay.core.extras import needs_extra
from assay.models.checkpoints import checked_config, file_errors, refuse_missing, without_progress_bars
from assay.models.placing import NumberType, choose_dtype


_EXPECTED = "; it is cut off, or of an architecture or quantisation that transformers does not read"
_PLAIN = ("F64", "F32", "F16", "BF16")  # types of tensors that are not quantised


def from_gguf(
    path: Path, *, dtype: NumberType, device: torch.device, tokenizer: Any = None
) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The causal language model of a GGUF file, its tokenizer (with the chat template), and its origin.

    Args:
        path: The file.
        dtype: Number type of the weights; `auto` or None: float32.
        device: Where the model goes.
        tokenizer: Used in place of the one in the file.

    Raises:
        FileFormatError: If there is no such file, it is cut off, it has no tokenizer, or transformers does
            not read its architecture or undo its quantisation.
        MissingExtraError: If gguf or accelerate is not installed.
    """
    with needs_extra("gguf", f"{path} needs gguf and accelerate"):
        import accelerate  # noqa: F401 - transformers needs it for these files
        import gguf
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_file():
        raise FileFormatError(f"{path} does not exist; expected a GGUF file")
    number_type = choose_dtype(dtype, device, None)
    # Newer versions keep the weights packed where they can, unless told otherwise.
    kind = getattr(transformers, "GgufConfig", None)
    dense = {} if kind is None else {"quantization_config": kind(dequantize=True)}
    with (
        file_errors(str(path), "a GGUF file", _EXPECTED),
        TemporaryDirectory() as alone,
        without_progress_bars(report=False),
        warnings.catch_warnings(),
        redirect_stderr(StringIO()),  # a bar of tqdm's that cannot be turned off
    ):
        warnings.simplefilter("ignore")
        reader = gguf.GGUFReader(path)
        if tokenizer is None and reader.get_field("tokenizer.ggml.tokens") is None:
            raise FileFormatError(f"{path} has no tokenizer; take a GGUF file with one, or give tokenizer=")
        # Beside the file may lie a tokenizer, which transformers would take: not beside a link.
        (Path(alone) / path.name).symlink_to(path.resolve())
        config = checked_config(alone, gguf_file=path.name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone, gguf_file=path.name, config=config, dtype=number_type, output_loading_info=True, **dense
        )
        module: nn.Module
        module, info = loaded
        refuse_missing(str(path), info, len(list(module.parameters())))
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=path.name, trust_remote_code=False)
    sizes: Counter[str] = Counter()
    for each in reader.tensors:
        sizes[each.tensor_type.name] += int(each.n_elements)
    types = [name for name, _ in sizes.most_common() if name not in _PLAIN]
    origin = {"quantisation": f"{' + '.join(types)}, dequantised"} if types else {}
    return module.to(device), tokenizer, origin
