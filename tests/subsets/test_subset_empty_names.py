"""Tables with a cell too few or a column too many: the error says where, and what to do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import InputError, by_option
from assay.pipeline.subset_data import read_data


SKILL = [0.9, 0.8, 0.7, 0.6]
WIDE = pd.DataFrame(np.eye(4, 5, dtype=int), list("abcd"), list("vwxyz"))


@pytest.mark.parametrize("rows", [[2], [2, 3]])
@pytest.mark.parametrize("name", ["model", "example_id"])
def test_a_name_that_is_missing_is_a_row_that_is_named(tmp_path: Path, name: str, rows: list[int]) -> None:
    frame = (WIDE if name == "model" else WIDE.T).rename_axis(name).reset_index()
    frame.loc[rows, name] = None
    with pytest.raises(InputError, match=rf"frame\['{name}'\] is missing in row 2; fill it in"):
        CorrectnessData.from_frame(frame, id_accuracy=SKILL)
    with pytest.raises(InputError, match="index is missing in row 2; fill it in"):
        CorrectnessData.from_frame(frame.set_index(name), id_accuracy=SKILL)
    if name == "model":
        frame.insert(1, "id_accuracy", SKILL)
    else:
        frame = frame.astype(object)
        frame.loc[5] = ["id_accuracy", *SKILL]
    frame.to_csv(tmp_path / "empty.csv", index=False)
    with pytest.raises(InputError, match=rf"frame\['{name}'\] is missing in row 2; fill it in"):
        read_data(tmp_path / "empty.csv")


@pytest.mark.parametrize("turned", [False, True])
def test_a_column_without_a_name_is_refused(turned: bool, tmp_path: Path) -> None:
    frame = WIDE.T if turned else WIDE
    with pytest.raises(InputError, match="column 1 of the table has no name; name it, or remove it"):
        CorrectnessData.from_frame(frame.set_axis([frame.columns[0], None, *frame.columns[2:]], axis=1))
    frame.rename(columns={frame.columns[1]: ""}).to_csv(tmp_path / "empty.csv")
    with pytest.raises(InputError, match="column 2 of the table has no name; name it, or remove it"):
        read_data(tmp_path / "empty.csv")


@pytest.mark.parametrize("bad", [90.0, np.nan])
def test_an_accuracy_that_is_none_names_its_model(bad: float) -> None:
    accuracy = pd.Series([bad, *SKILL[1:]], list("abcd"))
    for correct in (WIDE, WIDE.to_numpy()):
        with pytest.raises(InputError, match=r"id_accuracy of model 'a' is (90.0|nan); accuracies are"):
            CorrectnessData.of(correct, accuracy)
    with pytest.raises(InputError, match=r"id_accuracy\[0\] is (90.0|nan)"):
        CorrectnessData.of(WIDE.to_numpy(), accuracy.to_numpy())


def test_messages_speak_of_options_on_the_command_line() -> None:
    with pytest.raises(InputError) as refused:
        CorrectnessData.from_frame(WIDE, id_accuracy=SKILL, meta=["light"])
    assert "--facts light names columns of a long or transposed table" in by_option(str(refused.value))
    assert "give --examples FILE instead" in by_option(str(refused.value))
    with pytest.raises(InputError, match="family='lr'") as refused:
        CorrectnessData.from_frame(WIDE.assign(lr=0.1), id_accuracy=SKILL)
    expected = "give --groups lr or --families lr; if it is not an example, remove it"
    assert expected in by_option(str(refused.value))
