"""Gemma 1: Llama with gains of 1 + weight."""

from dataclasses import replace

from assay.models.adapter import FAMILIES
from assay.models.families.llama import LLAMA


GEMMA = FAMILIES.add("gemma", replace(LLAMA, key="gemma", model_types=("gemma",), norm="rms1"))
