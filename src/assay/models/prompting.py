"""What holds for every prompt that a model is given."""

import copy
from typing import Any

from assay.core.errors import InputError
from assay.models.adapter import Model


def prompted(model: Model, **rules: Any) -> Model:
    """The model with other usual rules of how prompts become ids; the module is shared.

    Args:
        model: A language model.
        **rules: `bos`, `chat` and `answer_tokens` of `load_task`, which then hold for every task
            that is loaded for this model, unless that call says otherwise.

    Raises:
        InputError: If the model reads images.

    Example:
        >>> from assay.models import load_model
        >>> prompted(load_model("mini"), answer_tokens="first").prompt_rules
        {'answer_tokens': 'first'}
    """
    if model.vision is not None:
        raise InputError(f"{model.id} reads images, so {' and '.join(rules)} do not apply; leave them out")
    other = copy.copy(model)
    other.prompt_rules = {**model.prompt_rules, **rules}
    return other
