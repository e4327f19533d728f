"""A plug-in for frontrunner: probes of a trainer of one's own. The page docs/other-trainers.md
shows this file.
"""

from frontrunner.evaluators.programs.command import Command, CommandRequest
from frontrunner.spaces.legality import Reason


def my_trainer(request: CommandRequest) -> Command | Reason:
    """The command that measures a recipe, or why it cannot be run."""
    recipe, problem = request.recipe, request.problem
    if recipe.pipeline_parallel > 1:
        return Reason("my-trainer-pipeline", "my trainer has no pipeline parallelism")
    return Command(
        arguments=(
            "torchrun",
            *("--nproc-per-node", str(recipe.devices)),
            "train.py",
            *("--config", str(request.run_folder / "run.ini")),
        ),
        files={
            "run.ini": f"""\
[model]
layers = {len(problem.model.layers)}
hidden = {problem.model.hidden}
[run]
tensor_parallel = {recipe.tensor_parallel}
micro_batch = {recipe.micro_batch_seqs}
accumulation = {recipe.accumulation}
steps = {request.probe.most_steps}
"""
        },
        environment={"OMP_NUM_THREADS": "1"},
        log_patterns=(
            r"step (?P<step>\d+): (?P<step_time_ms>[\d.]+) ms, loss (?P<loss>\S+)",
            r"peak memory (?P<peak_memory_gib>[\d.]+) GiB",
        ),
    )
