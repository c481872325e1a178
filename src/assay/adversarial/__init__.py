"""Worst-case evaluation: on which inputs a circuit departs from its model, how far, and what a sample proves."""
