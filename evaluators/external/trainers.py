"""Ready-made trainers, and a campaign's own command, as functions from a recipe to a command."""

from __future__ import annotations

import json

from frontrunner.evaluators.export.base import yaml_text
from frontrunner.evaluators.export.reading import yaml_section
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.external.command import Command, CommandRequest, MakeCommand
from frontrunner.evaluators.external.fields import field_values
from frontrunner.evaluators.external.logs import LOG_PATTERNS
from frontrunner.evaluators.external.patterns import patterns_of
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.external.template import Template, filled_text
from frontrunner.spaces.errors import bad_value, require_one_of
from frontrunner.spaces.legality import Reason

STEPS: dict[str, tuple[str, ...]] = {
    "megatron-lm": ("--train-iters", "{steps}", "--log-interval", "1", "--eval-iters", "0"),
    "megatron-deepspeed": ("--train-iters", "{steps}", "--log-interval", "1", "--eval-iters", "0"),
    "deepspeed": (),
    "nemo": ("train.train_iters={steps}", "logger.log_interval=1"),
    "torchtitan": ("--training.steps", "{steps}", "--metrics.log_freq", "1"),
    "nanotron": (),
    "accelerate": ("--max_steps", "{steps}", "--logging_steps", "1", "--save_strategy", "no"),
}
"""How many steps, and a line in the log for each: what an export leaves to whoever trains."""


def configured(settings: CommandSettings) -> MakeCommand:
    """The function of a campaign's [command]; raises `InvalidInput` for settings that cannot make commands."""
    for key, name in (("trainer", settings.trainer), ("log", settings.log)):
        if name is not None:
            require_one_of("command", key, name, LOG_PATTERNS)
    template = Template(settings.arguments)
    if not settings.arguments:
        raise bad_value("command.arguments", None, 'a list of arguments, for evaluator = "command"')
    if (settings.trainer is not None) != template.splices:
        expected = "the argument {trainer_arguments} where command.trainer is set, and nowhere else"
        raise bad_value("command.arguments", list(settings.arguments), expected)
    known = settings.log or settings.trainer
    patterns = (*settings.log_patterns, *(LOG_PATTERNS[known] if known else ()))
    patterns_of(patterns)

    def make(request: CommandRequest) -> Command | Reason:
        if settings.trainer is not None:
            return _ready_made(settings.trainer, template, patterns, request)
        return Command(arguments=template.filled(field_values(request)), log_patterns=patterns)

    return make


def _ready_made(
    trainer: str, template: Template, patterns: tuple[str, ...], request: CommandRequest
) -> Command | Reason:
    """The command with the arguments of `frontrunner export`; files that they name are in the run folder."""
    reason = TOOLS[trainer].why_not(request.problem, request.recipe)
    if reason is not None:
        return reason
    fields = field_values(request)
    found = TOOLS[trainer].export(request.problem, request.recipe)
    own = tuple(str(request.run_folder / one) if one in found.files else one for one in found.arguments)
    spliced = (*own, *(filled_text(text, fields) for text in STEPS[trainer]))
    files = {name: _for_a_probe(trainer, text, request.probe.most_steps) for name, text in found.files.items()}
    return Command(arguments=template.filled(fields, spliced), log_patterns=patterns, files=files)


def _for_a_probe(trainer: str, text: str, steps: int) -> str:
    """A configuration file with a line in the log for every step, and where it holds them the number of steps."""
    if trainer == "deepspeed":
        return json.dumps(json.loads(text) | {"steps_per_print": 1}, indent=2)
    if trainer == "nanotron":
        table = yaml_section(text).values
        logged = {"log_level": "info", "log_level_replica": "info", "iteration_step_info_interval": 1}
        return yaml_text({**table, "tokens": {**table["tokens"], "train_steps": steps}, "logging": logged})
    return text
