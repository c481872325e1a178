"""Zoos of image classifiers: trained from a grid of recipes or found on disk, with what each predicts."""

from assay.zoo.augmentation import Augmentation
from assay.zoo.folders import save_model
from assay.zoo.recipe import Recipe
from assay.zoo.training import LossTerm, TrainingRun, train


__all__ = ["Augmentation", "LossTerm", "Recipe", "TrainingRun", "save_model", "train"]
