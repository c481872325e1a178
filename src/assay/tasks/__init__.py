"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images."""

from assay.tasks.batches import ImageBatch, PairBatch, map_tensors
from assay.tasks.corruptions import CORRUPTIONS, Corruption, corrupt
from assay.tasks.digits import (
    COLOUR_DIGITS,
    DIGIT_CLASSES,
    DigitsSource,
    digits_source,
    digits_task,
    draw_digits,
)
from assay.tasks.encoding import encode_prompts, pair_task
from assay.tasks.files import published_pair, read_pairs
from assay.tasks.grammar import TASKS, Grammar, Prompt, task_data
from assay.tasks.image_datasets import read_dataset
from assay.tasks.image_source import find_domains, is_shapes, is_table, one_domain, read_files, read_table
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.load import draw_task, load_images, load_task
from assay.tasks.rows import is_task_file
from assay.tasks.sequences import Docstring, Induction
from assay.tasks.shapes import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.tasks.task import PairTask
from assay.tasks.text import (
    CapitalCountry,
    GenderedPronoun,
    GreaterThan,
    IndirectObject,
    SubjectVerbAgreement,
)
from assay.tasks.tokens import Tokens


# What a model may be run on, and the parts it is run in.
Task = PairTask | ImageTask
Batch = PairBatch | ImageBatch

__all__ = [
    "COLOUR_DIGITS",
    "CORRUPTIONS",
    "DIGIT_CLASSES",
    "SHAPE_CLASSES",
    "SHAPE_DOMAINS",
    "TASKS",
    "Batch",
    "CapitalCountry",
    "Corruption",
    "DigitsSource",
    "Docstring",
    "EvalTransform",
    "GenderedPronoun",
    "Grammar",
    "GreaterThan",
    "ImageBatch",
    "ImageTask",
    "IndirectObject",
    "Induction",
    "PairBatch",
    "PairTask",
    "Prompt",
    "SubjectVerbAgreement",
    "Task",
    "Tokens",
    "corrupt",
    "digits_source",
    "digits_task",
    "draw_digits",
    "draw_shapes",
    "draw_task",
    "encode_prompts",
    "find_domains",
    "is_shapes",
    "is_table",
    "is_task_file",
    "load_images",
    "load_task",
    "map_tensors",
    "one_domain",
    "pair_task",
    "published_pair",
    "read_dataset",
    "read_files",
    "read_pairs",
    "read_table",
    "task_data",
]
