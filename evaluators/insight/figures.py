"""All figures of one campaign, from one reading of the store; each is computed when it is first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from frontrunner.evaluators.insight import history as course
from frontrunner.evaluators.insight import importance as weights
from frontrunner.evaluators.insight import landscape, predicted, sensitivity
from frontrunner.evaluators.insight.collected import Collected, Missing


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is drawn of one campaign, or why a figure is not."""

    collected: Collected

    @cached_property
    def history(self) -> course.History | Missing:
        """The best so far."""
        return course.history(self.collected)

    @cached_property
    def spending(self) -> tuple[course.Spent, ...] | Missing:
        """Node-hours by outcome."""
        return course.spending(self.collected)

    @cached_property
    def speed_memory(self) -> landscape.SpeedMemory | Missing:
        """Speed against memory, with the front."""
        return landscape.speed_memory(self.collected)

    @cached_property
    def parallel(self) -> landscape.Parallel | Missing:
        """The measured recipes over their knobs."""
        return landscape.parallel(self.collected)

    @cached_property
    def feasibility(self) -> landscape.Feasibility | Missing:
        """What ran and what failed, by corner of the space."""
        return landscape.feasibility(self.collected)

    @cached_property
    def predicted(self) -> predicted.Predicted | Missing:
        """The analytic model against the measurements."""
        return predicted.predicted(self.collected)

    @cached_property
    def sensitivity(self) -> sensitivity.Sensitivity | Missing:
        """One knob at a time around the best recipe."""
        return sensitivity.sensitivity(self.collected)

    @cached_property
    def importance(self) -> weights.Importance | Missing:
        """The knobs' shares by PED-ANOVA and fANOVA."""
        return weights.importance(self.collected)

    @cached_property
    def shap_values(self) -> weights.ShapValues | Missing:
        """The knobs' SHAP values."""
        return weights.shap_values(self.collected)
