"""check_peft_roundtrip.py REFERENCES OURS: what our side wrote, read by PEFT and transformers.

parity_test leaves for every case of REFERENCES a folder OURS/CASE with
  adapter/           our adapter after training, as our side saves it
  merged/            our full checkpoint: the base with that adapter merged
  ours.safetensors   adapter_logits.I of that adapter, merged_logits.I of the merged model
PEFT must load the adapter without a missing or unexpected key and give our logits; transformers must load the full
checkpoint and give our logits; and the files must look as PEFT's own do."""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel
from peft.utils import load_peft_weights
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

TOLERANCE = 1e-4
# Keys whose values say who wrote the file.
WRITER = {"peft_version", "base_model_name_or_path", "revision", "auto_mapping"}


def relative(got, expected):
    return float((got - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def worst(model, sequences, ours, prefix):
    return max(relative(ours[f"{prefix}.{i}"], model(input_ids=torch.tensor([ids]), use_cache=False).logits[0])
               for i, ids in enumerate(sequences))


def base_of(folder, case):
    path = folder / case["model"]
    if path.suffix != ".gguf":
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model = LlamaForCausalLM(AutoConfig.from_pretrained(path.parent, gguf_file=path.name)).float().eval()
    model.load_state_dict(loaded.state_dict())
    return model


def normal(value):
    return sorted(value) if isinstance(value, (list, set)) else value


def check(folder, ours_folder):
    """Sentences about what is wrong with one case."""
    wrong = []
    case = json.loads((folder / "case.json").read_text())
    ours = load_file(ours_folder / "ours.safetensors")

    written = json.loads((ours_folder / "adapter" / "adapter_config.json").read_text())
    known = LoraConfig().to_dict()
    wrong += [f"adapter_config.json: '{key}' is no key of PEFT" for key in sorted(set(written) - set(known))]
    theirs, read = (LoraConfig.from_pretrained(path / "adapter").to_dict() for path in (folder, ours_folder))
    for key in sorted(set(theirs) - WRITER):
        if normal(theirs[key]) != normal(read[key]):
            wrong.append(f"adapter_config.json: PEFT reads '{key}' as {read[key]}, of its own file {theirs[key]}")
    expected = {k: (v.shape, v.dtype) for k, v in load_peft_weights(folder / "adapter", device="cpu").items()}
    got = {k: (v.shape, v.dtype) for k, v in load_file(ours_folder / "adapter" / "adapter_model.safetensors").items()}
    for name in sorted(set(expected) ^ set(got)):
        wrong.append(f"adapter_model.safetensors: {name} is {'missing' if name in expected else 'unexpected'}")
    wrong += [f"adapter_model.safetensors: {name} is {got[name]}, PEFT has {expected[name]}"
              for name in sorted(set(expected) & set(got)) if expected[name] != got[name]]

    model = PeftModel.from_pretrained(base_of(folder, case), ours_folder / "adapter").eval()
    for what, error in [
        ("logits of our adapter in PEFT", worst(model, case["sequences"], ours, "adapter_logits")),
        ("logits after PEFT merges our adapter", worst(model.merge_and_unload(), case["sequences"], ours,
                                                       "merged_logits")),
    ]:
        if not error <= TOLERANCE:
            wrong.append(f"{what}: relative error {error:.2e}")

    full, info = AutoModelForCausalLM.from_pretrained(ours_folder / "merged", dtype=torch.float32,
                                                      attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            wrong.append(f"full checkpoint in transformers: {kind} {sorted(info[kind])[:3]}")
    error = worst(full.eval(), case["sequences"], ours, "merged_logits")
    if not error <= TOLERANCE:
        wrong.append(f"logits of our full checkpoint in transformers: relative error {error:.2e}")
    return wrong


def main(references, ours):
    cases = sorted(path.parent for path in references.glob("*/*/case.json"))
    assert cases, f"no references in {references}"
    bad = 0
    for folder in cases:
        wrong = check(folder, ours / folder.name)
        bad += bool(wrong)
        print(f"{folder.name}: {'right' if not wrong else ''}", flush=True)
        for sentence in wrong:
            print(f"  {sentence}")
    print(f"{len(cases) - bad} of {len(cases)} cases right")
    return 1 if bad else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()))
