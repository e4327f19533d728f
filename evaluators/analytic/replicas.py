"""Gradients and parameters over the replicas, each collective at the level of its sharding degree."""

from __future__ import annotations

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine, ring_s
from frontrunner.evaluators.analytic.workload import Rows, Workload

LEAST_SHOWN = 0.05
"""Share of the replicas' traffic that no computation hides: its first and last message have nothing beside them."""


def replicas_s(machine: Machine, work: Workload, parameters: Rows, forward: Rows, backward: Rows) -> Rows:
    """Time of a step that waits for the replicas, on a rank that holds `parameters` before any sharding.

    `forward` and `backward` are that rank's times for one micro-batch. With degrees p, g, o of N copies: parameters
    are gathered over p for each pass of each micro-batch, over a secondary partition for the backward pass where there
    is one; gradients are reduced over g after each, if g > 1, and then once a step over o / g, and over the N / o
    copies that are left; new parameters are gathered over o / p.
    """
    software = machine.software
    hides = software.overlaps_unsharded | (work.sharding_parameters > 1)
    hides = hides & (software.overlaps_scattered | (work.sharding_optimizer == 1))
    overlap: Rows = np.where(hides, software.gradient_overlap, 0.0)
    each = _each_micro_batch(machine, work, parameters)
    once = _once(machine, work, parameters)
    repeated = np.where(work.gradient_sync_each & (work.sharding_gradients == 1), once, 0.0)
    per_pass = np.where(work.sharding_parameters > 1, forward + backward, backward)
    shown = np.maximum(each + repeated - overlap * per_pass, LEAST_SHOWN * (each + repeated))
    last = np.where(work.gradient_sync_each, 0.0, np.maximum(once - overlap * backward, LEAST_SHOWN * once))
    return work.accumulation * shown + last + _published(machine, work, parameters)


def _each_micro_batch(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    p, g, stride = work.sharding_parameters, work.sharding_gradients, work.copy_stride
    weights = parameters * work.bytes_per_value
    gradients = parameters * machine.gradient_bytes(work.bytes_per_value)
    layers = np.maximum(parameters * work.tensor_parallel / work.layer_matmul_parameters, 1)
    gathered = ring_s(machine, weights, group=p, stride=stride, passes=1, messages=layers)
    again = gathered
    if (work.secondary_partition > 1).any():
        near = ring_s(machine, weights, group=work.secondary_partition, stride=stride, passes=1, messages=layers)
        again = np.where((p > 1) & (work.secondary_partition > 1), near, gathered)
    return gathered + again + ring_s(machine, gradients, group=g, stride=stride, passes=1, messages=layers)


def _once(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    g, o, stride = work.sharding_gradients, work.sharding_optimizer, work.copy_stride
    gradients = parameters * machine.gradient_bytes(work.bytes_per_value)
    messages = _messages(machine, work, parameters)
    scatter = ring_s(machine, gradients / g, group=o / g, stride=stride * g, passes=1, messages=messages)
    copies = work.copies / o
    return scatter + ring_s(machine, gradients / o, group=copies, stride=stride * o, passes=2, messages=messages)


def _messages(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """In how many messages gradients are reduced once a step; at least one."""
    layers = machine.software.message_layers * work.layer_matmul_parameters / work.tensor_parallel
    return np.maximum(parameters / np.maximum(machine.software.message_elements, layers), 1.0)


def _published(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    p, o, stride = work.sharding_parameters, work.sharding_optimizer, work.copy_stride
    weights = parameters * work.bytes_per_value
    return ring_s(machine, weights / p, group=o / p, stride=stride * p, passes=1)
