"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images."""

from assay.tasks.alignment import align_prompts
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
from assay.tasks.image_files import (
    list_domains,
    list_files,
    list_image_folder,
    list_imagenet_c,
    read_domains,
    read_image_folder,
    read_imagenet_c,
)
from assay.tasks.image_listing import ImageListing, ReadOptions
from assay.tasks.image_rows import ImageRows
from assay.tasks.image_set import ImageSet
from assay.tasks.image_shards import list_npz, list_parquet, list_shards, read_npz, read_parquet
from assay.tasks.image_source import (
    DomainSource,
    find_domains,
    is_shapes,
    one_domain,
    read_source,
)
from assay.tasks.image_stream import DecodedBatch, ImageStream
from assay.tasks.image_tables import WILDS_LAYOUTS, TableLayout, list_table, read_table
from assay.tasks.image_tar import list_tar
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.indirect_object import IndirectObject
from assay.tasks.induction import Induction
from assay.tasks.load import draw_task, load_images, load_task, stream_images
from assay.tasks.loaded_sets import list_dataset, read_dataset
from assay.tasks.published import published_pair
from assay.tasks.rows import is_task_file
from assay.tasks.shapes import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.tasks.task import PairBatch, PairTask, Split, check_equal_lengths, check_read_once, map_tensors
from assay.tasks.text import GenderedPronoun, GreaterThan, SubjectVerbAgreement
from assay.tasks.tokens import Tokens


# What a model may be run on, and the parts it is run in.
ImageInputs = ImageTask | ImageStream
Task = PairTask | ImageInputs
Batch = PairBatch | ImageBatch

__all__ = [
    "COLOUR_DIGITS",
    "CORRUPTIONS",
    "DIGIT_CLASSES",
    "DIGIT_SWAPS",
    "SHAPE_CLASSES",
    "SHAPE_DOMAINS",
    "TASKS",
    "WILDS_LAYOUTS",
    "Arithmetic",
    "Batch",
    "CapitalCountry",
    "Corruption",
    "DecodedBatch",
    "DigitsSource",
    "Docstring",
    "DomainSource",
    "EncodedPrompts",
    "EvalTransform",
    "GenderedPronoun",
    "Grammar",
    "GreaterThan",
    "ImageBatch",
    "ImageInputs",
    "ImageListing",
    "ImageRows",
    "ImageSet",
    "ImageStream",
    "ImageTask",
    "IndirectObject",
    "Induction",
    "MultipleChoice",
    "PairBatch",
    "PairTask",
    "Prompt",
    "Question",
    "Read",
    "ReadOptions",
    "Split",
    "SubjectVerbAgreement",
    "TableLayout",
    "Task",
    "Tokens",
    "align_prompts",
    "check_equal_lengths",
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
    "is_task_file",
    "list_dataset",
    "list_domains",
    "list_files",
    "list_image_folder",
    "list_imagenet_c",
    "list_npz",
    "list_parquet",
    "list_shards",
    "list_table",
    "list_tar",
    "load_images",
    "load_task",
    "map_tensors",
    "one_domain",
    "pair_task",
    "published_pair",
    "question_of",
    "read_dataset",
    "read_domains",
    "read_image_folder",
    "read_imagenet_c",
    "read_npz",
    "read_pairs",
    "read_parquet",
    "read_questions",
    "read_source",
    "read_table",
    "stream_images",
    "task_data",
]
