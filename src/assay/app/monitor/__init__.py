"""Monitors that run for weeks: their loop, alarms and metrics."""
