"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images."""

from assay.tasks.batches import ImageBatch, PairBatch, map_tensors
from assay.tasks.corruptions import CORRUPTIONS, Corruption, corrupt
from assay.tasks.digits import (
    COLOUR_DIGITS,
    DIGIT_CLASSES,
    digits_source,
    digits_task,
    draw_digits,
)
from assay.tasks.encoding import Prompt, Tokens, encode_prompts
from assay.tasks.files import read_pairs
from assay.tasks.grammar import TASKS, Grammar, IndirectObject
from assay.tasks.image_datasets import read_dataset
from assay.tasks.image_source import find_domains, is_shapes, is_table, one_domain, read_files, read_table
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.load import draw_task, is_task_file, load_images, load_task
from assay.tasks.sequences import Induction
from assay.tasks.shapes import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.tasks.task import PairTask, pair_task


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
    "Corruption",
    "EvalTransform",
    "Grammar",
    "ImageBatch",
    "ImageTask",
    "IndirectObject",
    "Induction",
    "PairBatch",
    "PairTask",
    "Prompt",
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
    "read_dataset",
    "read_files",
    "read_pairs",
    "read_table",
]
