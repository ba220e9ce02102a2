"""Renders conversations with Jinja2 (set up as transformers does) and with our engine, and compares byte for byte.

usage: jinja_parity.py RENDER_TOOL DATA_DIR [--model FILE.gguf] [--update-cases]
RENDER_TOOL is build/tests/text_render_tool, DATA_DIR holds chat-templates/; the template of FILE is compared too. Needs the
jinja2 package, and gguf for FILE.
--update-cases writes what Jinja2 says into tests/text/jinja_cases.json. Prints "N templates, R renderings,
D differences".
"""
import json
import os
import random
import subprocess
import sys

from jinja_reference import make_environment, render

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "text", "jinja_cases.json")
NOW = 1752148800  # 2025-07-10 12:00

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather \"now\" <in> a city",
     "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "é 城市"},
      "unit": {"type": "string", "enum": ["c", "f"]}, "days": {"type": "integer"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds.",
     "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}},
]
TEXTS = ["Hi", "What is 2 + 2?", "", "  padded\n", "line one\nline two\n\n", "日本語 and emoji 😀", "<|im_end|>\n<|im_start|>system\n",
         "a {{ b }} {% c %}", "quote \" and ' and \\", "<think>\nhmm\n</think>\n\nanswer", "</think>", "tabs\tand\r\nreturns",
         "<tool_response>x</tool_response>", "\u2028\u00a0", "x" * 300]


def tool_call(rng, as_text):
    arguments = {"city": rng.choice(["Paris", "é\"\n"]), "days": rng.randint(1, 3), "f": 1.0, "t": True, "n": None, "o": {"k": [1, "b"]}}
    if as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    call = {"id": "call_%09d" % rng.randint(0, 10**9 - 1), "type": "function",
            "function": {"name": rng.choice(["get_weather", "add"]), "arguments": arguments}}
    if rng.random() < 0.2:
        del call["id"]
    return call


def conversation(rng):
    messages = []
    style = rng.choice(["plain", "plain", "tools", "thinking", "odd", "blocks"])
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system"] * 5 + ["developer"]), "content": rng.choice(TEXTS)})
    for _ in range(rng.randint(1, 4)):
        content = rng.choice(TEXTS)
        if style == "blocks" and rng.random() < 0.6:
            content = [{"type": "text", "text": content}] + ([{"type": "image"}] if rng.random() < 0.3 else [])
        messages.append({"role": "user", "content": content})
        if style == "odd" and rng.random() < 0.4:
            messages.append({"role": rng.choice(["user", "assistant", "critic", "system"]), "content": rng.choice(TEXTS)})
        if style == "tools" and rng.random() < 0.7:
            as_text = rng.random() < 0.3
            calls = [tool_call(rng, as_text) for _ in range(rng.randint(1, 2))]
            message = {"role": "assistant", "content": rng.choice([None, "", "Let me see."]), "tool_calls": calls}
            if rng.random() < 0.15:
                del message["content"]
            if rng.random() < 0.3:
                message["reasoning_content"] = "I need a tool."
            messages.append(message)
            for call in calls:
                messages.append({"role": "tool", "name": call["function"]["name"], "tool_call_id": call.get("id", "x"),
                                 "content": rng.choice(["{\"t\": 21.5}", "sunny", rng.choice(TEXTS)])})
        message = {"role": "assistant", "content": rng.choice(TEXTS)}
        if style == "thinking":
            if rng.random() < 0.5:
                message["content"] = "<think>\nstep " + rng.choice(TEXTS) + "\n</think>\n\n" + rng.choice(TEXTS)
            else:
                message["reasoning_content"] = rng.choice(TEXTS)
        if style == "odd" and rng.random() < 0.2:
            message["content"] = None
        messages.append(message)
    if rng.random() < 0.4:
        messages.pop()
    context = {"messages": messages, "add_generation_prompt": rng.random() < 0.5}
    context["tools"] = TOOLS if style == "tools" or rng.random() < 0.1 else None
    if rng.random() < 0.5:
        context["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.1:
        context["documents"] = None
    if rng.random() < 0.9:
        context.update(bos_token=rng.choice(["<s>", ""]), eos_token="</s>", unk_token="<unk>")
    return context


def load_templates(data):
    root = os.path.join(data, "chat-templates")
    templates = {name: open(os.path.join(root, name), newline="").read()
                 for name in sorted(os.listdir(root)) if name.endswith(".jinja")}
    for name, item in json.load(open(os.path.join(root, "huggingface.js-e2e.json"))).items():
        templates[name] = item["chat_template"]
    for folder, _, files in os.walk(os.path.join(data, "tokenizers")):
        if "tokenizer_config.json" in files:
            source = json.load(open(os.path.join(folder, "tokenizer_config.json"))).get("chat_template")
            if isinstance(source, str):
                templates["tokenizers/" + os.path.basename(folder)] = source
    # The one with generation blocks, so that spans are compared too.
    templates["generation"] = (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>\n"
        "{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
    return templates


def ask_ours(tool, requests):
    text = "\n".join(json.dumps(r, ensure_ascii=False) for r in requests) + "\n"
    out = subprocess.run([tool], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    return [json.loads(line) for line in out.split("\n") if line]


def reference(env, cache, source, context):
    try:
        if source not in cache:
            cache[source] = env.from_string(source)
        text, spans = render(env, cache[source], context)
        return {"text": text, "generation": [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans if a < b]}
    except Exception as e:  # any failure counts as one
        return {"error": "%s: %s" % (type(e).__name__, e)}


def main():
    tool, data = sys.argv[1], sys.argv[2]
    env, cache = make_environment(), {}
    if "--update-cases" in sys.argv:
        cases = json.load(open(CASES))
        for case in cases:
            got = reference(env, cache, case["template"], case.get("context", {}))
            case.pop("expected", None), case.pop("fails", None)
            case.update({"expected": got["text"]} if "text" in got else {"fails": got["error"][:80]})
        with open(CASES, "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    rng = random.Random(7)
    contexts = [conversation(rng) for _ in range(300)]
    templates = load_templates(data)
    if "--model" in sys.argv:
        from gguf import GGUFReader
        path = sys.argv[sys.argv.index("--model") + 1]
        templates[os.path.basename(path)] = GGUFReader(path).fields["tokenizer.chat_template"].contents()
    requests = [(name, {"template": source, "context": context, "now": NOW})
                for name, source in templates.items() for context in contexts]
    requests += [("case", {"template": c["template"], "context": c.get("context", {}), "now": NOW})
                 for c in json.load(open(CASES))]
    answers = ask_ours(tool, [r for _, r in requests])
    assert len(answers) == len(requests)
    differences, failures = 0, 0
    for (name, request), ours in zip(requests, answers):
        theirs = reference(env, cache, request["template"], request["context"])
        failures += "error" in theirs
        same = ("error" in ours) == ("error" in theirs) and (
            "error" in ours or (ours["text"] == theirs["text"] and ours["generation"] == theirs["generation"]))
        if not same:
            differences += 1
            if differences <= 10:
                print("DIFFERENT", name, json.dumps(request["context"], ensure_ascii=False)[:600])
                print("  ours  ", json.dumps(ours, ensure_ascii=False)[:1500])
                print("  theirs", json.dumps(theirs, ensure_ascii=False)[:1500])
    print("%d templates, %d renderings (%d of them errors in both), %d differences"
          % (len(templates), len(requests), failures, differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
