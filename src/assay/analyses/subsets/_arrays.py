"""Arrays that pass between the files of this package, named by what they hold."""

import numpy as np
from jaxtyping import Float64, Int64


Accuracies = Float64[np.ndarray, " m"]  # a number per model: its accuracy, as a share or in probits
Units = Int64[np.ndarray, " m"]  # per model, the code of its training run or family
Places = Int64[np.ndarray, " _"]  # of some models or examples, counted from 0
