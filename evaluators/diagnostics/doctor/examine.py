"""All checks of a machine, in the order in which they are shown."""

from __future__ import annotations

import os
import sqlite3
import sys

from frontrunner.evaluators.cluster.environment import job_environment
from frontrunner.evaluators.diagnostics.doctor import machine, site
from frontrunner.evaluators.diagnostics.doctor.check import Check, Needs, run_checks
from frontrunner.evaluators.probe.this_machine import detect


def examine(needs: Needs) -> tuple[Check, ...]:
    """Check this machine, this job and this installation. Takes as long as importing torch does."""
    torch, fabric, limits = machine.torch_facts(), site.gather_fabric(), machine.gather_limits()
    backend = torch.built_for if torch.devices else "cpu"
    software, devices, ceilings = machine.SOFTWARE, machine.DEVICES, machine.LIMITS
    return run_checks([
        (software, "python", lambda: machine.check_python(sys.version_info[:3])),
        (software, "packages", lambda: machine.check_packages(machine.gather_packages(), needs.packages)),
        (software, "sqlite", lambda: machine.check_sqlite(sqlite3.sqlite_version_info)),
        (software, "compiler", lambda: machine.check_tools(machine.gather_tools(), needs)),
        (devices, "torch", lambda: machine.check_torch(torch, machine.gather_accelerators())),
        (devices, "devices", lambda: machine.check_devices(torch, machine.gather_accelerators())),
        (devices, "driver", lambda: machine.check_driver(machine.gather_accelerators())),
        (devices, "collectives", lambda: machine.check_collectives(torch)),
        (devices, "campaign", lambda: machine.check_needed_devices(torch, needs)),
        (site.JOB, "scheduler", lambda: site.check_schedulers(site.gather_schedulers(), needs.scheduler)),
        (site.JOB, "allocation", lambda: site.check_job(job_environment(os.environ, detect()), needs)),
        (site.NETWORK, "host name", lambda: site.check_host(site.gather_host())),
        (site.NETWORK, "loopback", lambda: site.check_loopback(site.gather_loopback())),
        (site.NETWORK, "fabric", lambda: site.check_fabric(fabric, backend)),
        *site.storage_checks(needs),
        (ceilings, "memory", lambda: machine.check_memory(machine.gather_memory())),
        (ceilings, "open files", lambda: machine.check_open_files(limits)),
        (ceilings, "locked memory", lambda: machine.check_locked(limits, has_fabric=bool(fabric.kinds))),
        (ceilings, "shared memory", lambda: machine.check_shared(limits, has_devices=bool(torch.devices))),
        (ceilings, "clock", lambda: machine.check_clocks(machine.gather_clocks())),
    ])  # fmt: skip
