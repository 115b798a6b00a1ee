"""One thread for torch: the tensors of these tests are tiny, and other workers have tests for the other cores."""

import torch

torch.set_num_threads(1)
