"""torchtitan on this machine's processors: what frontrunner probes with
examples/command-torchtitan.toml.

torchtitan 0.3 is for accelerators, where it is started as `-m torchtitan.train` and this file is
not needed. Here its debug model is trained over gloo: questions for a device's memory are answered
for the process, attention runs by torch's own function in place of a compiled kernel, and gradients
are summed, since gloo has no other reduction. The rest, from the arguments to the log, is
torchtitan's own.
"""

import json
import os
import pydoc
import resource
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention

FOLDER = tempfile.TemporaryDirectory()
VOCABULARY = 2048


def processors():
    """A configuration for `--module command_torchtitan --config processors`: the debug model on
    Python's own texts.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    texts = [pydoc.render_doc(subject) for subject in (str, dict, list, bytes, int, set)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special, alphabet = (
        ["<|begin_of_text|>", "<|end_of_text|>"],
        pre_tokenizers.ByteLevel.alphabet(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder = Path(FOLDER.name)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "eos_token"), special, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "texts").mkdir()
    (folder / "texts" / "texts.json").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    config = llama3_debugmodel()
    config.hf_assets_path = str(folder)
    config.dataloader.dataset_path = str(folder / "texts")
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"  # its default needs a later torch than 2.13
    return config


def memory_stats(_device=None):
    """The peak of this process, under the names of an accelerator's allocator."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "active_bytes.all.peak": peak,
        "reserved_bytes.all.peak": peak,
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }


def attention(query, key, value, *, scale, enable_gqa, **_):
    """Causal attention as `flex_attention` returns it; texts of a sequence see each other."""
    found = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa
    )
    return found, SimpleNamespace(lse=None)


def use_processors() -> None:
    """Have torchtitan take the processors for its device; must come before its import."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    answers = {
        "get_device_name": "processors",
        "get_device_properties": SimpleNamespace(total_memory=memory),
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "device_count": 1,
        "set_device": None,
    }
    for name, answer in answers.items():
        setattr(torch.cpu, name, lambda *_, answer=answer: answer)
    torch.cpu.memory_stats = memory_stats
    torch._utils._get_available_device_type = lambda: "cpu"

    from torchtitan.distributed import fsdp, utils
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention._compiled_flex_attn = staticmethod(attention)
    utils.set_pg_timeouts = lambda *_, **__: None  # gloo's groups keep theirs
    shard = fsdp.fully_shard

    def fully_shard(module, **options):
        found = shard(module, **options)
        for one in found if isinstance(found, list) else [found]:
            one.set_force_sum_reduction_for_comms(True)
        return found

    fsdp.fully_shard = fully_shard


if __name__ == "__main__":
    use_processors()
    from torchtitan.train import main

    sys.exit(main())
