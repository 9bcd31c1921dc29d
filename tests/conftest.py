"""What all tests share."""

import os

import torch
from hypothesis import settings

settings.register_profile("attnwidget", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("attnwidget")

torch.set_num_threads(1)  # small tensors: threads would only wait for one another
