"""How far rounding alone moves a model's logits: one pass over all tokens against one token at a time.

A verification pass is of the first kind, plain decoding of the second. What this prints is why two answers that part
where two logits are that close part at a tie (`lynx.bench.compare.TIE_GAP`), not at a fault. transformers, no vLLM.

    make bench-rounding
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import report

from lynx import model
from lynx.texts import long_prompts

LIKELIEST = 5
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2000, help="length of a prompt")
    parser.add_argument("--answer-tokens", type=int, default=24, help="positions compared, a prompt")
    options = parser.parse_args()
    path = model.ensure()
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = long_prompts(tokenizer, options.tokens, options.prompts)
    rows = []
    for name, dtype in DTYPES.items():
        network = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        both = [compare(network, list(prompt.token_ids), options.answer_tokens) for prompt in prompts]
        top, moved = torch.cat([top for top, _ in both]), torch.cat([moved for _, moved in both])
        rows.append(
            {
                "arithmetic": name,
                "positions": len(top),
                "largest_logit": round(float(top.max()), 2),
                "least_largest_logit": round(float(top.min()), 2),
                "gap_moved_median": float(moved.median()),
                "gap_moved_max": float(moved.max()),
            }
        )
    report.show(rows)
    print(report.write("rounding", rows))


@torch.no_grad()
def compare(
    network: torch.nn.Module, prompt: list[int], answer_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of each position of a greedy answer, and how far the gaps to the next likeliest moved.

    Returns:
        ``[answer_tokens]`` and ``[answer_tokens * (LIKELIEST - 1)]``.
    """
    state = network(torch.tensor([prompt]), use_cache=True)
    answer: list[int] = []
    single = []
    for _ in range(answer_tokens):
        single.append(state.logits[0, -1].float())
        answer.append(int(single[-1].argmax()))
        state = network(torch.tensor([answer[-1:]]), past_key_values=state.past_key_values, use_cache=True)
    batched = network(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :].float()
    top = batched.topk(LIKELIEST)
    moved = torch.stack(single).gather(1, top.indices) - top.values
    return top.values[:, 0], (moved[:, :1] - moved[:, 1:]).abs().flatten()


if __name__ == "__main__":
    main()
