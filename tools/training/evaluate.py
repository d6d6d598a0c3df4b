"""Count the unseen questions that get exactly the right answer.

``python -m tools.training.evaluate --url http://127.0.0.1:8080`` asks a running
llama-server. ``--run tools/training/out`` computes the same greedy answers with torch.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from training import corpus as corpora
from training import tokens

from tools.training.model import Llama, Shape
from tools.training.tokens import ChatCoder, Message

Pair = tuple[str, str]
Ask = Callable[[str], str]


@dataclass(frozen=True)
class ForcedScore:
    """Result over some questions; `wrong` are pairs of fact id and question."""

    asked: int
    wrong: tuple[Pair, ...]

    @property
    def share(self) -> float:
        return 1.0 - len(self.wrong) / max(1, self.asked)


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows])


def chunks(pairs: Sequence[Pair], size: int) -> Iterable[Sequence[Pair]]:
    ordered = sorted(pairs)
    return (ordered[i : i + size] for i in range(0, len(ordered), size))


def exact(logits: Tensor, row: Sequence[int], begin: int) -> bool:
    choice = logits[begin - 1 : len(row) - 1].argmax(-1)
    return choice.tolist() == list(row[begin:])


@torch.no_grad()
def forced_score(
    model: Llama, coder: ChatCoder, corpus: corpora.Corpus, pairs: Sequence[Pair]
) -> ForcedScore:
    """Check greedy answers in one pass each, by feeding the right answer."""
    wrong: list[Pair] = []
    for chunk in chunks(pairs, 32):
        prompts = [coder.prompt([Message("user", q)]) for _, q in chunk]
        answers = [coder.text(corpus.facts[name].answer) for name, _ in chunk]
        rows = [[*p, *a, coder.end] for p, a in zip(prompts, answers, strict=True)]
        logits = model(pad(rows))
        for pair, row, prompt, out in zip(chunk, rows, prompts, logits, strict=True):
            if not exact(out, row, len(prompt)):
                wrong.append(pair)
    return ForcedScore(len(pairs), tuple(wrong))


@torch.no_grad()
def generate(model: Llama, coder: ChatCoder, prompt: list[int], limit: int) -> str:
    """The greedy answer to a prompt of token ids, at most `limit` tokens."""
    ids = list(prompt)
    while len(ids) < len(prompt) + limit:
        choice = int(model(torch.tensor([ids]))[0, -1].argmax())
        if choice == coder.end:
            break
        ids.append(choice)
    text: str = coder.tokenizer.decode(ids[len(prompt) :])
    return text


def load_checkpoint(folder: Path) -> tuple[Llama, ChatCoder]:
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    model = Llama(Shape(**saved["shape"]))
    model.load_state_dict(saved["weights"])
    return model.eval(), ChatCoder(tokens.load(folder / "tokenizer.json"))


def ask_torch(folder: Path) -> Ask:
    """A function that answers with the checkpoint."""
    model, coder = load_checkpoint(folder)

    def ask(question: str) -> str:
        prompt = coder.prompt([Message("user", question)])
        return generate(model, coder, prompt, 500)

    return ask


def post(url: str, body: object) -> dict[str, object]:
    """The JSON answer to a JSON request."""
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        result: dict[str, object] = json.load(answer)
    return result


def ask_server(url: str, temperature: float) -> Ask:
    """A function that answers through the chat API at `url`."""

    def ask(question: str) -> str:
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "temperature": temperature, "max_tokens": 500}
        answer = post(f"{url}/v1/chat/completions", body)
        content: str = answer["choices"][0]["message"]["content"]  # type: ignore[index]
        return content

    return ask


def measure(ask: Ask, corpus: corpora.Corpus, pairs: Sequence[Pair]) -> ForcedScore:
    """Ask every question and compare with the fact's answer, letter by letter."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(ask, (question for _, question in pairs))
        wrong = [
            pair
            for pair, answer in zip(pairs, answers, strict=True)
            if answer.strip() != corpus.facts[pair[0]].answer
        ]
    return ForcedScore(len(pairs), tuple(wrong))


def show(title: str, score: ForcedScore) -> None:
    right = score.asked - len(score.wrong)
    print(f"{title}: {right} of {score.asked} exactly right ({score.share:.1%})")
    for name, missed in Counter(name for name, _ in score.wrong).most_common():
        examples = [question for fact, question in score.wrong if fact == name]
        print(f"  {name}: {missed} wrong, e.g. {examples[:4]}")


def main() -> None:
    """Score the held-out questions and the prompts written apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running llama-server")
    parser.add_argument("--run", type=Path, help="folder of a training run")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1, help="take every n-th question")
    options = parser.parse_args()
    corpus = corpora.load()
    if options.url:
        ask = ask_server(options.url, options.temperature)
    else:
        ask = ask_torch(options.run)
    held = corpus.held()[:: options.every]
    show("held-out paraphrases", measure(ask, corpus, held))
    show("prompts written apart", measure(ask, corpus, corpus.unseen))


if __name__ == "__main__":
    main()
