"""All checks of a machine, in the order in which they are told."""

from __future__ import annotations

from frontrunner.evaluators.diagnostics.doctor.checks import Check, run_checks
from frontrunner.evaluators.diagnostics.doctor.devices import device_checks
from frontrunner.evaluators.diagnostics.doctor.limits import limit_checks
from frontrunner.evaluators.diagnostics.doctor.network import gather_fabric, network_checks
from frontrunner.evaluators.diagnostics.doctor.scheduling import job_checks
from frontrunner.evaluators.diagnostics.doctor.software import software_checks
from frontrunner.evaluators.diagnostics.doctor.storage import storage_checks
from frontrunner.evaluators.diagnostics.doctor.torch_seen import ask_torch
from frontrunner.evaluators.diagnostics.doctor.wanted import Wanted


def examine(wanted: Wanted) -> tuple[Check, ...]:
    """Look at this machine, at this job and at this installation. Takes as long as importing torch does."""
    seen = ask_torch()
    backend = seen.built_for if seen.devices else "cpu"
    has_fabric = bool(gather_fabric().kinds)
    return run_checks(
        [
            *software_checks(wanted),
            *device_checks(wanted),
            *job_checks(wanted),
            *network_checks(backend),
            *storage_checks(wanted),
            *limit_checks(has_fabric=has_fabric, has_devices=bool(seen.devices)),
        ]
    )
