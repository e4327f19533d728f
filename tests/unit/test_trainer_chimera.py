"""Why there is no Chimera schedule: torch's schedules hold each stage on one rank. See
docs/decisions/0007.
"""

import pytest
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _validate_schedule

FORWARD, BACKWARD = _ComputationType.FORWARD, _ComputationType.FULL_BACKWARD


def test_torch_still_refuses_a_stage_on_two_ranks() -> None:
    """Two stages, one micro-batch in each direction: down over ranks 0 and 1, up over ranks 1 and
    0.
    """
    down, up = 0, 1
    schedule: dict[int, list[_Action | None]] = {
        0: [
            _Action(0, FORWARD, down),
            _Action(1, FORWARD, up),
            _Action(1, BACKWARD, up),
            _Action(0, BACKWARD, down),
        ],
        1: [
            _Action(0, FORWARD, up),
            _Action(1, FORWARD, down),
            _Action(1, BACKWARD, down),
            _Action(0, BACKWARD, up),
        ],
    }

    with pytest.raises(AssertionError, match="Stage 0 is assigned to both rank 1 and rank 0"):
        _validate_schedule(schedule, pp_group_size=2, num_stages=2, num_microbatches=2)
