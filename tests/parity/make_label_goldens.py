"""Assistant masks by transformers' return_assistant_tokens_mask, for tests/data/labels_test.cpp.

make_label_goldens.py DATA OUT       Needs transformers; no model.

Ten templates in the forms of ten families, with generation blocks as training templates have them, each on conversations
with several turns, thinking, tool calls and empty answers. The tokenizer is MiniMind's.
"""

import json
import sys

from transformers import PreTrainedTokenizerFast

DATA, OUT = sys.argv[1:]
TOKENIZER = PreTrainedTokenizerFast(tokenizer_file=f"{DATA}/tokenizers/minimind/tokenizer.json")
VARIABLES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}

CALLS = ("{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
         "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}")


def template(before, assistant, other, after="", prompt=""):
    return (before + "{% for m in messages %}{% if m.role == 'assistant' %}" + assistant + "{% else %}" + other +
            "{% endif %}{% endfor %}" + after + "{% if add_generation_prompt %}" + prompt + "{% endif %}")


def gen(body):
    return "{% generation %}" + body + "{% endgeneration %}"


FAMILIES = {
    "chatml": template("", "<|im_start|>assistant\n" + gen("{{ m.content }}<|im_end|>") + "\n",
                       "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n", "", "<|im_start|>assistant\n"),
    "qwen3": template("", "<|im_start|>assistant\n" + gen(
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}" + CALLS +
        "<|im_end|>") + "\n", "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"),
    "llama3": template("{{ bos_token }}", "<|start_header_id|>assistant<|end_header_id|>\n\n" + gen(
        "{{ m.content | trim }}<|eot_id|>"), "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
        "<|eot_id|>"),
    "llama2": template("", gen(" {{ m.content | trim }} {{ eos_token }}"), "{{ bos_token }}[INST] {{ m.content | trim }} "
                       "[/INST]"),
    "mistral": template("{{ bos_token }}", gen("{{ m.content }}{{ eos_token }}"), "[INST] {{ m.content }}[/INST]"),
    "gemma": template("{{ bos_token }}", "<start_of_turn>model\n" + gen("{{ m.content | trim }}<end_of_turn>") + "\n",
                      "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"),
    "phi3": template("", "<|assistant|>\n" + gen("{{ m.content }}<|end|>") + "\n", "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"),
    "zephyr": template("", "<|assistant|>\n" + gen("{{ m.content }}{{ eos_token }}\n"), "<|{{ m.role }}|>\n{{ m.content }}"
                       "{{ eos_token }}\n"),
    "deepseek": template("{{ bos_token }}", "<｜Assistant｜>" + gen("{{ m.content }}" + CALLS + "<｜end▁of▁sentence｜>"),
                         "<｜User｜>{{ m.content }}"),
    "glm": template("[gMASK]<sop>", "<|assistant|>\n" + gen("<think>{{ m.reasoning_content or '' }}</think>\n{{ m.content }}"),
                    "<|{{ m.role }}|>\n{{ m.content }}", "", "<|assistant|>\n"),
}

U, A = (lambda t: {"role": "user", "content": t}), (lambda t, **k: {"role": "assistant", "content": t, **k})
CALL = [{"type": "function", "function": {"name": "get", "arguments": {"city": "Paris", "n": [1, None]}}}]
CONVERSATIONS = [
    [U("hi"), A("hello there")],
    [{"role": "system", "content": "Be brief."}, U("1+1?"), A("2"), U("sure?"), A("Yes, 2.")],
    [U("why"), A("because", reasoning_content="let me think\nabout it"), U("and?"), A("that is all", reasoning_content="hm")],
    [U("weather"), A("", tool_calls=CALL), {"role": "tool", "content": "sunny"}, A("It is sunny.")],
    [U("émoji 👩‍🚀 你好"), A("空 → ok\n\nnext"), U("x" * 40), A("")],
]

cases = []
for name, source in FAMILIES.items():
    for messages in CONVERSATIONS:
        out = TOKENIZER.apply_chat_template(messages, chat_template=source, tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True, add_special_tokens=False, **VARIABLES)
        cases.append({"family": name, "template": source, "messages": messages, "ids": out["input_ids"],
                      "mask": out["assistant_masks"]})
with open(OUT, "w") as out:
    json.dump({"variables": VARIABLES, "cases": cases}, out, ensure_ascii=False, indent=None, separators=(",", ":"))
    out.write("\n")
print(len(cases), "cases,", sum(sum(c["mask"]) for c in cases), "tokens trained on")
