"""The types of results, for annotations.

>>> import torch
>>> from attnwidget import Attention, results
>>> def worst(found: list[results.Finding]) -> str:
...     return found[0].severity if found else "fine"
>>> worst(Attention(*torch.zeros(2, 3, 4)).check())
'note'
"""

from ._analysis.diagnostics import Finding
from ._analysis.effect import Effect, MovedToken
from ._analysis.explain import Explanation, RuleEffect
from ._analysis.gradients import Gradients
from ._analysis.head_card import AtlasLink, HeadCard, OverTexts
from ._analysis.head_kinds import HeadRows
from ._analysis.keep import Kept
from ._analysis.metrics import Metrics
from ._analysis.output_path import OutputPath
from ._analysis.plane import Plane
from ._analysis.segment_mass import SegmentMass
from ._analysis.statistics import Statistics
from ._analysis.why.part_names import StreamPart
from ._analysis.why.results import Composition, DistanceProfile, Edge, Why, WhyRow
from ._engine.overview import Overview
from ._engine.weights_block import WeightsBlock
from ._segments.named import Segment
from ._segments.segments import Segments
from ._utils.report import Report

__all__ = [
    "AtlasLink",
    "Composition",
    "DistanceProfile",
    "Edge",
    "Effect",
    "Explanation",
    "Finding",
    "Gradients",
    "HeadCard",
    "HeadRows",
    "Kept",
    "Metrics",
    "MovedToken",
    "OutputPath",
    "OverTexts",
    "Overview",
    "Plane",
    "Report",
    "RuleEffect",
    "Segment",
    "SegmentMass",
    "Segments",
    "Statistics",
    "StreamPart",
    "WeightsBlock",
    "Why",
    "WhyRow",
]
