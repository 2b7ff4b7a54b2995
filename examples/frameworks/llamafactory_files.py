"""What LLaMA-Factory needs for a tiny SFT, made on the spot: a model of random weights, words,
twenty examples and the YAML; nothing is downloaded.

python examples/frameworks/llamafactory_files.py /shared/sft
dispatch -H n1:2,n2:2 --launcher llamafactory-cli train /shared/sft/sft.yaml
dispatch -H n1:2,n2:2 -m llamafactory.launcher /shared/sft/sft.yaml
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
words = ["<unk>", "<s>", "</s>", "Human:", "Assistant:", *map(str, range(20)), "plus", "is", "?"]
words += ["Human", "Assistant", ":"]
vocabulary = {word: number for number, word in enumerate(words)}
plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
)
tokenizer.save_pretrained(folder / "model")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, pad_token_id=2,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(folder / "model")
examples = [
    {"instruction": f"{n} plus {n} is ?", "input": "", "output": str(2 * n % 20)} for n in range(20)
]
(folder / "sums.json").write_text(json.dumps(examples))
(folder / "dataset_info.json").write_text(json.dumps({"sums": {"file_name": "sums.json"}}))
settings = {
    "model_name_or_path": str(folder / "model"), "stage": "sft", "do_train": True,
    "finetuning_type": "full", "dataset": "sums", "dataset_dir": str(folder), "template": "default",
    "cutoff_len": 64, "output_dir": str(folder / "out"), "overwrite_output_dir": True,
    "per_device_train_batch_size": 1, "max_steps": 3, "learning_rate": 1e-3, "logging_steps": 1,
    "save_strategy": "no", "report_to": "none", "use_cpu": not torch.cuda.is_available(),
    "ddp_backend": "nccl" if torch.cuda.is_available() else "gloo", "preprocessing_num_workers": 1,
    "disable_tqdm": True, "bf16": False,
}  # fmt: skip
# what JSON says is YAML as well
(folder / "sft.yaml").write_text(json.dumps(settings, indent=1))
