"""A Hugging Face Trainer on a tiny model made here: no download, checkpoints every few steps."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The same short sequence again and again."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(index, index + 16) % 32
        return {"input_ids": row, "labels": row}


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--output_dir", default="runs")
parser.add_argument("--resume_from_checkpoint")
asked = parser.parse_args()
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir=asked.output_dir,
    learning_rate=asked.lr,
    max_steps=asked.steps,
    per_device_train_batch_size=8,
    logging_steps=10,
    eval_strategy="steps",
    eval_steps=20,
    save_steps=20,
    save_total_limit=2,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Rows(), eval_dataset=torch.utils.data.Subset(Rows(), range(32))
)
trainer.train(resume_from_checkpoint=asked.resume_from_checkpoint)
