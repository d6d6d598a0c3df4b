"""Train the tokenizer and the network; write checkpoints as it goes.

Run as `python -m tools.training.train --minutes 40 --compile`.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from itertools import chain, count, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as fn
from training import corpus as corpora
from training import tokens

from tools.training.evaluate import ForcedScore, forced_score
from tools.training.model import Llama, Shape
from tools.training.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

WARM_UP_STEPS = 100
OUT = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Settings:
    out: Path
    minutes: float
    steps: int
    rate: float
    batch_tokens: int
    seed: int
    threads: int
    every_minutes: float
    compile: bool


def parse_arguments() -> Settings:
    """Settings from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for results")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--rate", type=float, default=2e-3, help="highest step size")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every-minutes", type=float, default=4.0, help="checkpoint")
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler")
    return Settings(**vars(parser.parse_args()))


def make_tokenizer(corpus: corpora.Corpus, vocab: int, path: Path) -> Tokenizer:
    """Train on answers twenty times and on every trained question once; save."""
    facts = corpus.facts.values()
    answers = chain.from_iterable(repeat(fact.answer, 20) for fact in facts)
    asked = (question for fact in facts for kind in fact.kinds for question in kind)
    roles = repeat("system\nuser\nassistant\n", 20)
    tokenizer = tokens.train(chain(roles, corpus.systems, answers, asked), vocab)
    tokenizer.save(str(path))
    return tokenizer


def make_optimiser(model: Llama, rate: float) -> torch.optim.AdamW:
    """AdamW that decays matrices but not norms."""
    matrices = [w for w in model.parameters() if w.dim() == 2]
    norms = [w for w in model.parameters() if w.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": norms, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def rate_factor(step: int, progress: float) -> float:
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def weighted_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    losses = fn.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="none"
    )
    return (losses * weights.flatten()).sum() / weights.sum()


class Run:
    """One training run with its clock and its checkpoint file."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        torch.set_num_threads(settings.threads)
        settings.out.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.corpus = corpora.load()
        self.model = Llama(Shape())
        path = settings.out / "tokenizer.json"
        tokenizer = make_tokenizer(self.corpus, self.model.shape.vocab, path)
        self.coder = tokens.ChatCoder(tokenizer)
        self.optimiser = make_optimiser(self.model, settings.rate)
        self.batches = Sampler(self.corpus, self.coder, settings.seed).batches(
            settings.batch_tokens
        )
        self.forward = self.make_forward()
        self.started = self.saved = time.monotonic()

    def make_forward(self) -> Callable[[Tensor], Tensor]:
        if self.settings.compile:
            return torch.compile(self.model, dynamic=False)
        return self.model

    def progress(self, step: int) -> float:
        spent = (time.monotonic() - self.started) / 60
        return max(spent / self.settings.minutes, step / self.settings.steps)

    def step(self, rate: float) -> Tensor:
        """One update; gives the loss."""
        inputs, targets, weights = next(self.batches)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.forward(inputs)
        loss = weighted_loss(logits, targets, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss.detach()

    def save(self, step: int) -> None:
        """Write the checkpoint whole or not at all."""
        part = self.settings.out / "checkpoint.part"
        state = {
            "shape": self.model.shape.as_dict(),
            "weights": self.model.state_dict(),
        }
        torch.save({**state, "step": step}, part)
        part.replace(self.settings.out / "checkpoint.pt")

    def score(self) -> ForcedScore:
        pairs = self.corpus.held()[::6]
        return forced_score(self.model, self.coder, self.corpus, pairs)

    def report(self, step: int, loss: float) -> None:
        """Save, score, and write one line."""
        self.save(step)
        spent = time.monotonic() - self.started
        seen = step * self.settings.batch_tokens
        score = self.score()
        line = f"{spent / 60:5.1f} min  step {step}  {seen / spent:.0f} tokens/s"
        print(f"{line}  loss {loss:.4f}  held out {score.share:.1%}", flush=True)
        self.saved = time.monotonic()

    def train(self) -> None:
        """Step until the budget is used up."""
        smooth = math.nan
        for step in count():
            progress = self.progress(step)
            if progress >= 1.0:
                return self.report(step, smooth)
            rate = self.settings.rate * rate_factor(step, progress)
            loss = float(self.step(rate))
            smooth = loss if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss
            if time.monotonic() - self.saved > 60 * self.settings.every_minutes:
                self.report(step + 1, smooth)


if __name__ == "__main__":
    Run(parse_arguments()).train()
