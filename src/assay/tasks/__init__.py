"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images."""

from assay.tasks.arithmetic import Arithmetic
from assay.tasks.capitals import CapitalCountry
from assay.tasks.choices import MultipleChoice, Question, question_of, read_questions
from assay.tasks.corruptions import CORRUPTIONS, Corruption, corrupt
from assay.tasks.digits import (
    COLOUR_DIGITS,
    DIGIT_CLASSES,
    DIGIT_SWAPS,
    DigitsSource,
    digits_source,
    digits_task,
    draw_digits,
)
from assay.tasks.docstring import Docstring
from assay.tasks.encoding import EncodedPrompts, encode_prompts, pair_task
from assay.tasks.files import read_pairs
from assay.tasks.grammar import TASKS, Grammar, Prompt, Read, task_data
from assay.tasks.image_batch import ImageBatch
from assay.tasks.image_datasets import read_dataset
from assay.tasks.image_source import find_domains, is_shapes, is_table, one_domain, read_files, read_table
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.indirect_object import IndirectObject
from assay.tasks.induction import Induction
from assay.tasks.load import draw_task, load_images, load_task
from assay.tasks.published import published_pair
from assay.tasks.rows import is_task_file
from assay.tasks.shapes import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.tasks.task import PairBatch, PairTask, Split, check_read_once, map_tensors
from assay.tasks.text import GenderedPronoun, GreaterThan, SubjectVerbAgreement
from assay.tasks.tokens import Tokens


# What a model may be run on, and the parts it is run in.
Task = PairTask | ImageTask
Batch = PairBatch | ImageBatch

__all__ = [
    "COLOUR_DIGITS",
    "CORRUPTIONS",
    "DIGIT_CLASSES",
    "DIGIT_SWAPS",
    "SHAPE_CLASSES",
    "SHAPE_DOMAINS",
    "TASKS",
    "Arithmetic",
    "Batch",
    "CapitalCountry",
    "Corruption",
    "DigitsSource",
    "Docstring",
    "EncodedPrompts",
    "EvalTransform",
    "GenderedPronoun",
    "Grammar",
    "GreaterThan",
    "ImageBatch",
    "ImageTask",
    "IndirectObject",
    "Induction",
    "MultipleChoice",
    "PairBatch",
    "PairTask",
    "Prompt",
    "Question",
    "Read",
    "Split",
    "SubjectVerbAgreement",
    "Task",
    "Tokens",
    "check_read_once",
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
    "question_of",
    "read_dataset",
    "read_files",
    "read_pairs",
    "read_questions",
    "read_table",
    "task_data",
]
