"""TRL's SFTTrainer on a tiny model, a tokenizer and text made here: no download."""

from __future__ import annotations

import argparse

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

TEXT = "the quick brown fox jumps over the lazy dog and runs through the forest again"
WORDS = TEXT.split()

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--output_dir", default="runs")
parser.add_argument("--resume_from_checkpoint")
args = parser.parse_args()

vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", *sorted(set(WORDS))])}
words = Tokenizer(models.WordLevel(vocabulary))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<eos>"})
rows = [{"text": " ".join(WORDS[start:] + WORDS[:start])} for start in range(len(WORDS))] * 8
dataset = Dataset.from_list(rows).train_test_split(test_size=0.2, seed=0)
size = len(vocabulary)
model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=32, n_embd=32, n_layer=1, n_head=2, eos_token_id=1))

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=args.output_dir,
        learning_rate=args.learning_rate,
        max_steps=args.max_steps,
        max_length=32,
        per_device_train_batch_size=8,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=dataset["train"],
    eval_dataset=dataset["test"],
    processing_class=tokenizer,
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
trainer.save_model()
