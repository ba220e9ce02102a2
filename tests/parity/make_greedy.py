"""make_greedy.py OUT GGUF: what transformers' generate() says greedily, in fp32, to fifty prompts.

OUT/greedy.json: [{"prompt": ids, "answer": ids, "margin": least distance of the two best logits on the way}]. Prompts are
texts, chats and code cut at odd places, so that lengths are mixed; token ids go in, so no tokenizer takes part."""

import json
import pathlib
import sys

import torch

from make_real_models import TEXTS, smollm2
from reference import up_to_date

MORE = [
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "<|im_start|>user\nName three colours of the rainbow and say where each comes from.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a small boat that wanted to see the ocean, so one morning",
    "Q: What is 12 + 7?\nA: 19\nQ: What is 30 - 4?\nA:",
    "Dear Sir or Madam,\n\nI am writing to you because the heating in my flat has been",
    "import os\n\ndef walk(folder):\n    for name in sorted(os.listdir(folder)):\n        path =",
    "Die Katze sitzt auf dem Dach und",
]
PROMPTS, TOKENS = 50, 16


def prompts(sequences):
    """Each sequence cut at several lengths, in turn, until there are enough."""
    found, cut = [], 0
    while len(found) < PROMPTS:
        ids = sequences[cut % len(sequences)]
        length = len(ids) - 3 * (cut // len(sequences))
        if length >= 3:
            found.append(ids[:length])
        cut += 1
    return found


@torch.inference_mode()
def main(out, gguf_file):
    done, stamp, digest = up_to_date(out, gguf_file)
    if done:
        return
    model, sequences = smollm2(gguf_file, TEXTS + MORE)
    rows = []
    for ids in prompts(sequences):
        answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                                pad_token_id=0, return_dict_in_generate=True, output_logits=True)
        best = torch.stack([logits[0].topk(2).values for logits in answer.logits])
        rows.append({"prompt": ids, "answer": answer.sequences[0, len(ids):].tolist(),
                     "margin": float((best[:, 0] - best[:, 1]).min())})
    (out / "greedy.json").write_text(json.dumps(rows))
    stamp.write_text(digest)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:3]))
