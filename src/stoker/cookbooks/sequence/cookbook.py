"""The cookbook itself: what the catalogue sees of it."""

from __future__ import annotations

from typing import Final

from stoker.cookbooks.sequence.evaluate import evaluate
from stoker.cookbooks.sequence.finetune import finetune
from stoker.cookbooks.sequence.kinds import Encoder, Model, Report, Scores, Series, Windows
from stoker.cookbooks.sequence.load import load
from stoker.cookbooks.sequence.pretrain import pretrain
from stoker.cookbooks.sequence.recipes import cnn, gru, lstm, transformer, transformer_ssl
from stoker.cookbooks.sequence.report import report
from stoker.cookbooks.sequence.train_cnn import train_cnn
from stoker.cookbooks.sequence.train_gru import train_gru
from stoker.cookbooks.sequence.train_lstm import train_lstm
from stoker.cookbooks.sequence.train_transformer import train_transformer
from stoker.cookbooks.sequence.window import window
from stoker.plan.authoring import Cookbook

COOKBOOK: Final = Cookbook(
    name="sequence",
    summary="forecast and classify windows of time series",
    recipes=(cnn, gru, lstm, transformer, transformer_ssl),
    stages=(
        load,
        window,
        train_cnn,
        train_gru,
        train_lstm,
        train_transformer,
        pretrain,
        finetune,
        evaluate,
        report,
    ),
    kinds=(Series, Windows, Encoder, Model, Scores, Report),
    prefill={recipe.name: {"data": "waves"} for recipe in (cnn, gru, lstm, transformer, transformer_ssl)},
    preload=("pandas", "pyarrow.parquet", "torch"),
)
