"""Tasks: pairs of clean and corrupted prompts drawn from seeded grammars or read from files, and images."""

from assay.tasks.alignment import align_prompts as align_prompts
from assay.tasks.arithmetic import Arithmetic as Arithmetic
from assay.tasks.capitals import CapitalCountry as CapitalCountry
from assay.tasks.choices import (
    MultipleChoice as MultipleChoice,
    Question as Question,
    question_of as question_of,
    read_questions as read_questions,
)
from assay.tasks.corruptions import CORRUPTIONS as CORRUPTIONS, Corruption as Corruption, corrupt as corrupt
from assay.tasks.digits import (
    COLOUR_DIGITS as COLOUR_DIGITS,
    DIGIT_CLASSES as DIGIT_CLASSES,
    DIGIT_SWAPS as DIGIT_SWAPS,
    DigitsSource as DigitsSource,
    digits_source as digits_source,
    digits_task as digits_task,
    draw_digits as draw_digits,
)
from assay.tasks.docstring import Docstring as Docstring
from assay.tasks.encoding import (
    EncodedPrompts as EncodedPrompts,
    encode_prompts as encode_prompts,
    pair_task as pair_task,
)
from assay.tasks.files import read_pairs as read_pairs
from assay.tasks.grammar import (
    TASKS as TASKS,
    Grammar as Grammar,
    Prompt as Prompt,
    Read as Read,
    task_data as task_data,
)
from assay.tasks.image_batch import ImageBatch as ImageBatch
from assay.tasks.image_files import (
    list_domains as list_domains,
    list_files as list_files,
    list_image_folder as list_image_folder,
    list_imagenet_c as list_imagenet_c,
    read_domains as read_domains,
    read_image_folder as read_image_folder,
    read_imagenet_c as read_imagenet_c,
)
from assay.tasks.image_listing import ImageListing as ImageListing, ReadOptions as ReadOptions
from assay.tasks.image_rows import ImageRows as ImageRows
from assay.tasks.image_set import ImageSet as ImageSet
from assay.tasks.image_shards import (
    list_npz as list_npz,
    list_parquet as list_parquet,
    list_shards as list_shards,
    read_npz as read_npz,
    read_parquet as read_parquet,
)
from assay.tasks.image_source import (
    DomainSource as DomainSource,
    find_domains as find_domains,
    is_shapes as is_shapes,
    one_domain as one_domain,
    read_source as read_source,
)
from assay.tasks.image_stream import DecodedBatch as DecodedBatch, ImageStream as ImageStream
from assay.tasks.image_tables import (
    WILDS_LAYOUTS as WILDS_LAYOUTS,
    TableLayout as TableLayout,
    list_table as list_table,
    read_table as read_table,
)
from assay.tasks.image_tar import list_tar as list_tar
from assay.tasks.image_transform import EvalTransform as EvalTransform
from assay.tasks.images import ImageTask as ImageTask
from assay.tasks.indirect_object import IndirectObject as IndirectObject
from assay.tasks.induction import Induction as Induction
from assay.tasks.load import (
    draw_task as draw_task,
    load_images as load_images,
    load_task as load_task,
    stream_images as stream_images,
)
from assay.tasks.loaded_sets import list_dataset as list_dataset, read_dataset as read_dataset
from assay.tasks.prompt_set import ArrivingPrompts as ArrivingPrompts
from assay.tasks.published import published_pair as published_pair
from assay.tasks.rows import is_task_file as is_task_file
from assay.tasks.shapes import (
    SHAPE_CLASSES as SHAPE_CLASSES,
    SHAPE_DOMAINS as SHAPE_DOMAINS,
    draw_shapes as draw_shapes,
)
from assay.tasks.task import (
    PairBatch as PairBatch,
    PairTask as PairTask,
    Split as Split,
    check_equal_lengths as check_equal_lengths,
    check_read_once as check_read_once,
    map_tensors as map_tensors,
)
from assay.tasks.text import (
    GenderedPronoun as GenderedPronoun,
    GreaterThan as GreaterThan,
    SubjectVerbAgreement as SubjectVerbAgreement,
)
from assay.tasks.tokens import Tokens as Tokens


# What a model may be run on, and the parts it is run in.
ImageInputs = ImageTask | ImageStream
Task = PairTask | ImageInputs
Batch = PairBatch | ImageBatch
