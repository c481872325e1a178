"""Zoos of image classifiers: trained from a grid of recipes or found on disk, with what each predicts."""

from assay.zoo.archive import Zoo, ZooEntry
from assay.zoo.augmentation import Augmentation
from assay.zoo.building import split, train_zoo
from assay.zoo.folders import save_model
from assay.zoo.grid import PRESETS, Grid, Initialisation
from assay.zoo.initial import Initial, initial_module
from assay.zoo.loss_term import LossTerm
from assay.zoo.recipe import Recipe
from assay.zoo.records import Correctness, Predictions, edge_scores, predict
from assay.zoo.run_folder import TrainingRun, Validation
from assay.zoo.selection import Selection, select_configurations
from assay.zoo.training import train


__all__ = [
    "PRESETS",
    "Augmentation",
    "Correctness",
    "Grid",
    "Initial",
    "Initialisation",
    "LossTerm",
    "Predictions",
    "Recipe",
    "Selection",
    "TrainingRun",
    "Validation",
    "Zoo",
    "ZooEntry",
    "correctness",
    "edge_scores",
    "initial_module",
    "predict",
    "save_model",
    "select_configurations",
    "split",
    "train",
    "train_zoo",
]

correctness = Zoo.correctness
