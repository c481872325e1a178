"""The results people ask for: worst cases, calibrations, generalization, subsets, benchmarks."""
