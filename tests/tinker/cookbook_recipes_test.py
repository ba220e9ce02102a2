"""The recipes of the Tinker cookbook, unchanged but for the model, the renderer and local files, each for a few steps. Run
with the python of .venvs/cookbook: cookbook_recipes_test.py BUILD [name of a test ...]."""

import datetime
import json
import math
import multiprocessing
import os
import pathlib
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time

from server_process import KEY_ANN, Server, missing, run_tests, stories

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
try:
    # Slow to import: once here, for all the processes that are forked from this one.
    import tinker
    import tinker_cookbook
    import transformers
    from safetensors.numpy import load_file, save_file
    from tinker_cookbook.recipes.chat_sl.train import get_dataset_builder
    from tinker_cookbook.recipes.math_rl import train as _
    from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import SYSTEM_PROMPT
    from tinker_cookbook.recipes.preference.dpo import train as _
    from tinker_cookbook.recipes.preference.shorter import train as _
    from tinker_cookbook.recipes.prompt_distillation.create_data import LANGUAGE_CLASSIFICATION_PROMPT
    from tinker_cookbook.supervised.common import compute_mean_nll
except ImportError:
    missing("the tinker cookbook (scripts/setup --cookbook)")

COLON, CHAT = "role_colon", "qwen3_5_disable_thinking"
TEACHER = "Qwen/Qwen3.6-35B-A3B"  # the name that create_data of prompt distillation asks for


def chat_model(folder):
    """The tiny model as a chat model: tokens of a chat template in place of five that no story has, the room for a long
    prompt, and a head of its own, into which an adapter can be merged."""
    folder = pathlib.Path(folder)
    shutil.copytree(stories(), folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(max_position_embeddings=8192, tie_word_embeddings=False)
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    # No space before each piece of text, so that what is cut into pieces and joined again is the same text.
    tokenizer["normalizer"]["normalizers"].pop(0)
    tokenizer["decoder"]["decoders"].pop()
    words = tokenizer["model"]["vocab"]
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"):
        last = max((word for word in words if not word.startswith("<")), key=words.get)
        words[token] = words.pop(last)
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": words[token], "content": token})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    return str(folder)


class ModelServer(Server):
    def __init__(self, build, model, options=()):
        self.model = model
        super().__init__(build, options=options)

    def command_line(self):
        line = super().command_line()
        line[line.index("--model-id") + 1] = self.model
        return line


class Desk:
    """A user's working directory, and the recipes run in it."""

    def __init__(self, build, folder):
        self.build, self.folder, self.started = pathlib.Path(build), pathlib.Path(folder), 0
        self.model = chat_model(self.folder / "stories")
        self.server = self.untaught = ModelServer(build, self.model)
        self.made = self.taught = None

    def stop(self):
        self.untaught.stop()
        if self.taught:
            self.taught.stop()

    def start(self, what, *arguments):
        """A process that does this here; its output is in a file."""
        self.log = self.folder / f"{self.started}.log"
        self.started += 1
        process = multiprocessing.get_context("fork").Process(target=self.inside, args=(what, arguments))
        process.start()
        return process

    def inside(self, what, arguments):
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.folder)
        os.environ.update(TINKER_BASE_URL=self.server.url, TINKER_API_KEY=KEY_ANN)
        what(*arguments)

    def end(self, process):
        process.join(300)
        if process.exitcode != 0:
            print(self.log.read_text()[-8000:], file=sys.stderr)
            raise AssertionError(f"exit code {process.exitcode}")

    def recipe(self, name, run, options):
        """Starts what `python -m tinker_cookbook.recipes.NAME` would do."""
        options = {"model_name": self.model, "log_path": str(self.folder / run), "behavior_if_log_dir_exists": "resume",
                   **options}
        return self.start(as_main, f"tinker_cookbook.recipes.{name}", [f"{key}={value}" for key, value in options.items()])

    def run(self, name, run, **options):
        """The metrics of a recipe's run, a row for each step."""
        self.end(self.recipe(name, run, options))
        rows = self.rows(run, "metrics")
        numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
        assert numbers and all(math.isfinite(value) for value in numbers), rows
        return rows

    def rows(self, run, name):
        """Whole rows of a file of the run."""
        path = self.folder / run / f"{name}.jsonl"
        lines = path.read_text().splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def write(self, name, rows):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def checkpoints(self, path):
        """Path and seconds that are left of the checkpoints that the server has of the run of that path."""
        status, reply = self.server.request("GET", f"/api/v1/training_runs/{path.split('/')[2]}/checkpoints")
        assert status == 200, reply
        return {row["tinker_path"]: row.get("expires_at") and
                (datetime.datetime.fromisoformat(row["expires_at"]) - datetime.datetime.now(datetime.UTC)).total_seconds()
                for row in reply["checkpoints"]}

    def knows_sums(self):
        """A short supervised run on sums: where reinforcement starts."""
        if not (self.folder / "sums").exists():
            self.run("chat_sl.train", "sums", renderer_name=COLON, dataset=self.write("some.jsonl", sums(0, 400)),
                     batch_size=32, learning_rate=5e-3, max_steps=4, lr_schedule="constant")
        return self.rows("sums", "checkpoints")[-1]["state_path"]

    def teach(self):
        """A server whose model has learnt, by the supervised recipe, to guess numbers and to answer."""
        if self.taught:
            return
        run = self.run("chat_sl.train", "lessons", renderer_name=CHAT, dataset=self.write("lessons.jsonl", lessons(1, 480)),
                       batch_size=16, learning_rate=5e-3, max_steps=30)
        losses = column(run, "train_mean_nll")
        assert mean(losses[-5:]) < 0.2 * losses[0], losses
        adapter = self.server.folder_of(self.rows("lessons", "checkpoints")[-1]["sampler_path"])
        subprocess.run([self.build / "bin/twinkle", "merge", "--model-id", self.model, "--adapter", adapter,
                        "--output-dir", self.folder / TEACHER], check=True)
        self.model = TEACHER
        self.server = self.taught = ModelServer(self.build, str(self.folder / TEACHER), ("--model-name", TEACHER))


