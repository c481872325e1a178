"""How many operators runs dispatch: on a GPU and at small shapes they are the time."""

from bench_launches import GOALS, measure


def test_attribution_and_circuits_launch_few_operators() -> None:
    table = measure().dropna()
    assert set(table.job) == set(GOALS)
    assert (table.ratio <= table.goal).all(), table.to_string()
