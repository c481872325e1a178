"""Zoos of image classifiers: trained from a grid of recipes or found on disk, with what each predicts."""

from assay.zoo.archive import Correctness, Zoo, ZooEntry
from assay.zoo.grid import Augmentation, Grid, Recipe, select_configurations
from assay.zoo.models import initial_module, save_model
from assay.zoo.training import LossTerm, Term, TrainingRun, split, train, train_zoo


__all__ = [
    "Augmentation",
    "Correctness",
    "Grid",
    "LossTerm",
    "Recipe",
    "Term",
    "TrainingRun",
    "Zoo",
    "ZooEntry",
    "initial_module",
    "save_model",
    "select_configurations",
    "split",
    "train",
    "train_zoo",
]
