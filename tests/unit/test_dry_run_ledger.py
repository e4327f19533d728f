"""The dry run's ledger: what is found at the peak, and into which category it is put."""

from __future__ import annotations

import torch

from frontrunner.evaluators.trainer.dry_run import Category, Ledger, Phase

KIB = 1024


def seen(ledger: Ledger, size: int, category: Category | None = None) -> torch.Tensor:
    tensor = torch.empty(size, dtype=torch.uint8)
    ledger.see(tensor, category)
    return tensor


def found(ledger: Ledger) -> dict[Category, int]:
    return {category: size for category, size in ledger.peak().items() if size}


def test_what_outlives_its_pass_is_told_from_what_does_not() -> None:
    ledger = Ledger()
    weights = seen(ledger, 8 * KIB, Category.PARAMETERS)
    ledger.start()
    ledger.enter(Phase.FORWARD)
    kept = seen(ledger, 4 * KIB)
    passing = seen(ledger, 2 * KIB)
    view = passing[:10]
    ledger.see(view, None)  # another tensor over the same storage
    del passing, view
    ledger.enter(Phase.BACKWARD, 1)
    gradient = seen(ledger, KIB)
    ledger.enter(None)
    assert found(ledger) == {
        Category.PARAMETERS: 8 * KIB,
        Category.ACTIVATIONS: 4 * KIB,
        Category.TEMPORARY: 2 * KIB,
    }
    del kept, weights, gradient


def test_what_is_recomputed_interrupts_a_backward_pass_and_does_not_end_it() -> None:
    ledger = Ledger()
    ledger.enter(Phase.BACKWARD, 1)
    passing = seen(ledger, KIB)
    ledger.enter(Phase.RECOMPUTE, 1)
    recomputed = seen(ledger, 2 * KIB)
    ledger.enter(Phase.BACKWARD, 1)
    gradient = seen(ledger, 4 * KIB)
    del passing, recomputed
    ledger.enter(Phase.BACKWARD, 2)
    del gradient
    ledger.enter(None)
    assert found(ledger) == {
        Category.TEMPORARY: KIB,
        Category.ACTIVATIONS: 2 * KIB,
        Category.GRADIENTS: 4 * KIB,
    }


def test_storages_that_shrink_and_grow_are_followed() -> None:
    ledger = Ledger()
    buffer = seen(ledger, 4 * KIB, Category.GATHERED_PARAMETERS)
    buffer.untyped_storage().resize_(0)
    ledger.resized(buffer.untyped_storage())
    ledger.start()
    other = seen(ledger, KIB, Category.GRADIENTS)
    assert found(ledger) == {Category.GRADIENTS: KIB}
    buffer.untyped_storage().resize_(2 * KIB)
    ledger.resized(buffer.untyped_storage())
    assert found(ledger) == {Category.GATHERED_PARAMETERS: 2 * KIB, Category.GRADIENTS: KIB}
    del other


def test_a_label_is_given_once() -> None:
    ledger = Ledger()
    tensor = seen(ledger, KIB)
    ledger.label([tensor], Category.OPTIMIZER_STATES)
    ledger.label(None, Category.PARAMETERS)
    assert found(ledger) == {Category.OPTIMIZER_STATES: KIB}
