"""check_greedy.py GGUF OURS: an adapter trained here, sampled greedily here and in PEFT: the same tokens.

OURS/greedy.json: [{"prompt": ids, "answer": ids}], answered with OURS/adapter by our sampler."""

import json
import pathlib
import sys

import torch
from peft import PeftModel

from make_real_models import smollm2


@torch.inference_mode()
def main(gguf_file, ours):
    base, _ = smollm2(gguf_file)
    rows = json.loads((ours / "greedy.json").read_text())
    plain = [base.generate(torch.tensor([row["prompt"]]), do_sample=False, max_new_tokens=len(row["answer"]),
                           min_new_tokens=len(row["answer"]), pad_token_id=0)[0, len(row["prompt"]):].tolist() for row in rows]
    model = PeftModel.from_pretrained(base, ours / "adapter").eval()
    wrong = []
    for index, row in enumerate(rows):
        count = len(row["answer"])
        got = model.generate(input_ids=torch.tensor([row["prompt"]]), do_sample=False, max_new_tokens=count,
                             min_new_tokens=count, pad_token_id=0)[0, len(row["prompt"]):].tolist()
        if got != row["answer"]:
            wrong.append(f"prompt {index}: PEFT says {got}, ours {row['answer']}")
    if all(row["answer"] == other for row, other in zip(rows, plain)):
        wrong.append("the adapter changes no answer, so this shows nothing")
    print("\n".join(wrong) or f"{len(rows)} answers of our adapter are PEFT's")
    return 1 if wrong else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:3])))