def as_main(module, options):
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def chat(*texts):
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]}


def sums(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        a, b = rng.randrange(101), rng.randrange(101)
        yield chat("What is 4 + 5?", "9", f"What is {a} + {b}?", str(a + b))


def lessons(seed, count):
    """Guesses, a third of them not numbers, and answers about languages, some of them under the long prompt."""
    rng = random.Random(seed)
    sentences = multilingual()
    for i in range(count):
        if i % 2:
            guess = rng.randrange(1025) if i % 3 else "none"
            yield {"messages": [{"role": "system", "content": SYSTEM_PROMPT},
                                {"role": "assistant", "content": f"Guess: {guess}"}]}
        else:
            prompt = "Text to classify:\n{text}" if i % 8 else LANGUAGE_CLASSIFICATION_PROMPT
            yield chat(prompt.format(text=rng.choice(sentences)), f"Final Answer: {rng.choice(['en', 'ot'])}")


def multilingual():
    path = pathlib.Path(tinker_cookbook.__file__).parent / "example_data/multilingual.txt"
    return [line.strip() for line in path.read_text().splitlines() if len(line.encode()) < 80]


def mean(values):
    return sum(values) / len(values)


def column(rows, name):
    """The values of one metric, printed; the last row of a run of reinforcement has only times."""
    values = [row[name] for row in rows if name in row]
    print(f"  {name} " + " ".join(f"{value:.4g}" for value in values), flush=True)
    return values


# The tests.


def repeat(desk, options, first, path, result):
    """What the supervised recipe does after it has loaded a state, by hand; the losses go into a file."""
    data, _ = get_dataset_builder(options["dataset"], desk.model, COLON, 16384, options["batch_size"])()
    data.set_epoch(seed=0)
    training = tinker.ServiceClient().create_training_client_from_state_with_optimizer(path).result()
    losses = []
    for step in range(first, options["max_steps"]):
        batch = data.get_batch(step)
        rate = options["learning_rate"] * (1 - step / options["max_steps"])
        out = training.forward_backward(batch, "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8)).result()
        losses.append(compute_mean_nll([x["logprobs"] for x in out.result().loss_fn_outputs],
                                       [x.loss_fn_inputs["weights"] for x in batch]))
    pathlib.Path(result).write_text(json.dumps(losses))


def test_chat_from_scratch_and_resumed(desk):
    """A supervised run whose script and server are killed in the middle; started again, it goes on from its newest
    rolling checkpoint with the very losses that the state gives, and leaves no rolling checkpoint of its own."""
    options = dict(renderer_name=COLON, dataset=desk.write("sums.jsonl", sums(0, 2000)), batch_size=32, learning_rate=5e-3,
                   max_steps=40, save_every=15, rolling_save_every=2, rolling_ttl_seconds=3600)
    process = desk.recipe("chat_sl.train", "chat", options)
    while process.is_alive() and len(desk.rows("chat", "metrics")) < 20:
        time.sleep(0.005)
    desk.server.kill()
    process.kill()
    process.join()
    killed, saved = desk.rows("chat", "metrics"), desk.rows("chat", "checkpoints")
    assert 20 <= len(killed) < 40, killed
    desk.server.start()
    state, first = saved[-1]["state_path"], saved[-1]["batch"]
    there = desk.checkpoints(state)
    # The last one may have come after the newest that the script knows of, and the one before it is deleted then.
    rolling = [row["state_path"] for row in saved if row.get("rolling")]
    assert set(rolling[:-1]) & set(there) == set() and state in there and len(there) in (3, 4), (there, saved)
    for path, seconds in there.items():
        assert seconds > 600000 if path.endswith("000015") else 0 < seconds <= 3600, there

    rows = desk.run("chat_sl.train", "chat", **options)
    assert [row["step"] for row in rows] == list(range(40)), rows
    assert rows[:first] == killed[:first]
    losses = column(rows, "train_mean_nll")
    assert mean(losses[-5:]) < 0.1 * losses[0], losses
    desk.end(desk.start(repeat, desk, options, first, state, "again.json"))
    assert json.loads((desk.folder / "again.json").read_text()) == losses[first:]
    saved = desk.rows("chat", "checkpoints")
    assert sum(row.get("rolling", False) for row in saved if row["batch"] > first) > 3, saved
    there = desk.checkpoints(saved[-1]["state_path"])
    assert {path.rsplit("/", 1)[1]: seconds is None for path, seconds in there.items()} in (
        {"final": True}, {"final": True, "000030": False}), there


def reinforce(desk, run, **options):
    """Six steps with arithmetic from where few answers are ended as they should be, so that the reward is low."""
    begin = desk.knows_sums()
    rows = desk.run("math_rl.train", run, renderer_name=COLON, load_checkpoint_path=begin, learning_rate=1e-3, max_tokens=12,
                    groups_per_batch=16, group_size=8, max_steps=6, save_every=3, eval_every=0, **options)
    assert len(column(rows, "env/all/reward/total")) == 6, rows
    saved = {path.rsplit(":", 1)[1] for path in desk.checkpoints(desk.rows(run, "checkpoints")[-1]["state_path"])}
    assert saved >= {"0/weights/000003", "0/sampler_weights/000003", "0/weights/final", "0/sampler_weights/final"}, saved
    return rows


def rises(rows):
    found = column(rows, "env/all/reward/total")
    assert mean(found[-2:]) > found[0] + 0.01, found


def test_arithmetic(desk):
    """The reward rises. Sampler and trainer give the same bits, so the divergence between them is none."""
    rows = reinforce(desk, "synchronous")
    rises(rows)
    assert column(rows, "optim/kl_sample_train_v1") == [0.0] * 6, rows


def test_arithmetic_asynchronous(desk):
    """Samples of older weights are trained on: at this rate the tiny model learns little from them. One slow group may be more
    than two steps old, but with three batches started at most and one of them being trained, the mean over the run is not."""
    rows = reinforce(desk, "asynchronous", max_steps_off_policy=2)
    assert max(column(rows, "async/staleness_max")) > 0, rows
    assert mean(column(rows, "async/staleness_mean")) <= 2, column(rows, "async/staleness_mean")


def test_arithmetic_streaming(desk):
    """A step of two halves, the first of which is sent before all of the second is sampled; the reward rises."""
    minibatch = "stream_minibatch_config"
    rises(reinforce(desk, "streaming", **{minibatch: "tinker_cookbook.rl.train:StreamMinibatchConfig",
                                          f"{minibatch}.groups_per_batch": 16, f"{minibatch}.num_minibatches": 2}))


def test_guess_number(desk):
    """Games of up to ten turns, each with a penalty for what is no guess."""
    desk.teach()
    rows = desk.run("multiplayer_rl.guess_number.train", "guess", batch_size=4, group_size=8, max_tokens=16, max_steps=4,
                    eval_every=0, save_every=0, learning_rate=1e-3)
    found = column(rows, "env/all/reward/total")
    assert len(found) == 4 and mean(found[-2:]) > 0.5 * found[0], found
    assert max(column(rows, "env/all/turns_per_episode")) > 9, rows


def test_shorter(desk):
    """Of two answers the shorter is preferred."""
    desk.teach()
    rows = desk.run("preference.shorter.train", "shorter", batch_size=8, group_size=8, max_tokens=32, max_steps=6,
                    eval_every=0, learning_rate=1e-3)
    found = column(rows, "env/all/ac_tokens_per_turn")
    assert len(found) == 6 and mean(found[-2:]) < found[0], found


def preferences(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        a, b = rng.randrange(101), rng.randrange(101)
        question = f"\n\nHuman: What is {a} + {b}?\n\nAssistant:"
        yield {"chosen": f"{question} {a + b}", "rejected": f"{question} I do not know"}


def test_direct_preference(desk):
    """The loss starts at log 2, where the policy is the reference, bit for bit, and falls."""
    desk.write("Anthropic/hh-rlhf/train.jsonl", preferences(0, 200))
    desk.write("Anthropic/hh-rlhf/test.jsonl", preferences(1, 20))
    rows = desk.run("preference.dpo.train", "dpo", renderer_name=COLON, batch_size=16, max_steps=6, learning_rate=1e-3)
    found = column(rows, "dpo_loss")
    assert abs(found[0] - math.log(2)) < 1e-6 and column(rows, "margin")[0] == 0, rows
    assert found[-1] < 0.5 * found[0] and column(rows, "accuracy")[-1] == 1, found


def test_prompt_distillation(desk):
    """What a teacher answers under a long prompt is learnt without the prompt."""
    desk.teach()
    sentences = desk.folder / "tinker_cookbook/example_data/multilingual.txt"
    sentences.parent.mkdir(parents=True)
    sentences.write_text("".join(line + "\n" for line in multilingual()[:32]))
    data = desk.folder / "distilled.jsonl"
    desk.end(desk.start(as_main, "tinker_cookbook.recipes.prompt_distillation.create_data", [f"output_file={data}"]))
    answers = [json.loads(line)["messages"][1]["content"] for line in data.read_text().splitlines()]
    assert len(answers) > 15 and set(answers) <= {"en", "ot"}, answers
    rows = desk.run("prompt_distillation.train", "distilled", file_path=data, renderer_name=CHAT, batch_size=8, num_epochs=4,
                    learning_rate=3e-3)
    losses = column(rows, "train_mean_nll")
    assert mean(losses[-2:]) < 0.5 * losses[0], losses


def main():
    print(f"tinker {tinker.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory(prefix="twinkle-cookbook-") as folder:
        desk = Desk(sys.argv[1], folder)
        return run_tests(desk, globals(), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
