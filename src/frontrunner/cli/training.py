"""Commands before and after a replay: prepare, checkpoint, generate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner.cli import options as opt
from frontrunner.evaluators.text.prepare import Prepared, PrepareSettings
from frontrunner.evaluators.text.prepare import prepare as prepare_files
from frontrunner.spaces.errors import require_one_of
from frontrunner.text import counted, plain

if TYPE_CHECKING:
    from frontrunner.evaluators.checkpoint.export import Exported


@click.command()
@click.argument("files", nargs=-1, required=True, type=opt.FILE)
@click.option(
    "--out", type=opt.FILE, required=True, metavar="FILE.bin", help="The token file to write."
)
@click.option(
    "--tokenizer",
    type=opt.FILE,
    metavar="FILE",
    help="A model's tokenizer.json (Hugging Face tokenizers).",
)
@click.option(
    "--train-vocabulary",
    type=int,
    metavar="SIZE",
    help="Train a byte-level BPE of this size on the files.",
)
@click.option(
    "--text-key", default="text", show_default=True, help="The key, or column, of the text."
)
@click.option(
    "--end-of-document",
    metavar="TOKEN",
    help="The token after each document [default: the tokenizer's].",
)
@click.option(
    "--validation",
    type=float,
    default=0.005,
    show_default=True,
    help="The share of tokens held out for evaluation.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Draws what is held out.",
)
@click.option("--threads", type=int, help="Threads that tokenize [default: one per processor].")
@opt.json_option
def prepare(files: tuple[Path, ...], *, as_json: bool, **settings: Any) -> None:
    """Tokenize FILES into one token file for `[data] path`: text, .jsonl or .parquet, also as
    .txt.gz and .jsonl.gz.

    A line of a .jsonl file and a row of a .parquet file is a document; a text file is one, or
    several with NUL between them. Beside the token file are written its tokenizer and its
    description, with which campaigns read it. A mistake is reported with file and line, and leaves
    no file.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    chosen = PrepareSettings(**settings)  # the options are named after its fields
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    passes = (
        ("training the tokenizer", "tokenizing") if chosen.train_vocabulary else ("tokenizing",)
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = [progress.add_task(name, start=False, total=None) for name in passes]

        def on_read(read: int, size: int) -> None:
            if len(tasks) > 1 and read < progress.tasks[0].completed:
                progress.update(tasks.pop(0), completed=size)
            progress.start_task(tasks[0])
            progress.update(tasks[0], completed=read, total=size)

        found = prepare_files(files, chosen, on_read)
    opt.show(found, _print_prepared, as_json=as_json)


def _print_prepared(found: Prepared) -> None:
    about = found.description
    empty = (
        f"; {counted(found.empty_documents, 'document')} without text left out"
        if found.empty_documents
        else ""
    )
    click.echo(
        f"{found.path}: {about.tokens:,} tokens ({about.dtype}) of"
        f" {counted(about.documents, 'document')}, {about.held_out_tokens:,} of them held out for"
        f" evaluation{empty}"
    )
    click.echo(f"tokenizer: {found.tokenizer}")
    click.echo(
        f"in the campaign file: [model] vocabulary = {about.vocabulary} or more, [data] path ="
        f' "{found.path}"'
    )


@click.group(cls=opt.SuggestingGroup)
def checkpoint() -> None:
    """Export checkpoints of replays."""


@checkpoint.command("export", short_help="Write a checkpoint as a model that transformers loads.")
@click.argument("folder", type=opt.FILE)
@click.option("--to", "form", required=True, metavar="FORM", help="What to write: safetensors.")
@click.option("--out", type=opt.FILE, required=True, metavar="FOLDER", help="The folder to write.")
@click.option("--step", type=int, help="The checkpoint's step [default: the newest].")
@click.option(
    "--dtype",
    default="fp32",
    show_default=True,
    help="fp32, as the trainer keeps weights; bf16 or fp16.",
)
@click.option(
    "--max-file-gb",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Split beyond this.",
)
@click.option(
    "--tokenizer",
    type=opt.FILE,
    metavar="FILE",
    help="A tokenizer.json [default: that of the data].",
)
@opt.json_option
def export_checkpoint(
    folder: Path, form: str, out: Path, step: int | None, *, as_json: bool, **given: Any
) -> None:
    """Write a checkpoint of the replay in FOLDER as weights, config.json and tokenizer that
    `transformers` loads.

    Of any parallel layout of both engines. A model of which transformers has no architecture is
    refused by name.
    """
    from frontrunner.evaluators.checkpoint.export import FORMATS, export
    from frontrunner.evaluators.checkpoint.reading import open_checkpoint

    require_one_of("", "--to", form, FORMATS)
    most_bytes = int(given.pop("max_file_gb") * 1e9)

    def on_file(number: int, count: int) -> None:
        click.echo(f"file {number} of {count}", err=True)

    found = export(
        open_checkpoint(folder, step), out, most_file_bytes=most_bytes, on_file=on_file, **given
    )
    opt.show(found, _print_exported, as_json=as_json)


def _print_exported(found: Exported) -> None:
    click.echo(
        f"{found.folder}: {found.architecture}, {found.parameters:,} weights of step {found.step}"
        f" in {counted(found.files, 'file')}, {found.size_bytes / 1e6:,.1f} MB"
    )
    if not found.tokenizer:
        click.echo("without a tokenizer: the data had none; --tokenizer FILE adds one")


@click.command()
@click.argument("folder", type=opt.FILE)
@click.option(
    "--prompt", default="", help="What each sample begins with [default: the start of a document]."
)
@click.option("--samples", type=int, default=3, show_default=True, help="How many.")
@click.option("--tokens", type=int, default=100, show_default=True, help="Of each, at most.")
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    help="0 takes the most probable token.",
)
@click.option(
    "--top-k", type=int, default=50, show_default=True, help="Draws from this many tokens."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Draws the tokens.",
)
@click.option("--step", type=int, help="The checkpoint's step [default: the newest].")
@click.option(
    "--device", default="cpu", show_default=True, help="cpu, or a device of torch, as cuda:0."
)
@click.option(
    "--tokenizer",
    type=opt.FILE,
    metavar="FILE",
    help="A tokenizer.json [default: that of the data].",
)
@opt.json_option
def generate(folder: Path, step: int | None, *, as_json: bool, **settings: Any) -> None:
    """Sample text from a checkpoint of the replay in FOLDER, to look at: in one process, for small
    models.
    """
    from frontrunner.evaluators.checkpoint.generate import GenerateSettings
    from frontrunner.evaluators.checkpoint.generate import generate as sample
    from frontrunner.evaluators.checkpoint.reading import open_checkpoint

    chosen = GenerateSettings(**settings)  # the options are named after its fields
    checkpoint = open_checkpoint(folder, step)
    found = sample(checkpoint, chosen)
    if as_json:
        opt.print_json({"step": checkpoint.step, "samples": found})
        return
    for number, text in enumerate(found, start=1):
        click.echo(f"--- sample {number} of {len(found)}, step {checkpoint.step}")
        click.echo(plain(text))
